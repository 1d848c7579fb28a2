"""Where ranks would meet: hostname, MASTER_ADDR, MASTER_PORT, the interface, the ranks' GPUs."""

# /// probe
# summary = "hostname, MASTER_ADDR, MASTER_PORT and the network interface let ranks meet"
# timeout = 60
# ///

import concurrent.futures
import errno
import fcntl
import ipaddress
import os
import re
import resource
import socket
import struct
from pathlib import Path

import _support as support

RESOLVE_SECONDS = 10.0


def check():
    notes = []
    name, addresses = hostname(notes)
    names = interfaces()
    master_address(names)
    port(notes)
    chosen = interface(names)
    ranks_and_gpus()
    locked_memory(notes)
    support.METRICS.update(hostname_resolves=True, addresses=addresses, interface=chosen)
    note = f"; {'; '.join(notes)}" if notes else ""
    return f"{name} resolves to {', '.join(addresses)}; NCCL would use {chosen}{note}"


def resolve(name):
    """All addresses of a name; a resolver that does not answer counts as having none."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    task = pool.submit(socket.getaddrinfo, name, None, 0, socket.SOCK_STREAM)
    pool.shutdown(wait=False)
    try:
        return sorted({str(entry[4][0]) for entry in task.result(RESOLVE_SECONDS)})
    except (OSError, UnicodeError, concurrent.futures.TimeoutError):
        return []


def hostname(notes):
    for name in dict.fromkeys([socket.gethostname(), socket.getfqdn()]):
        addresses = resolve(name)
        if not addresses:
            support.fail(
                "hostname_unresolvable",
                f"this host's name `{name}` does not resolve: torchrun would wait forever",
                "add it to /etc/hosts (docker run --hostname does), or use --local-addr=127.0.0.1",
            )
    if not any(is_local(address) for address in addresses):
        support.fail(
            "hostname_elsewhere",
            f"this host's name `{name}` resolves to {', '.join(addresses)}, which is not this host",
            "correct /etc/hosts or the DNS entry",
        )
    try:
        back = socket.gethostbyaddr(addresses[0])[0]
    except OSError:
        notes.append(f"{addresses[0]} does not resolve back to a name")
    else:
        support.METRICS["name_of_address"] = back
    return name, addresses


def is_local(address):
    """Whether a socket here can be bound to an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as candidate:
            candidate.bind((address, 0))
    except OSError:
        return False
    return True


def master_address(names):
    given = os.environ.get("MASTER_ADDR")
    if not given:
        return
    if "://" in given or re.fullmatch(r"[^:\[\]]+:\d+|\[.*\](:\d+)?", given):
        support.fail(
            "master_addr_invalid",
            f"MASTER_ADDR={given} is not a bare host name or address",
            "give the name or address alone: no scheme, no brackets; the port is MASTER_PORT",
        )
    addresses = resolve(given)
    if not addresses:
        support.fail(
            "master_unresolvable",
            f"MASTER_ADDR={given} does not resolve here",
            "use a name that every node resolves, or the address of rank 0's node",
        )
    here = {address for found in names.values() for address in found}
    if all(":" in a for a in addresses) and not any(":" in a for a in here):
        support.fail(
            "no_ipv6",
            f"MASTER_ADDR={given} has IPv6 addresses only, and this host has no IPv6",
            "use an IPv4 address, or give the container an IPv6 network",
        )
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    if rank == "0" and not any(is_local(address) for address in addresses):
        support.fail(
            "rank0_not_master",
            f"rank 0 is on {socket.gethostname()} but MASTER_ADDR is {given} "
            f"({', '.join(addresses)})",
            "with --rdzv-backend c10d ranks follow arrival: use a static rendezvous with "
            "--node-rank, or take MASTER_ADDR from rank 0",
        )


def port(notes):
    given = os.environ.get("MASTER_PORT")
    if given is not None and not (given.isdigit() and 0 < int(given) < 65536):
        support.fail("master_port_invalid", f"MASTER_PORT={given} is not a port number")
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    if rank != "0":
        return
    number = int(given or 29500)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", number))
    except OSError as error:
        if error.errno == errno.EACCES:
            told = f"port {number} is reserved: this user may not listen on it"
        elif error.errno == errno.EADDRINUSE:
            told = f"port {number} is held by {holder(number)}"
        else:
            raise
        if given is None:
            notes.append(f"{told} (torchrun's default; nothing here uses it)")
            return
        support.fail(
            "port_in_use",
            f"MASTER_PORT: {told}",
            "stop that process, or let torchrun choose: --standalone, or --rdzv-endpoint=HOST:0",
        )


