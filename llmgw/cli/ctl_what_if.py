"""`llmgw ctl replay --what-if`: what would be decided if something were otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from llmgw.cli.context import note
from llmgw.cli.ctl_source import Span, Where, opened
from llmgw.cli.options import Format
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.views.whatif import Decided, Fact, WhatIf

_FORMS = (
    "catalog=FILE, policy=pack, policy=MODEL:spread, without-node=NAME, with-node=CAPTURE or "
    "with-node=NAME:CAPTURE, lost-node=NAME@SEQ"
)


class _Supposed(NamedTuple):
    """One thing that is supposed: its name, and what was written after `=`."""

    kind: str
    value: str


def what_if(asked: Where, changes: Sequence[str], span: Span, output: Format) -> None:
    """Print what would differ if the changes were so at the end of `span`."""
    import asyncio

    from llmgw.cli.output import emit

    supposed = [_parsed(change) for change in changes]
    span = _point(supposed, span)
    found = asyncio.run(_ask(asked, supposed, changes, span))
    emit(found, output, _lines)
    note(f"asked at sequence {found.sequence}; nothing was written")
    if not found.settled:
        note("the decisions did not come to rest: what is shown is how far they came")


def _parsed(change: str) -> _Supposed:
    kind, equals, value = change.partition("=")
    if not equals or not value or kind not in _MAKERS:
        raise UsageError(f"--what-if {change!r:.80} is not understood: write {_FORMS}")
    return _Supposed(kind, value)


def _point(supposed: Sequence[_Supposed], span: Span) -> Span:
    """Return where to ask: at the sequence at which a node is lost, if one is."""
    points = {_lost(one.value)[1] for one in supposed if one.kind == "lost-node"}
    if not points:
        return span
    if len(points) > 1 or span != Span():
        raise UsageError(
            "--what-if is asked at one point: lost-node=NAME@SEQ names it, so leave out --to, and "
            "name one SEQ"
        )
    return Span(until=points.pop())


async def _ask(
    asked: Where, supposed: Sequence[_Supposed], words: Sequence[str], span: Span
) -> WhatIf:
    from llmgw.replay import fold_log
    from llmgw.views import whatif

    async with opened(asked) as source:
        state = await fold_log(source.log, span.until, until_ns=span.until_ns)
    if state.needs_upgrade is not None:
        raise UsageError(f"the log holds {state.needs_upgrade}: upgrade llmgw to decide on it")
    facts = [fact for one in supposed for fact in _MAKERS[one.kind](state, one.value)]
    return whatif.what_if(state, facts, words)


def _catalog(_: Cluster, value: str) -> list[Fact]:
    from llmgw.catalog.load import load
    from llmgw.views import whatif

    checked = load(Path(value))
    for warning in checked.warnings:
        note(f"warning: {warning}")
    return whatif.with_catalog(checked.catalog)


def _policy(state: Cluster, value: str) -> list[Fact]:
    from llmgw.catalog.entries import Policy
    from llmgw.views import whatif

    model, _, policy = value.rpartition(":")
    if policy not in get_args(Policy):
        raise UsageError(f"there is no policy {policy!r}; there are {', '.join(get_args(Policy))}")
    try:
        return whatif.with_policy(state, policy, model or None)  # type: ignore[arg-type]
    except KeyError:
        raise UsageError(f"no model {model!r} was in the catalog then") from None


def _without(state: Cluster, value: str) -> list[Fact]:
    from llmgw.views import whatif

    try:
        return whatif.without_node(state, value)
    except KeyError:
        known = ", ".join(state.nodes) or "none"
        raise UsageError(f"the log knew no node {value!r:.60} then; there were {known}") from None


def _with(state: Cluster, value: str) -> list[Fact]:
    from llmgw.hardware.captures import read_capture
    from llmgw.views import whatif
    from llmgw.wire import check_token

    name, colon, folder = value.rpartition(":")
    name = check_token(name, "the node") if colon else f"new-{len(state.nodes) + 1}"
    if name in state.nodes:
        raise UsageError(f"there was a node {name} already: name the new one with NAME:CAPTURE")
    return whatif.with_node(read_capture(name, Path(folder)))


def _lose(state: Cluster, value: str) -> list[Fact]:
    return _without(state, _lost(value)[0])


def _lost(value: str) -> tuple[str, int]:
    name, _, sequence = value.rpartition("@")
    if not name or not (sequence.isascii() and sequence.isdecimal() and len(sequence) < 19):
        raise UsageError(f"--what-if lost-node={value!r:.60} is not understood: write NAME@SEQ")
    return name, int(sequence)


_MAKERS: Mapping[str, Callable[[Cluster, str], list[Fact]]] = {
    "catalog": _catalog,
    "policy": _policy,
    "without-node": _without,
    "with-node": _with,
    "lost-node": _lose,
}


def _lines(found: WhatIf, wide: bool) -> Iterator[str]:
    from llmgw.cli.ctl_compare import change_lines
    from llmgw.cli.output import Column, table_lines

    columns = (
        Column("DECISION", lambda d: d.type),
        Column("WHAT", lambda d: d.summary),
        Column("WHY", _why, whole=True),
    )
    for title, decisions in (
        ("Would be decided:", found.decisions),
        ("And these not:", found.instead_of),
    ):
        if decisions:
            yield title
            yield from table_lines(decisions, columns, wide)
            yield ""
    if not found.decisions and not found.instead_of:
        yield "The same would be decided."
        yield ""
    yield "Once all is decided and done, against how it would be as it is:"
    yield from change_lines(found.differences, wide)


def _why(decision: Decided) -> tuple[str, ...]:
    from llmgw.views.summaries import counted

    refused = f"refused elsewhere: {counted(decision.refusals)}" if decision.refusals else ""
    return tuple(filter(None, (*decision.reasons, refused)))
