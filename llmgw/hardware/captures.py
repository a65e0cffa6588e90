"""Captures: a folder of what both backends answered, without what identifies a machine's owner.

`write_capture` makes one (`llmgw agent inventory --capture DIR`), `read_capture` and
`read_nvml_capture` discover from one (`--from DIR`). A user's bug report so becomes a test. UUIDs
and PCI addresses stay, since the outputs are joined by them; what `scrub` takes out is counted.
"""

from __future__ import annotations

import codecs
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable, UsageError
from llmgw.files import NoRegularFile, read_regular
from llmgw.hardware.assemble import assemble
from llmgw.hardware.host import host_memory, owners, parse_meminfo
from llmgw.hardware.nvml import Nvml, parse_record, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_record import Record, Refusal
from llmgw.hardware.running import Output
from llmgw.hardware.scrub import Scrubber
from llmgw.hardware.smi import Smi
from llmgw.hardware.smi_failures import explain
from llmgw.hardware.smi_list import parse_listing
from llmgw.hardware.smi_xml import begins_report, parse_report
from llmgw.hardware.topology import parse_topology
from llmgw.hardware.types import Inventory

LISTING_FILE = "nvidia-smi-L.txt"
REPORT_FILE = "nvidia-smi-q-x.xml"
TOPOLOGY_FILE = "nvidia-smi-topo-m.txt"
MEMORY_FILE = "meminfo.txt"
RECORD_FILE = "nvml.json"

_COMMANDS = {LISTING_FILE: ("-L",), REPORT_FILE: ("-q", "-x"), TOPOLOGY_FILE: ("topo", "-m")}
_MOST_BYTES = 64 * 2**20
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

SCRUBBED_FILE = "scrubbed.txt"


class Capture(msgspec.Struct, frozen=True):
    """What was written: the files, and how much of each kind was taken out of them."""

    files: tuple[Path, ...]
    removed: dict[str, int] = {}

    def said(self) -> str:
        """What was taken out, in words."""
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(self.removed.items()))
        return f"taken out: {found or 'nothing, there was none of what is taken out'}"


async def write_capture(smi: Smi, nvml: Nvml, folder: Path) -> Capture:
    """Write what the tool prints and what NVML answers, scrubbed, into a folder.

    A backend that fails is captured with what it said: that is what a report of a fault needs.
    Raises `BackendUnavailable` if the program is missing or hangs and NVML does not answer either,
    `UsageError` if the folder cannot be written.
    """
    hosts, users = await anyio.to_thread.run_sync(owners)
    scrubber = Scrubber(hosts, users)
    record = await nvml.record()
    if isinstance(record, Failure):
        record = Record(failure=Refusal("no-answer", said=record.reason))
    texts = {RECORD_FILE: _encoded(scrubber.record(record))}
    try:
        for name, arguments in _COMMANDS.items():
            said = _said(await smi.run(*arguments))
            texts[name] = scrubber.report(said) if name == REPORT_FILE else scrubber.text(said)
    except BackendUnavailable:
        if record.failure is not None:
            raise
    memory = await anyio.to_thread.run_sync(host_memory)
    if memory is not None:
        texts[MEMORY_FILE] = f"MemTotal: {memory.total_bytes // 1024} kB\n"
    capture = Capture((), dict(scrubber.removed))
    texts[SCRUBBED_FILE] = f"{capture.said()}\n"
    return replace(capture, files=await anyio.to_thread.run_sync(_write, folder, texts))


def _encoded(record: Record) -> str:
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def _said(output: Output) -> str:
    """What a run printed; what it said on the error stream only where it said nothing else."""
    return output.stdout if output.stdout.strip() else output.stderr


def _write(folder: Path, texts: dict[str, str]) -> tuple[Path, ...]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{folder}: the capture cannot be written ({error.strerror}): name a folder that can"
        ) from error
    return tuple(folder / name for name in texts)


def read_capture(node: str, folder: Path) -> Inventory:
    """The inventory in a captured folder. Blocks on files; call it in a worker thread.

    Raises `UsageError` if the folder holds no capture, `BackendUnavailable` if what it holds is
    no report.
    """
    text = _read(folder / REPORT_FILE)
    if text is None:
        raise lacks(folder, REPORT_FILE)
    try:
        return _assembled(node, folder, text)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{folder / REPORT_FILE}: {error}") from error


def read_nvml_capture(node: str, folder: Path) -> Inventory | Failure | None:
    """The inventory that NVML's answers in a captured folder tell; `None` if it holds none.

    Blocks on files; call it in a worker thread. Raises `UsageError` if they cannot be read.
    """
    text = _read(folder / RECORD_FILE)
    if text is None:
        return None
    host = parse_meminfo(_read(folder / MEMORY_FILE) or "")
    return read_record(node, parse_record(text), host=host)


def lacks(folder: Path | None, name: str) -> UsageError:
    """The error for a folder that lacks a file of a capture."""
    is_there = folder is None or folder.is_dir()
    return UsageError(
        f"{f'{folder} holds no {name}' if is_there else f'there is no folder {folder}'}: make a"
        " capture with llmgw agent inventory --capture DIR, or name the folder that holds one"
    )


def _assembled(node: str, folder: Path, text: str) -> Inventory:
    if not begins_report(text):
        raise BackendUnavailable(explain(None, text))
    report = parse_report(text)
    if not report.cards:
        raise BackendUnavailable("the report lists no card: nothing can be discovered from it")
    return assemble(
        node,
        report,
        parse_listing(_read(folder / LISTING_FILE) or ""),
        topology=parse_topology(_read(folder / TOPOLOGY_FILE) or ""),
        host=parse_meminfo(_read(folder / MEMORY_FILE) or ""),
    )


def _read(path: Path) -> str | None:
    """A file's text, or `None` if it is not there. Raises `UsageError` if it cannot be read."""
    try:
        data = read_regular(path, _MOST_BYTES + 1)
    except NoRegularFile as error:
        raise UsageError(f"{path} is no regular file: it is not of a capture") from error
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} is larger than any output of nvidia-smi: it is not a capture")
    return _decoded(data)


def _decoded(data: bytes) -> str:
    """The text of a file that may have been made by hand, where a shell chose its encoding."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.removeprefix(mark).decode(encoding, "replace")
    return data.decode("utf-8", "replace")
