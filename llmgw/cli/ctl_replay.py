"""`llmgw ctl replay`: the log folded again, to see a view as it was, or to verify decisions.

Works on the live log and on an archive alike. What else replay can do is in modules of its own:
stepping through time in `ctl_watch`, comparing in `ctl_compare`, asking "if" in `ctl_what_if`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.ctl_show import show
from llmgw.cli.ctl_source import ArchiveFile, Live, Span, Where, opened, parse_span, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.decide import Intention
    from llmgw.core.verify import Difference, Verdict

SAID_NO = 4


To = Annotated[
    str | None,
    typer.Option(
        metavar="SEQ|TIME",
        help="Up to where: a sequence, 2026-03-01T14:05:00Z, 14:05 (UTC), '10 minutes ago'.",
        show_default=False,
    ),
]
ViewName = Annotated[
    str | None,
    typer.Option(help="status (without it), nodes, devices or replicas.", show_default=False),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Decide everything again; exit with 4 at a difference.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Step through time with the keyboard.")]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="What changed between two points.", show_default=False),
]
Around = Annotated[
    str | None,
    typer.Option(
        metavar="REPLICA|MODEL|NODE",
        help="Everything that touched it, and what each record changed.",
        show_default=False,
    ),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHANGE",
        help="What would be decided if: catalog=FILE, policy=pack, policy=MODEL:spread, "
        "without-node=NAME, with-node=NAME:CAPTURE, lost-node=NAME@SEQ. Can be repeated.",
        show_default=False,
    ),
]


def replay(
    to: To = None,
    view: ViewName = None,
    verify: Verify = False,
    watch: Watch = False,
    diff: Diff = None,
    around: Around = None,
    what_if: WhatIf = None,
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Fold the log up to a point and show a view as it was then.

    With --verify every recorded decision and command is decided again from the state that it was
    made on. The first one that would be another now is shown with both sides. Nothing is written
    by any of it.
    """
    import asyncio

    from llmgw.cli import ctl_compare, ctl_watch, ctl_what_if

    asked = where(archive, nats_url, cluster, data, live=live)
    views = _views(view, verify=verify, around=around, what_if=what_if)
    mode = _only_one(verify=verify, watch=watch, diff=diff, around=around, what_if=what_if)
    if diff is not None and to is not None:
        raise UsageError("--diff and --to do not go together: name both points after --diff")
    span = parse_span(None, to)
    if mode == "verify":
        _say(asyncio.run(_verify(asked, span)), output)
    elif mode == "watch":
        ctl_watch.watch(asked, view or "status", span)
    elif diff is not None:
        ctl_compare.compare(asked, diff, views, output)
    elif around is not None:
        ctl_compare.around(asked, around, span, output)
    elif what_if:
        ctl_what_if.what_if(asked, what_if, span, output)
    else:
        show(view or "status", output, asked, span, then=True)


def _views(view: str | None, **modes: object) -> list[str]:
    """Return the view that was asked for, having checked that there is such a one."""
    from llmgw.views import VIEWS

    for mode, value in modes.items():
        if value and view is not None:
            raise UsageError(f"--{mode.replace('_', '-')} and --view do not go together")
    if view is not None and view not in VIEWS:
        raise UsageError(f"there is no view {view!r:.60}; there are {', '.join(VIEWS)}")
    return [] if view is None else [view]


def _only_one(**modes: object) -> str | None:
    """Return which of the things that replay can do was asked for. Raises `UsageError` for two."""
    given = [f"--{mode.replace('_', '-')}" for mode, value in modes.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} do not go together")
    return given[0].removeprefix("--") if given else None


async def _verify(asked: Where, span: Span) -> Verdict:
    from llmgw.replay import verify_log

    async with opened(asked) as source:
        return await verify_log(source.log, source.cluster, span.until, until_ns=span.until_ns)


