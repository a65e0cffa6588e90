"""Asks the kernel: cards on the bus, the driver's version, disk, limits, ports. `checks` calls it.

Nothing is left behind: the file that tries whether the data folder can be written is removed, and
a folder that is not there yet is not made.
"""

from __future__ import annotations

import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterable
from os import W_OK, X_OK, access
from pathlib import Path

from anyio import to_thread

from llmgw.views.findings import Finding
from llmgw.views.surroundings import (
    SHARED,
    disk_finding,
    files_finding,
    locked_memory_finding,
    ports_finding,
    shared_memory_finding,
)

ROOT = Path("/")
_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")


def cards_on_the_bus(root: Path = ROOT) -> int:
    """Return how many NVIDIA cards sit on the PCI bus, with a driver or without."""
    folder = root / "sys/bus/pci/devices"
    devices = folder.iterdir() if folder.is_dir() else ()
    return sum(
        _text(device / "vendor") == _NVIDIA and _text(device / "class")[:6] in _DISPLAY_CLASSES
        for device in devices
    )


def kernel_version(root: Path = ROOT) -> str | None:
    """Return the version of the NVIDIA module that the kernel has loaded."""
    version = _text(root / "sys/module/nvidia/version")
    if not version:
        line = _text(root / "proc/driver/nvidia/version").partition("\n")[0]
        match = re.search(r"\s([0-9]+(?:\.[0-9]+)+)\s", line)
        version = match[1] if match else ""
    return version or None


async def data_folder(folder: Path) -> list[Finding]:
    """Return whether the data folder, or the one that it will be made in, can be written."""
    return [await to_thread.run_sync(_data_folder, folder, abandon_on_cancel=True)]


def _data_folder(folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        problem = _not_writable(folder, there)
        free_bytes = shutil.disk_usage(there).free
    except OSError as error:
        return disk_finding(str(folder), 0, error.strerror or str(error))
    return disk_finding(str(folder), free_bytes, problem)


def _not_writable(folder: Path, there: Path) -> str | None:
    if not there.is_dir():
        return f"{there} is a file"
    if there != folder:
        return None if access(there, W_OK | X_OK) else f"it cannot be made in {there}"
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"llmgw doctor")
    return None


async def open_files() -> list[Finding]:
    """Return whether this process may open enough files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return [files_finding(soft, hard)]


async def locked_memory(root: Path = ROOT) -> list[Finding]:
    """Return whether this process may lock enough memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    infiniband = root / "sys/class/infiniband"
    used = infiniband.is_dir() and any(infiniband.iterdir())
    return [locked_memory_finding(None if soft == resource.RLIM_INFINITY else soft, used)]


async def shared_memory(root: Path = ROOT) -> list[Finding]:
    """Return whether processes can share memory, and what dead engines left there."""
    return [await to_thread.run_sync(_shared_memory, root, abandon_on_cancel=True)]


def _shared_memory(root: Path) -> Finding:
    folder = root / SHARED.lstrip("/")
    if not folder.is_dir():
        return shared_memory_finding(None, (), 0)
    # Named so by Python's multiprocessing, which removes them unless its process is killed.
    segments = {path.name: path for path in folder.glob("psm_*")}
    left = sorted(segments.keys() - _mapped(root, segments.keys())) if segments else []
    size = sum(segments[name].stat().st_size for name in left if segments[name].exists())
    return shared_memory_finding(shutil.disk_usage(folder).free, left, size)


def _mapped(root: Path, names: Iterable[str]) -> set[str]:
    """Which of these files some process has mapped; all, where a process may not be looked at."""
    wanted, found = set(names), set[str]()
    for process in (root / "proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
        except PermissionError:
            return wanted
        except OSError:
            continue
        found |= {name for name in wanted if f"{SHARED}/{name}" in maps}
    return found


async def engine_ports(host: str, ports: range) -> list[Finding]:
    """Return how many of the ports for engines are free."""
    return [await to_thread.run_sync(_engine_ports, host, ports, abandon_on_cancel=True)]


def _engine_ports(host: str, ports: range) -> Finding:
    first, _, last = _text(ROOT / "proc/sys/net/ipv4/ip_local_port_range").partition("\t")
    outgoing = range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return ports_finding(host, ports, 0, outgoing, error.strerror or str(error))
    taken = sum(not _is_free(family, host, port) for port in ports)
    return ports_finding(host, ports, taken, outgoing, None)


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
