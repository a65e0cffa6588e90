"""The machine itself: its memory, boot id and machine id, read from /proc, /sys and /etc.

It reads small files and nothing else; `cpu` and `discover` call it in a worker thread. `root` is
where the files are looked for, so that a test can lay out a machine of its own.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import HostMemory

ROOT = Path("/")
# Accounts of people have numbers between those of services and that of nobody.
_FIRST_PERSON, _NOBODY = 1000, 65534


def host_memory(root: Path = ROOT, *, limited: bool = False) -> HostMemory | None:
    """The system's memory; with `limited`, no more than this control group may use.

    `None` where the kernel does not tell (no /proc/meminfo, or one without MemTotal).
    """
    memory = parse_meminfo(_read(root / "proc/meminfo"))
    if memory is None or not limited:
        return memory
    for limit, used in _limits(root):
        if 0 < limit < memory.total_bytes:
            left = max(0, limit - used)
            free = memory.available_bytes
            memory = HostMemory(limit, left if free is None else min(left, free))
    return memory


def parse_meminfo(text: str) -> HostMemory | None:
    """Total and available memory in the text of /proc/meminfo."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +([0-9]{1,15}) kB", text, re.MULTILINE))
    if "MemTotal" not in found:
        return None
    available = found.get("MemAvailable")
    return HostMemory(int(found["MemTotal"]) * 1024, int(available) * 1024 if available else None)


def boot_id(root: Path = ROOT) -> str | None:
    """The kernel's id of this boot."""
    return _read(root / "proc/sys/kernel/random/boot_id").strip() or None


def machine_id(root: Path = ROOT) -> str:
    """The id that this installation keeps over reboots; empty where there is none."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        text = _read(root / name).strip()
        if re.fullmatch(r"[0-9a-f]{32}", text):
            return text
    return ""


def owners(root: Path = ROOT) -> tuple[list[str], list[str]]:
    """The names of this machine, in every form, and of the people who have an account on it."""
    hosts = set()
    for name in ("proc/sys/kernel/hostname", "etc/hostname"):
        full = _read(root / name).strip()
        short, _, domain = full.partition(".")
        hosts |= {full, short, domain if "." in domain else ""}
    users = set()
    for line in _read(root / "etc/passwd").splitlines():
        name, _, number = (*line.split(":"), "", "", "")[:3]
        if number.isdecimal() and _FIRST_PERSON <= int(number) < _NOBODY:
            users.add(name)
    home = root / "home"
    if home.is_dir():
        users |= {folder.name for folder in home.iterdir()}
    return sorted(hosts - {""}), sorted(users - {""})


def require_memory(root: Path = ROOT) -> HostMemory:
    """The memory that this process may use. Raises `BackendUnavailable` where it is not told."""
    memory = host_memory(root, limited=True)
    if memory is None:
        raise BackendUnavailable(
            "the size of this machine's memory is not known, since /proc/meminfo does not say it:"
            " the processor cannot be offered as a device"
        )
    return memory


def _limits(root: Path) -> list[tuple[int, int]]:
    """(limit, used) of every control group above this process that has a memory limit.

    The limit of a parent binds too. Inside a container the path may be of the host's namespace:
    then the files are at the top.
    """
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        steps = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for depth in range(len(steps), -1, -1):
            group = base.joinpath(*steps[:depth])
            limit = _read(group / files[0]).strip()
            if limit.isdecimal():
                found.append((int(limit), _used(group, files[1], files[2])))
    return found


def _used(group: Path, usage: str, reclaimable: str) -> int:
    """What a group uses, without the page cache that the kernel would give back."""
    used = _read(group / usage).strip()
    cache = re.search(rf"^{reclaimable} ([0-9]+)$", _read(group / "memory.stat"), re.MULTILINE)
    return max(0, int(used or 0) - int(cache[1] if cache else 0)) if used.isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
