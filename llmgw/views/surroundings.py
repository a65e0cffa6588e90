"""What doctor finds around the hardware: engines, log server, clock, disk, limits, ports.

Pure; `llmgw.doctor` measures and calls it. As in `findings`, a fault is what keeps something from
running, and a warning what will hurt one day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from llmgw.engines.registry import ENGINES
from llmgw.hardware.types import Inventory
from llmgw.views.findings import GIB, Finding

MIB = 2**20
LEAST_FREE_BYTES = 256 * MIB
LITTLE_FREE_BYTES = 2 * GIB
FEW_FILES = 4096
LARGEST_OFFSET_SECONDS = 1.0
LITTLE_SHARED_BYTES = 512 * MIB
MOST_NAMED = 20
SHARED = "/dev/shm"  # noqa: S108 - looked at, not written to


class EngineFact(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: how it is run here, or why it is not.

    `named` says that a setting names the program. `lists` are the devices that the program itself
    says it sees, absent where it was not asked. `sees` is how many devices its PyTorch sees, and
    `cuda` what CUDA that was built for; `blind` is why it could not even be asked.
    """

    name: str
    program: str | None = None
    version: str | None = None
    problem: str = ""
    named: bool = False
    lists: tuple[str, ...] | None = None
    sees: int | None = None
    cuda: str | None = None
    blind: str | None = None


def engine_findings(engines: Sequence[EngineFact], inventory: Inventory | None) -> list[Finding]:
    """Return one finding for each engine. One of several that is not there is no trouble."""
    some = any(engine.program for engine in engines)
    return [_engine_finding(engine, inventory, some) for engine in engines]


def _engine_finding(engine: EngineFact, inventory: Inventory | None, some: bool) -> Finding:
    check = f"engine {engine.name}"
    if engine.program is None and engine.named:
        return Finding(
            check, "fault", engine.problem, "correct or remove the setting that names it"
        )
    if engine.program is None:
        installs = f"install it only if a catalog has `engine: {engine.name}` for this node"
        return Finding(check, "ok" if some else "warning", engine.problem, installs)
    detail = f"{engine.program}, version {engine.version or 'not told'}"
    gpus = [device for device in inventory.devices if device.card is not None] if inventory else []
    blindness = _blindness(engine, inventory) if gpus else None
    if blindness is not None:
        return Finding(check, "warning", f"{detail}; {blindness[0]}", blindness[1])
    if any(device.profile for device in gpus) and (doubt := _instance_doubt(engine)):
        do = "give MIG classes to another engine, or try one replica first"
        return Finding(check, "warning", f"{detail}; {doubt}", do)
    if engine.lists:
        detail += f"; it sees {', '.join(engine.lists)}"
    elif engine.sees is not None:
        detail += f"; it sees {engine.sees} GPU{'s' if engine.sees != 1 else ''}"
    return Finding(check, "ok", detail)


def _blindness(engine: EngineFact, inventory: Inventory | None) -> tuple[str, str] | None:
    """Why an engine would not use the cards of this machine, and what to do about it."""
    if engine.lists == ():
        where = "it sees no GPU and would serve from the processor"
        return where, "set LLMGW_LLAMA_SERVER to a build with CUDA"
    if engine.blind is not None:
        return f"whether it sees the cards cannot be told: {engine.blind}", "install it afresh"
    if engine.sees != 0:
        return None
    offered = inventory.cuda_version if inventory is not None else None
    if engine.cuda is None:
        return "its PyTorch is built without CUDA", "install a build of it with CUDA"
    if offered is not None and _numbers(engine.cuda) > _numbers(offered):
        newer = f"its PyTorch is built for CUDA {engine.cuda}, and the driver offers {offered}"
        return f"it sees no GPU: {newer}", "update the driver, or install an older build"
    do = "its python -c 'import torch; torch.zeros(1, device=\"cuda\")' says why"
    return f"it sees no GPU, though its PyTorch is built for CUDA {engine.cuda}", do


def _instance_doubt(engine: EngineFact) -> str | None:
    """Why an engine may not be able to open a MIG instance, or `None` if it can."""
    known = ENGINES.get(engine.name)
    if known is None:
        return None
    version = _numbers(engine.version or "") or None
    opens = known.instances.opens(version)
    if opens:
        return None
    why = f" ({known.instances.why})" if known.instances.why else ""
    if opens is False:
        return f"this version cannot open a MIG instance{why}"
    return f"it is not known whether this version opens a MIG instance{why}"


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 0.20.1rc2 is 0, 20, 1."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def clock_finding(offset_seconds: float | None, doubt_seconds: float) -> Finding:
    """Return how far this clock is from the log server's, give or take `doubt_seconds`."""
    if offset_seconds is None:
        return Finding("clock", "unknown", "the log server does not tell its time")
    detail = f"{offset_seconds:+.3f} s from the log server's, ± {doubt_seconds:.3f} s"
    if abs(offset_seconds) - doubt_seconds > LARGEST_OFFSET_SECONDS:
        do = "timedatectl set-ntp true, on this machine and on the server's"
        return Finding("clock", "warning", f"{detail}: times that are shown mislead", do)
    return Finding("clock", "ok", detail)


