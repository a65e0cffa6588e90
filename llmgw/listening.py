"""Who listens on a port of this machine, as the kernel's tables tell.

A health endpoint that answers is no proof that the engine does: another program may have taken its
port in the moment between the look whether it is free and the engine's own. `supervise` asks here
before it says that a new engine answered. Linux only; what cannot be read counts as not known.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from llmgw.processes import born, names_of, process_ids

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_PROXIES = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "pasta.avx2")
"""What listens for a container whose network is its own; at most 15 characters are known."""
_CONTAINER = re.compile(r"docker|containerd|libpod|podman|crio|kubepods|nspawn|lxc|apptainer")


def stranger(host: str, port: int, own: Collection[int], since: int | None) -> str | None:
    """Return who listens there if it is none of the processes `own`; `None`: they do, or unknown.

    A container that was started `since` then (in clock ticks since boot) may be the engine's: its
    processes are children of the container's keeper, and not of the command that asked for it.
    """
    sockets = _listening(host, port)
    if not sockets or any(_holds(pid, sockets) is not False for pid in own):
        return None
    holder = next((p for p in process_ids() if p not in own and _holds(p, sockets)), None)
    if holder is None:
        return "another program"
    name = names_of([holder]).get(holder, "")
    if since is not None and _is_contained(holder, name, since):
        return None
    return f"pid {holder} ({name})" if name else f"pid {holder}"


def _is_contained(pid: int, name: str, since: int) -> bool:
    """Return whether a process that was started since then belongs to a container."""
    try:
        if born(pid) < since:
            return False
        group = Path(f"/proc/{pid}/cgroup").read_text()
    except (OSError, IndexError, ValueError):
        return False
    return name in _PROXIES or _CONTAINER.search(group) is not None


def _listening(host: str, port: int) -> frozenset[str]:
    """Return the sockets that get what is sent there, by their inodes: those of an exact address
    before those of all.
    """
    exact, any_address = set(), set()
    for address, of_port, inode in _listeners():
        if of_port != port:
            continue
        if address.is_unspecified:
            any_address.add(inode)
        elif str(address) == host:
            exact.add(inode)
    return frozenset(exact or any_address)


def _listeners() -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int, str]]:
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENING:
                    raw, _, port = words[1].partition(":")
                    yield _address(raw), int(port, 16), words[9]


def _address(raw: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address as the kernel prints it: words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _holds(pid: int, sockets: Collection[str]) -> bool | None:
    """Return whether the process has one of the sockets open; `None` where that cannot be read."""
    names = {f"socket:[{inode}]" for inode in sockets}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if str(entry.readlink()) in names:
                    return True
    except PermissionError:
        return None
    except OSError:
        return False
    return False
