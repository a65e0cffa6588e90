"""What a backend reports of each card, before it is joined and judged.

Pure. `smi_xml` fills these from the tool's XML and `nvml_report` from the library's answers;
`assemble` makes one inventory of them, so that both backends are judged by the same rules.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from llmgw.hardware.types import Card, Process

Trouble = Literal["lost", "needs-reset", "no-permission"]

MOST_PID = 2**22
"""No kernel gives a pid from here on: a greater one is a driver filling another structure."""


class ReportedProcess(msgspec.Struct, frozen=True):
    """A process on a card and, in MIG mode, the instance that it runs on."""

    process: Process
    gpu_instance: int | None = None
    compute_instance: int | None = None


class ReportedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance. The XML of most drivers gives neither its UUID nor its profile.

    `slices` are the compute slices of its GPU instance, `compute_slices` its own. `trouble` says
    why it could not be read.
    """

    index: int
    uuid: str | None = None
    profile: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    multiprocessors: int | None = None
    slices: int | None = None
    compute_slices: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: float | None = None
    trouble: str | None = None


class BareInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that holds no compute instance, so that nothing can use it."""

    id: int
    slices: int | None = None
    memory_bytes: int | None = None


class ReportedCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card. `card.index` is its position in the report, `card.uuid` empty if not given.

    `processes` is `None` where the driver does not tell. `coherent` is set where the card
    addresses the system's memory (ATS). `fabric_status` is the fabric's own verdict.
    `bare` are GPU instances without a compute instance, which only NVML tells, and only root.
    """

    card: Card
    architecture: str | None = None
    instances: tuple[ReportedInstance, ...] = ()
    bare: tuple[BareInstance, ...] = ()
    processes: tuple[ReportedProcess, ...] | None = None
    trouble: Trouble | None = None
    memory_absent: bool = False
    coherent: bool = False
    fabric_status: str | None = None

    @property
    def bare_gpu_instances(self) -> tuple[int, ...]:
        """The ids of the GPU instances without a compute instance."""
        return tuple(one.id for one in self.bare)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All cards of a machine. `outside` are lines that the tool printed around its report.

    `attached` is how many cards the driver counts, where cards may be missing unsaid.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    attached: int | None = None
    cards: tuple[ReportedCard, ...] = ()
    outside: tuple[str, ...] = ()


def processes_or_unknown(
    found: list[ReportedProcess],
) -> tuple[ReportedProcess, ...] | None:
    """Each process once per instance; `None` if one cannot exist, since then no line is true.

    Drivers 535.43 to 535.98 filled a longer structure than the one that is read, and so gave
    pids of 0 and 4294967295.
    """
    if any(not 0 < entry.process.pid < MOST_PID for entry in found):
        return None
    once: dict[tuple[int, int | None, int | None], ReportedProcess] = {}
    for entry in found:
        key = (entry.process.pid, entry.gpu_instance, entry.compute_instance)
        once.setdefault(key, entry)
    return tuple(once.values())