def disk_finding(folder: str, free_bytes: int, problem: str | None) -> Finding:
    """Return whether the data folder can be written and has room."""
    if problem is not None:
        do = "set LLMGW_DATA (or --data) to a folder that this user may write"
        return Finding("data folder", "fault", f"{folder}: {problem}", do)
    detail = f"{folder} can be written, {free_bytes / GIB:.1f} GiB free"
    do = f"df -h {folder}: make room"
    if free_bytes < LEAST_FREE_BYTES:
        return Finding("data folder", "fault", f"{detail}: too little to keep events", do)
    if free_bytes < LITTLE_FREE_BYTES:
        return Finding("data folder", "warning", detail, do)
    return Finding("data folder", "ok", detail)


def files_finding(soft: int | None, hard: int | None) -> Finding:
    """Return whether enough files may be open at once; `None` is no limit."""
    if soft is None or soft >= FEW_FILES:
        return Finding("open files", "ok", "no limit" if soft is None else f"{soft} at once")
    raised = "no limit" if hard is None else str(hard)
    detail = (
        f"{soft} at once (it can be raised to {raised}); engines with many connections need more"
    )
    do = "ulimit -n 65536, or LimitNOFILE=65536 in the unit of systemd"
    return Finding("open files", "warning", detail, do)


def locked_memory_finding(soft_bytes: int | None, infiniband: bool) -> Finding:
    """Return whether enough memory may be locked; `None` is no limit.

    What speaks InfiniBand registers its buffers, which counts as locking them; nothing else does.
    """
    if soft_bytes is None:
        return Finding("locked memory", "ok", "no limit")
    detail = f"{soft_bytes // 1024} KiB"
    if not infiniband:
        return Finding("locked memory", "ok", f"{detail}, and no InfiniBand that needs more")
    detail += ": engines on several cards or nodes cannot register buffers with InfiniBand"
    do = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit of systemd"
    return Finding("locked memory", "warning", detail, do)


def shared_memory_finding(
    free_bytes: int | None, leftovers: Sequence[str], leftover_bytes: int
) -> Finding:
    """Return whether engines of several processes find room to talk to each other.

    `leftovers` are files in it that engines left behind when they were killed.
    """
    check = "shared memory"
    if free_bytes is None:
        return Finding(check, "unknown", f"{SHARED} is not there")
    detail = f"{free_bytes / MIB:.0f} MiB free in {SHARED}"
    if leftovers:
        size = f"{leftover_bytes / MIB:.0f} MiB"
        detail += f"; {len(leftovers)} files ({size}) of programs that are gone"
        files = " ".join(f"{SHARED}/{name}" for name in leftovers[:MOST_NAMED])
        return Finding(check, "warning", detail, f"rm {files}")
    if free_bytes < LITTLE_SHARED_BYTES:
        detail += ": too little for engines on several cards (NCCL)"
        do = f"mount -o remount,size=50% {SHARED}; in a container --ipc=host or --shm-size=16g"
        return Finding(check, "warning", detail, do)
    return Finding(check, "ok", detail)


def ports_finding(
    host: str, ports: range, taken: int, outgoing: range | None, problem: str | None
) -> Finding:
    """Return whether engines can be given ports. `outgoing` are those that the kernel hands out."""
    where = f"{ports[0]}-{ports[-1]} on {host}"
    other = "set LLMGW_PORT_RANGE to another range"
    if problem is not None:
        do = "set LLMGW_HOST to an address of this machine"
        return Finding("ports", "fault", f"{host}: {problem}", do)
    if taken == len(ports):
        do = f"ss -ltnp shows who has them; {other}"
        return Finding("ports", "fault", f"all of {where} are taken", do)
    detail = f"{len(ports) - taken} of {len(ports)} are free, {where}"
    if outgoing is not None and ports[0] < outgoing.stop and outgoing.start <= ports[-1]:
        detail += f"; the kernel gives {outgoing[0]}-{outgoing[-1]} to outgoing connections"
        return Finding("ports", "warning", detail, other)
    return Finding("ports", "ok", detail)
