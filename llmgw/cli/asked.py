"""What the commands share that ask for something: showing the consequence, asking, the answer.

`ctl_apply` asks for a catalog, `ctl_ask` for all else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from llmgw.cli.context import note
from llmgw.cli.options import Format

if TYPE_CHECKING:
    from llmgw.catalog.diff import CatalogDiff, FieldChange
    from llmgw.core.cluster import Cluster
    from llmgw.core.events import Event
    from llmgw.core.records import Record
    from llmgw.log.base import Log
    from llmgw.views import Forecast, Step

SAID_NO = 4

T = TypeVar("T")

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would come of it, and write nothing.")
]
Wait = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the answer.")
]


async def heard(
    log: Log,
    state: Cluster,
    wait_seconds: float,
    answer_in: Callable[[Record, bool], T | None],
) -> T | None:
    """Fold what the log says from `state` on, until something in it is the answer, or too late.

    `answer_in` is asked of each record once it is folded, and told whether the fold voided it.
    """
    import asyncio

    from llmgw.core.fold import apply as fold
    from llmgw.replay import records

    try:
        async with asyncio.timeout(wait_seconds):
            async for record in records(log, start=state.sequence + 1):
                voided = state.void
                fold(state, record)
                answer = answer_in(record, state.void > voided)
                if answer is not None:
                    return answer
    except TimeoutError:
        pass
    return None


def foresee(state: Cluster, request: Event) -> Forecast:
    """Return what would come of a request. Raises `LlmgwError` where nothing can be decided."""
    from llmgw.errors import LlmgwError
    from llmgw.views import forecast

    if state.needs_upgrade is not None:
        raise LlmgwError(f"the log holds {state.needs_upgrade}: upgrade llmgw to decide on it")
    return forecast(state, request)


def show_forecast(
    found: Forecast, output: Format, *, whole: bool, changes: CatalogDiff | None = None
) -> None:
    """Print a forecast. Exits with 4 where the answer is no.

    That is a request that would be rejected, or a replica without a place: any with `whole`, else
    one that had a place before.
    """
    import msgspec

    from llmgw.cli.output import emit

    said: dict[str, Any] = msgspec.to_builtins(found)
    said |= {"steps": said.get("steps", []), "settled": found.settled}
    if changes is not None:
        said = {"changes": msgspec.to_builtins(changes), **said}
    emit(said, output, lambda _, wide: _forecast_lines(found, changes, wide))
    if not found.settled:
        note("the forecast ends here: it goes on changing")
    if found.rejected or any(_is_no(step, whole) for step in found.steps):
        raise typer.Exit(SAID_NO)


def _is_no(step: Step, whole: bool) -> bool:
    return step.action == "cannot" and (whole or not step.good)


def _forecast_lines(found: Forecast, changes: CatalogDiff | None, wide: bool) -> Iterator[str]:
    from llmgw.cli.tables import view_lines

    if found.rejected:
        yield "the catalog would be rejected:"
        yield from (f"  {reason}" for reason in found.rejected)
        return
    if changes is not None and not changes.empty:
        yield from diff_lines(changes)
        yield ""
    shown = found.steps if wide else found.changes
    yield from view_lines(shown, wide)
    kept = sum(step.action == "keep" for step in found.steps)
    if kept and not wide:
        yield f"{kept} {'replica stays as it is' if kept == 1 else 'replicas stay as they are'}"
    elif not found.steps:
        yield "nothing would run, as now"


def diff_lines(changes: CatalogDiff) -> Iterator[str]:
    """Yield one line for each model that comes, goes or changes."""
    yield from (f"+ {name}" for name in changes.added)
    yield from (f"- {name}" for name in changes.removed)
    for entry in changes.changed:
        fields = ", ".join(map(_field, entry.fields))
        yield f"~ {entry.name}: {fields}"


def _field(change: FieldChange) -> str:
    from llmgw.masking import visible

    before, after = _value(change.field, change.before), _value(change.field, change.after)
    return visible(f"{change.field} {before} -> {after}")


def _value(field: str, value: object) -> str:
    from llmgw.cli.tables import as_size

    if value is None:
        return "none"
    if field == "memory" and isinstance(value, int):
        return str(as_size(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return that there is no such thing, and which are near, or what there is."""
    from llmgw.catalog.report import nearest
    from llmgw.masking import visible

    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        hint = f"; did you mean {near}?"
    elif names:
        more = ", …" if len(names) > 10 else ""
        hint = f"; there are {', '.join(names[:10])}{more}"
    else:
        hint = "; there are none"
    return f"there is no {kind} {visible(name[:80])!r}{hint}"
