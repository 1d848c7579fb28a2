"use strict";
const all = () => [...document.querySelectorAll("details")];
const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const details = target && target.querySelector("details");
  if (details) { details.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
reveal();
for (const link of document.querySelectorAll("a[href^='#cell-']")) {
  link.addEventListener("click", () => { if (link.hash === location.hash) reveal(); });
}
const button = document.getElementById("unfold");
const cells = () => [...document.querySelectorAll(".cell > details")];
button.hidden = false;
button.addEventListener("click", () => {
  const open = cells().some((cell) => !cell.open);
  for (const cell of cells()) cell.open = open;
  button.textContent = open ? "Close all" : "Open all";
});
let closed = [];
addEventListener("beforeprint", () => {
  closed = all().filter((details) => !details.open);
  for (const details of closed) details.open = true;
});
addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
