"""`llmgw ctl replay --diff A B` and `--around NAME`: what changed, and what touched one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llmgw.cli.context import note
from llmgw.cli.ctl_source import Span, Where, opened, parse_sequence_or_time
from llmgw.cli.options import Format

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.views.difference import Change
    from llmgw.views.explain import Explanation


def compare(asked: Where, points: tuple[str, str], views: Sequence[str], output: Format) -> None:
    """Print what differs between two points of a log."""
    import asyncio

    from llmgw.cli.output import emit
    from llmgw.views.difference import difference

    ends = [parse_sequence_or_time(point, "--diff") for point in points]
    before, after = asyncio.run(_states(asked, ends))
    found = difference(before, after, views)
    report = {"from": _moment(before), "to": _moment(after), "changes": found}
    emit(report, output, lambda _, wide: change_lines(found, wide))
    note(f"from {_at(before)} to {_at(after)}: {len(found)} differences")


async def _states(asked: Where, ends: Sequence[Span]) -> list[Cluster]:
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        return [await fold_log(source.log, end.until, until_ns=end.until_ns) for end in ends]


def _moment(state: Cluster) -> dict[str, Any]:
    from llmgw.views.shared import as_time

    time = as_time(state.time_ns)
    return {"sequence": state.sequence, **({"time": time} if time else {})}


def _at(state: Cluster) -> str:
    from llmgw.views.shared import as_time

    return f"sequence {state.sequence} ({as_time(state.time_ns) or 'before the first record'})"


def change_lines(changes: Sequence[Change], wide: bool) -> Iterator[str]:
    """Yield changes as a table."""
    from llmgw.cli.output import Column, table_lines

    columns = (
        Column("WHAT", lambda c: c.path),
        Column("", lambda c: c.kind),
        Column("BEFORE", lambda c: _shown(c.before)),
        Column("AFTER", lambda c: _shown(c.after)),
    )
    if changes:
        yield from table_lines(changes, columns, wide)
    else:
        yield "nothing differs"


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "+".join(str(_shown(inner)) for inner in value)
    return str(value).lower() if isinstance(value, bool) else value


def around(asked: Where, name: str, span: Span, output: Format) -> None:
    """Print every record that touched a replica, a model or a node, and what each changed."""
    import asyncio

    from llmgw.cli.output import emit

    emit(asyncio.run(_around(asked, name, span)), output, _around_lines)


async def _around(asked: Where, name: str, span: Span) -> Explanation:
    from llmgw import wire
    from llmgw.cli.ctl_explain import say_what_is_gone, unknown
    from llmgw.replay import foundation
    from llmgw.replay import span as messages
    from llmgw.views.explain import Explanations

    async with opened(asked) as source:
        bounds = await source.log.bounds()
        base = await foundation(source.log, bounds)
        if span.until is not None and span.until < base.sequence:
            base = await foundation(source.log, bounds, span.until)  # or says what is missing
        if span.until_ns is not None and span.until_ns < base.time_ns:
            base = await foundation(source.log, bounds, bounds.first)  # or says what is missing
        say_what_is_gone(base.sequence)
        touching = Explanations(name, closely=True, state=base)
        begin = base.sequence + 1
        until, until_ns = span.until, span.until_ns
        async for batch in messages(
            source.log, start=begin, until=until, until_ns=until_ns, beyond=True
        ):
            for m in batch:
                touching.take(wire.decode(m.sequence, m.time_ns, m.subject, m.payload))
    found = touching.found()
    if found is None:
        raise unknown(name, source.cluster, touching.state)
    return found


def _around_lines(found: Explanation, wide: bool) -> Iterator[str]:
    from llmgw.cli.ctl_explain import why
    from llmgw.cli.output import Column, table_lines

    columns = (
        Column("SEQUENCE", lambda s: s.sequence, right=True),
        Column("TIME", lambda s: s.time),
        Column("STEP", lambda s: s.kind),
        Column("TYPE", lambda s: s.type, wide=True),
        Column("NODE", lambda s: s.node),
        Column("WHAT", lambda s: s.summary),
        Column("CHANGED", lambda s: s.changed),
        Column("WHY", why, wide=True),
    )
    yield from table_lines(found.steps, columns, wide)
    yield ""
    yield f"Then {found.now}."