def _say(verdict: Verdict, output: Format) -> None:
    """Print a verdict, and end the program with 4 if it found a difference."""
    from llmgw.cli.output import emit
    from llmgw.errors import LlmgwError

    emit(_report(verdict), output, lambda _, __: _lines(verdict))
    if verdict.difference is not None or verdict.changed:
        raise typer.Exit(SAID_NO)
    if verdict.needs_upgrade is not None:
        raise LlmgwError(
            f"verified up to sequence {verdict.sequence} only: there the log holds "
            f"{verdict.needs_upgrade}. Upgrade llmgw to decide on it"
        )


def _report(verdict: Verdict) -> dict[str, Any]:
    import msgspec

    from llmgw import __version__
    from llmgw.views import events

    report = msgspec.structs.asdict(verdict)
    report.pop("first_change")
    found: Difference | None = report.pop("difference") or verdict.first_change
    if report["needs_upgrade"] is None:
        del report["needs_upgrade"]
    report |= {"llmgw_version": __version__, "agreed": found is None}
    if found is not None:
        sides = {"recorded": found.recorded, "decided": found.decided}
        report["difference"] = {
            "sequence": found.sequence,
            "at": found.at,
            "what": found.what,
            "fields": list(found.fields),
            **({"llmgw_version": found.version} if found.version else {}),
            **{name: _side(side) for name, side in sides.items() if side is not None},
            **({"event": events([found.event])[0]} if found.event is not None else {}),
        }
    return report


def _side(intention: Intention) -> dict[str, Any]:
    from llmgw.views.summaries import summary

    return {"type": intention.wire, "summary": summary(intention), "data": intention}


def _lines(verdict: Verdict) -> Iterator[str]:
    if verdict.difference is not None:
        yield from _difference_lines(verdict.difference)
        yield f"Before it, {_counts(verdict)} agree."
    elif verdict.first_change is not None:
        yield from _change_lines(verdict, verdict.first_change)
    elif verdict.rounds:
        terms = _plural(verdict.terms, "term")
        yield f"Every decision agrees: {_counts(verdict)} in {terms}, up to {verdict.sequence}."
    else:
        yield f"Nothing was decided up to sequence {verdict.sequence}."
    remarks = {
        "rounds end early, by a crash or with the log: what was written of them agrees": (
            verdict.cut_off
        ),
        "records came after their term was over: void, not decided again": verdict.outdated,
        "records of controllers cannot be read": verdict.unread,
    }
    yield from (f"{count} {remark}." for remark, count in remarks.items() if count)


def _counts(verdict: Verdict) -> str:
    return f"{_plural(verdict.decisions, 'decision')} and {_plural(verdict.commands, 'command')}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _difference_lines(found: Difference) -> Iterator[str]:
    yield f"The log and this llmgw part ways at {_place(found)}: {found.what}."
    yield from _side_lines(found)


def _change_lines(verdict: Verdict, found: Difference) -> Iterator[str]:
    from llmgw import __version__

    who = f"llmgw {found.version}" if found.version else "an older llmgw"
    yield (
        f"{who} decided otherwise than this one ({__version__}) would, "
        f"{_plural(verdict.changed, 'time')}. First at {_place(found)}: {found.what}."
    )
    yield from _side_lines(found)
    yield f"All else agrees: {_counts(verdict)}, up to {verdict.sequence}."


def _place(found: Difference) -> str:
    side = found.recorded or found.decided
    return f"sequence {found.sequence}, {side.wire if side is not None else 'a decision'}"


def _side_lines(found: Difference) -> Iterator[str]:
    from llmgw.views import events
    from llmgw.views.summaries import summary

    if found.event is not None:
        (row,) = events([found.event])
        yield f"  decided on:    sequence {found.at}, {row.type}: {row.summary}"
    yield f"  recorded:      {summary(found.recorded) if found.recorded else 'nothing'}"
    if found.event is not None:
        yield f"  decided again: {summary(found.decided) if found.decided else 'nothing'}"
    if found.fields:
        yield f"  differs in:    {', '.join(found.fields)}"
