"""Asks NVML in a short program of its own, and reads the answers.

The only user of the probe; `discover` and `captures` call it. A failure is a value here, since
`auto` goes on to nvidia-smi with it; whoever asked for NVML by name raises it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TypeVar

import msgspec
from anyio import to_thread

from llmgw.errors import BackendUnavailable
from llmgw.hardware import nvml_failures
from llmgw.hardware.assemble import ECC_UNCORRECTED_LIMIT, HostMemory, assemble
from llmgw.hardware.nvml_failures import SONAME, Failure
from llmgw.hardware.nvml_links import topology_of
from llmgw.hardware.nvml_record import Record, Refusal
from llmgw.hardware.nvml_report import ReadsCard, report_of, unreachable_of
from llmgw.hardware.running import run
from llmgw.hardware.smi_list import Listing
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import Inventory

R = TypeVar("R", bound=Record)

_PROBE = Path(__file__).with_name("nvml_probe.py")
_STAY = Path(__file__).with_name("nvml_stay.py")


class Nvml(msgspec.Struct, frozen=True):
    """The library to load (`None`: the system's) and how long one look may take."""

    library: str | None = None
    timeout_seconds: float = 30.0
    worn_errors: int = ECC_UNCORRECTED_LIMIT

    async def record(self) -> Record | Failure:
        """What NVML answers now. A record may itself say that NVML refused to be asked."""
        command = await to_thread.run_sync(probe_command, self.library)
        if command is None:
            return Record(failure=Refusal("binding-missing"))
        try:
            output = await run(command, timeout_seconds=self.timeout_seconds)
        except OSError as error:
            return nvml_failures.crashed(error.errno or 1, str(error))
        if output.ended == "in-flight":
            return nvml_failures.in_flight()
        if output.ended == "hung":
            return nvml_failures.hung(self.timeout_seconds)
        if output.ended == "endless" or output.code != 0:
            return nvml_failures.crashed(output.code, output.stderr)
        return parse_record(output.stdout)


def probe_command(library: str | None, *, stays: bool = False) -> tuple[str, ...] | None:
    """The command that asks NVML, once or for as long as it runs.

    `None` where the binding is not installed. `-P` keeps the folder of the programs off the path:
    modules beside them are named as Python's own.
    """
    try:
        if importlib.util.find_spec("pynvml") is None:
            return None
    except ValueError:  # what stands in its place is no module
        return None
    return (sys.executable, "-P", str(_STAY if stays else _PROBE), library_file(library))


def library_file(named: str | None) -> str:
    """The library as it is loaded: by its plain name, by its path, or out of a folder."""
    if named is None:
        return SONAME
    return str(Path(named) / SONAME) if Path(named).is_dir() else named


def parse_record(text: str | bytes) -> Record | Failure:
    """The record in a text."""
    return parse(text, Record)


def parse(text: str | bytes, kind: type[R]) -> R | Failure:
    """A record, or what goes on from one, in a text."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        return nvml_failures.garbled(error)


def read_record(
    node: str,
    record: Record | Failure,
    *,
    library: str | None = None,
    host: HostMemory | None,
    topology: Topology | None = None,
    reads: ReadsCard | None = None,
    worn_errors: int = ECC_UNCORRECTED_LIMIT,
) -> Inventory | Failure:
    """The inventory that a record tells, or why it tells none.

    `topology` is one known before, `reads` a way to read a card that knows what it has read.
    """
    if isinstance(record, Failure):
        return record
    if record.failure is not None:
        return nvml_failures.refused(record.failure, library or SONAME)
    report = report_of(record, reads)
    if not report.cards:
        return nvml_failures.no_card(record)
    try:
        return assemble(
            node,
            report,
            Listing(),
            topology=topology or topology_of(record),
            host=host,
            unreachable=unreachable_of(record),
            backend="nvml",
            ecc_uncorrected_limit=worn_errors,
        )
    except BackendUnavailable as error:
        return nvml_failures.garbled(error)
