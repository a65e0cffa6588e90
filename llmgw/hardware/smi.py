"""Runs nvidia-smi, bounded in time and output, and hands its texts to the parsers.

The only user of the program; `discover` and `captures` call it. Every run is a process group of
its own, which is asked to end and then made to, so that a hanging tool leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
from subprocess import DEVNULL, PIPE

import anyio
import anyio.abc
import msgspec
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware import smi_failures
from llmgw.hardware.smi_list import Listing, parse_listing, unreadable_cards
from llmgw.hardware.smi_xml import Report, ReportedCard, begins_report, holds_report, parse_report
from llmgw.hardware.topology import Topology, parse_topology
from llmgw.hardware.types import Excluded

_MOST_BYTES = 64 * 2**20
_GRACE_SECONDS = 2.0
_MOST_CARDS = 64


class Output(msgspec.Struct, frozen=True):
    """What one run printed, and its exit code."""

    code: int
    stdout: str
    stderr: str


class Smi(msgspec.Struct, frozen=True):
    """The program and how long one run of it may take."""

    program: str = "nvidia-smi"
    timeout_seconds: float = 30.0

    async def run(self, *arguments: str) -> Output:
        """Run the program once.

        Raises `BackendUnavailable` if it is missing, hangs, is killed or prints without end;
        an exit code is the caller's to judge, since some come with a good answer.
        """
        process = await self._start(arguments)
        try:
            with anyio.move_on_after(self.timeout_seconds) as limit:
                output = await _collect(process, self.program)
            if limit.cancelled_caught:
                message = smi_failures.hung(self.program, arguments, self.timeout_seconds)
                raise BackendUnavailable(message)
        finally:
            await _end(process)
        if output.code < 0:
            raise BackendUnavailable(smi_failures.killed(self.program, arguments, -output.code))
        return output

    async def _start(self, arguments: tuple[str, ...]) -> anyio.abc.Process:
        try:
            return await anyio.open_process(
                [self.program, *arguments],
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise BackendUnavailable(smi_failures.missing(self.program)) from error
        except OSError as error:
            raise BackendUnavailable(smi_failures.not_runnable(self.program, error)) from error

    async def report(self) -> tuple[Report, tuple[Excluded, ...]]:
        """The report on all cards, and the cards that could not be reported.

        A whole report counts whatever the exit code: 14 only warns. Where one lost card keeps
        the tool from reporting any, each card is asked for by itself.
        """
        output = await self.run("-q", "-x")
        if holds_report(output.stdout):
            return _answered(parse_report(output.stdout)), ()
        if begins_report(output.stdout):
            parse_report(output.stdout)  # raises, since it has no end
        if unreadable_cards(output.stdout + output.stderr):
            report, lost = await self._card_by_card()
            if report.cards:
                return report, lost
        raise BackendUnavailable(smi_failures.explain(output.code, output.stdout, output.stderr))

    async def listing(self) -> Listing:
        """The listing; empty, with the cards that it could not open, where the tool fails."""
        output = await self.run("-L")
        return parse_listing(output.stdout)

    async def topology(self) -> Topology | None:
        """The topology, or `None` where the tool cannot tell."""
        output = await self.run("topo", "-m")
        return parse_topology(output.stdout)

    async def _card_by_card(self) -> tuple[Report, tuple[Excluded, ...]]:
        whole = Report()
        cards: list[ReportedCard] = []
        lost: dict[str, Excluded] = {}
        for index in range(_MOST_CARDS):
            output = await self.run("-q", "-x", "-i", str(index))
            unreadable = unreadable_cards(output.stdout + output.stderr)
            if holds_report(output.stdout):
                whole = parse_report(output.stdout)
                cards += [replace(c, card=replace(c.card, index=index)) for c in whole.cards[:1]]
            elif unreadable and unreadable[0].pci not in lost:
                detail = f"the driver cannot open the card at {unreadable[0].pci}"
                detail = f"{detail}: {unreadable[0].text or 'no reason given'}"
                lost[unreadable[0].pci] = Excluded(card=index, reason="lost", detail=detail)
            else:
                break
        report = replace(whole, cards=tuple(cards), attached=None)
        return report, tuple(lost.values())


def _answered(report: Report) -> Report:
    if not report.cards:
        attached = f"{report.attached} are attached" if report.attached else "none is attached"
        raise BackendUnavailable(
            f"nvidia-smi reports no card, {attached}: check lspci, dmesg, and in a container that"
            " cards were given to it"
        )
    return report


async def _collect(process: anyio.abc.Process, program: str) -> Output:
    """Both streams to their ends, and the exit code."""
    texts = {"stdout": b"", "stderr": b""}
    long = False

    async def drain(name: str, stream: anyio.abc.ByteReceiveStream) -> None:
        nonlocal long
        chunks: list[bytes] = []
        size = 0
        async for chunk in stream:
            chunks.append(chunk)
            size += len(chunk)
            if size > _MOST_BYTES:
                long = True
                group.cancel_scope.cancel()
        texts[name] = b"".join(chunks)

    async with anyio.create_task_group() as group:
        if process.stdout and process.stderr:
            group.start_soon(drain, "stdout", process.stdout)
            group.start_soon(drain, "stderr", process.stderr)
    if long:
        raise BackendUnavailable(smi_failures.too_long(program, _MOST_BYTES))
    code = await process.wait()
    return Output(
        code,
        texts["stdout"].decode("utf-8", "replace"),
        texts["stderr"].decode("utf-8", "replace"),
    )


async def _end(process: anyio.abc.Process) -> None:
    """End what still runs: politely, then by force, the whole group; then close the pipes.

    A process that the kernel holds in an uninterruptible call outlives even that. It is left
    behind rather than waited for, and is gone when the call returns.
    """
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_group(process.pid, number)
                with anyio.move_on_after(_GRACE_SECONDS):
                    await process.wait()
        if process.returncode is not None:
            await process.aclose()


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