def holder(number):
    """Return who listens on a port: `pid 4711 (python train.py)`, as far as it is known."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == number:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if inodes & set(links):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            return f"pid {process.name} ({words.strip()[:80]})"
    return "a process of another user or container"


def interfaces():
    """Interfaces that are up, with their addresses: {name: [address, ...]}."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack("H", fcntl.ioctl(query, 0x8913, request)[16:18])[0]
            except OSError:
                continue
            if not flags & 1:
                continue
            found[name] = []
            try:
                raw = fcntl.ioctl(query, 0x8915, request)[20:24]
                found[name].append(socket.inet_ntoa(raw))
            except OSError:
                pass
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, _, _, scope, _, name = line.split()
        if name in found and scope != "20":
            found[name].append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return found


def interface(names):
    """The interface that NCCL would take for its bootstrap, by its documented order.

    NCCL_SOCKET_IFNAME (prefixes, ^ excludes, = exact); else ib*, then any but docker*, lo, virbr*;
    then docker*; then lo (NVIDIA NCCL user guide, environment variables).
    """
    usable = [name for name, addresses in names.items() if addresses]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        asked = os.environ.get(variable)
        if not asked:
            continue
        matching = [name for name in usable if matches(name, asked)]
        if not matching:
            support.fail(
                "interface_not_found",
                f"{variable}={asked} matches no interface that is up with an address; there are "
                f"{', '.join(usable) or 'none'}",
                f"unset {variable}, or name one of those",
            )
    asked = os.environ.get("NCCL_SOCKET_IFNAME")
    if asked:
        return next(name for name in usable if matches(name, asked))
    ordinary = [n for n in usable if not n.startswith(("docker", "virbr")) and n != "lo"]
    groups = (
        [n for n in usable if n.startswith("ib")],
        ordinary,
        [n for n in usable if n.startswith("docker")],
        [n for n in usable if n == "lo"],
    )
    chosen = next((group[0] for group in groups if group), None)
    if chosen is None:
        support.fail(
            "no_interface",
            "no network interface is up with an address, not even lo",
            "start the container with a network (not --network none)",
        )
    return chosen


def matches(name, asked):
    excluding, exact = asked.startswith("^"), asked.lstrip("^").startswith("=")
    words = [word for word in asked.lstrip("^").lstrip("=").split(",") if word]
    hit = any(name == word if exact else name.startswith(word) for word in words)
    return hit != excluding


def ranks_and_gpus():
    """More ranks on this host than GPUs: NCCL would say `Duplicate GPU detected`."""
    ranks = next(
        (
            int(match[0])
            for variable in (
                "LOCAL_WORLD_SIZE",
                "SLURM_NTASKS_PER_NODE",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            )
            if (match := re.match(r"\d+", os.environ.get(variable, "")))
        ),
        None,
    )
    for variable in ("TORCHPROOF_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        given = os.environ.get(variable)
        if ranks is None or given in (None, "", "all", "void", "none"):
            continue
        count = len([part for part in given.split(",") if part.strip()])
        if ranks > count:
            name = variable.replace("TORCHPROOF", "CUDA")
            support.fail(
                "duplicate_gpu",
                f"{ranks} ranks but {count} visible GPU{'s' if count > 1 else ''} ({name}={given})",
                "start as many ranks as GPUs (--nproc-per-node), and torch.cuda.set_device("
                "LOCAL_RANK) in each",
            )


def locked_memory(notes):
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY:
        return
    support.METRICS["memlock_bytes"] = soft
    told = f"RLIMIT_MEMLOCK is {soft / 1024**2:.0f} MiB in the ranks"
    devices = Path("/sys/class/infiniband")
    asked = os.environ.get("NCCL_IB_HCA")
    if asked or (devices.is_dir() and any(devices.iterdir())):
        support.fail(
            "memlock_small",
            f"{told}: RDMA registration will fail",
            "start with --ulimit memlock=-1 (in Slurm: PropagateResourceLimits=NONE)",
        )
    notes.append(f"{told}, which is too little for RDMA")


if __name__ == "__main__":
    support.main(check)
