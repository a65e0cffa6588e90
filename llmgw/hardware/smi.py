"""Asks nvidia-smi, and hands its texts to the parsers.

The only user of the program; `discover` and `captures` call it. Each run is bounded, and leaves
nothing behind that can be ended.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware import smi_failures
from llmgw.hardware.reports import Report, ReportedCard
from llmgw.hardware.running import MOST_BYTES, Output, run
from llmgw.hardware.smi_list import Listing, UnreadableCard, parse_listing, unreadable_cards
from llmgw.hardware.smi_xml import begins_report, holds_report, parse_report
from llmgw.hardware.topology import Topology, parse_topology
from llmgw.hardware.types import Excluded

_MOST_CARDS = 256


class Smi(msgspec.Struct, frozen=True):
    """The program and how long one run of it may take."""

    program: str = "nvidia-smi"
    timeout_seconds: float = 30.0

    async def run(self, *arguments: str) -> Output:
        """Run the program once.

        Raises `BackendUnavailable` if it is missing, hangs, is killed or prints without end;
        an exit code is the caller's to judge, since some come with a good answer.
        """
        command = (self.program, *arguments)
        try:
            output = await run(command, timeout_seconds=self.timeout_seconds)
        except FileNotFoundError as error:
            raise BackendUnavailable(smi_failures.missing(self.program)) from error
        except OSError as error:
            raise BackendUnavailable(smi_failures.not_runnable(self.program, error)) from error
        if output.ended == "in-flight":
            raise BackendUnavailable(smi_failures.in_flight(self.program))
        if output.ended == "hung":
            raise BackendUnavailable(smi_failures.hung(command, self.timeout_seconds))
        if output.ended == "endless":
            raise BackendUnavailable(smi_failures.too_long(self.program, MOST_BYTES))
        if output.code < 0:
            raise BackendUnavailable(smi_failures.killed(command, -output.code))
        return output

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
                lost[unreadable[0].pci] = _unreachable(index, unreadable[0])
            else:
                break
        report = replace(whole, cards=tuple(cards), attached=None)
        return report, tuple(lost.values())


def _unreachable(index: int, card: UnreadableCard) -> Excluded:
    said = card.text.lower()
    reason = "no-permission" if "permission" in said else "lost"
    reason = "needs-reset" if "reset" in said else reason
    detail = f"the driver cannot open the card at {card.pci}: {card.text or 'no reason given'}"
    return Excluded(card=index, reason=reason, detail=detail)


def _answered(report: Report) -> Report:
    if not report.cards:
        attached = f"{report.attached} are attached" if report.attached else "none is attached"
        raise BackendUnavailable(
            f"nvidia-smi reports no card, {attached}: check lspci, dmesg, and in a container that"
            " cards were given to it"
        )
    return report
