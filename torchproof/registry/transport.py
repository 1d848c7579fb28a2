"""Requests to one registry: authentication, retries with backoff, readable errors."""

from __future__ import annotations

import email.utils
import random
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from torchproof._http import failure_text
from torchproof.errors import RegistryError
from torchproof.registry.auth import Authenticator, Credentials
from torchproof.registry.reference import DOCKER_HUB, is_loopback

_DOCKER_HUB_API = "registry-1.docker.io"
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long to try again. Seconds; `attempts` counts the first try too."""

    attempts: int = 6
    first: float = 0.5
    longest: float = 30.0

    def wait(self, attempt: int, response: httpx.Response | None) -> float:
        """Return the seconds to wait after a failed try: `Retry-After`, else backoff + jitter."""
        requested = _retry_after(response.headers.get("Retry-After", "")) if response else None
        if requested is not None:
            return min(requested, self.longest)
        return min(self.first * 2.0**attempt, self.longest) * random.uniform(0.5, 1.0)


class Transport:
    """HTTP to one registry host. Safe to share between threads."""

    def __init__(
        self,
        registry: str,
        *,
        credentials: Credentials | None = None,
        plain_http: bool | None = None,
        patience: Patience | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.registry = registry
        self.patience = patience or Patience()
        plain = is_loopback(registry) if plain_http is None else plain_http
        host = _DOCKER_HUB_API if registry == DOCKER_HUB else registry
        self.base = f"{'http' if plain else 'https'}://{host}"
        self.stop = threading.Event()
        """Set it to end all requests of this client between two chunks or tries."""
        self._http = httpx.Client(
            verify=_trust(registry),
            timeout=httpx.Timeout(timeout, connect=15.0),
            follow_redirects=True,
            limits=httpx.Limits(max_connections=16),
            headers={"User-Agent": "torchproof"},
        )
        self._auth = Authenticator(registry, self._http, credentials)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def once(
        self, method: str, url: str, *, scopes: tuple[str, ...], **kwargs: Any
    ) -> httpx.Response:
        """Send one request, answering one authentication challenge. No retries.

        A body that is an iterator cannot be sent again: the challenge is answered, and the 401 is
        returned for the caller to start over. Lets `httpx.TransportError` through.
        """
        headers = dict(kwargs.pop("headers", None) or {})
        full = url if url.startswith("http") else self.base + url
        own = full.startswith(self.base + "/")
        sent = headers | (self._auth.header(scopes) if own else {})
        response = self._http.request(method, full, headers=sent, **kwargs)
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status_code == 401 and challenge and self._auth.answer(challenge, scopes):
            if isinstance(kwargs.get("content"), Iterator):
                return response
            again = headers | self._auth.header(scopes)
            response = self._http.request(method, full, headers=again, **kwargs)
        return response

    def request(
        self,
        method: str,
        url: str,
        *,
        scopes: tuple[str, ...] = (),
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
        doing: str,
    ) -> httpx.Response:
        """Send a request with a body that fits in memory; try again if that can help.

        `accept` are the expected status codes; `doing` completes "while …". Raises
        `RegistryError` for any other status and for a registry that does not answer.
        """
        for attempt in range(self.patience.attempts):
            response: httpx.Response | None = None
            problem = ""
            try:
                response = self.once(
                    method, url, scopes=scopes, headers=headers, content=content, params=params
                )
            except httpx.TransportError as error:
                problem = failure_text(error)
            else:
                if response.status_code in accept:
                    return response
                problem = describe(response)
                if response.status_code not in RETRIED:
                    raise self.refusal(response, doing)
            if attempt + 1 < self.patience.attempts:
                self.pause(attempt, response)
        raise self.unreachable(problem, doing)

    @contextmanager
    def stream(
        self, method: str, url: str, *, scopes: tuple[str, ...], headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        """Open an authenticated response to be read in pieces. No retries."""
        sent = dict(headers) | self._auth.header(scopes)
        with self._http.stream(method, self.base + url, headers=sent) as response:
            yield response

    def pause(self, attempt: int, response: httpx.Response | None) -> None:
        """Wait before the next try; raise `RegistryError` at once if `stop` is set."""
        if self.stop.wait(self.patience.wait(attempt, response)):
            raise RegistryError(f"stopped while talking to {self.registry}")

    def refusal(self, response: httpx.Response, doing: str) -> RegistryError:
        """Explain a status that trying again will not change."""
        text = f"{self.registry} refused while {doing}: {describe(response)}"
        match response.status_code:
            case 401:
                return RegistryError(text, fix=f"run `docker login {self.registry}`")
            case 403:
                return RegistryError(text, fix="ask for permission to push to this repository")
            case _:
                return RegistryError(text)

    def unreachable(self, problem: str, doing: str) -> RegistryError:
        """Explain that all tries failed."""
        return RegistryError(
            f"{self.registry} failed {self.patience.attempts} times while {doing}: {problem}",
            fix="check that the registry is up and has space, then run the same command again: "
            "what it already has is not sent twice",
        )


def describe(response: httpx.Response) -> str:
    """Return the status and the registry's own explanation of it (OCI error document)."""
    text = ""
    try:
        errors = response.json().get("errors") or []
        text = "; ".join(
            f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors
        )
    except (ValueError, AttributeError, TypeError, httpx.StreamError):
        pass
    return f"HTTP {response.status_code} {response.reason_phrase}{': ' + text if text else ''}"


def _retry_after(value: str) -> float | None:
    """Read `Retry-After`: seconds or a date (RFC 9110, 10.2.3)."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _trust(registry: str) -> ssl.SSLContext:
    """Trust the system's certificates, and those that Docker is set up to trust for this host."""
    context = ssl.create_default_context()
    for folder in (Path("/etc/docker/certs.d"), Path.home() / ".docker/certs.d"):
        for certificate in sorted((folder / registry).glob("*.crt")):
            context.load_verify_locations(certificate)
    return context
