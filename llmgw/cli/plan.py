"""`llmgw plan`: how models could run on what the cluster has, and what a catalog would do.

Writes nothing. Without a log it plans for well-known classes of card; it reads the headers of a
model's files and never its weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.asked import SAID_NO
from llmgw.cli.context import note
from llmgw.cli.ctl_source import opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.catalog.entries import Catalog, Entry
    from llmgw.core.cluster import Cluster
    from llmgw.models.types import Metadata, Unknown
    from llmgw.views.forecast import Forecast
    from llmgw.views.plan import ModelPlan, Offer, Wish

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")
_BY_HAND = "by-hand"
LEAST_COUNTED = 20
"""Replicas that are counted of every model of a large catalog, which then is planned in seconds."""


def size(text: str) -> int:
    """Return `16GiB`, `128KiB` or `80GB` in bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise typer.BadParameter(f"{text!r:.40} is no size; write 16GiB, 900MiB or 80GB")
    return round(float(match[1]) * _UNITS[match[2].upper()])


CatalogFile = Annotated[Path | None, typer.Argument(help="A catalog in YAML.", show_default=False)]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|PATH|REPOSITORY",
        help="A model of the catalog in force, a GGUF file, a folder, or a cached repository.",
        show_default=False,
    ),
]
Weights = Annotated[
    int | None,
    typer.Option(parser=size, metavar="SIZE", help="Of a model given by hand, such as 16GiB."),
]
PerToken = Annotated[
    int | None,
    typer.Option(
        parser=size, metavar="SIZE", help="What its cache takes for a token, such as 128KiB."
    ),
]
EngineName = Annotated[
    str | None, typer.Option(help="vllm, sglang or llama.cpp.", show_default=False)
]
Revision = Annotated[str | None, typer.Option(help="Of a cached repository.", show_default=False)]
Context = Annotated[
    int | None, typer.Option(min=1, help="Tokens of one sequence.", show_default=False)
]
Parallel = Annotated[int | None, typer.Option(min=1, help="Sequences at once.", show_default=False)]
KeyType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Of the cache's keys.", show_default=False)
]
ValueType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Of the cache's values.", show_default=False)
]
Fraction = Annotated[
    float | None,
    typer.Option(min=0.01, max=1, help="Of a device, for the engine.", show_default=False),
]
FromLog = Annotated[
    Path | None,
    typer.Option(
        "--from-log",
        "--archive",
        metavar="FILE",
        help="Plan for the cluster of this archive; no server is asked.",
        show_default=False,
    ),
]


def plan(
    file: CatalogFile = None,
    model: ModelName = None,
    weights: Weights = None,
    kv_per_token: PerToken = None,
    engine: EngineName = None,
    revision: Revision = None,
    context: Context = None,
    parallel: Parallel = None,
    cache_key_dtype: KeyType = None,
    cache_value_dtype: ValueType = None,
    gpu_memory_fraction: Fraction = None,
    archive: FromLog = None,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show how models could run on what there is, and what applying a catalog would do.

    Give a catalog, --model, or sizes by hand. Exits with 4 where something does not fit.
    """
    import asyncio

    from llmgw.views.plan import MOST_COUNTED
    from llmgw.views.plan import plan as planned

    settings = {
        "context": context,
        "parallel": parallel,
        "cache_key_dtype": cache_key_dtype,
        "cache_value_dtype": cache_value_dtype,
        "gpu_memory_fraction": gpu_memory_fraction,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    _check(file, model, weights, kv_per_token, given, engine, revision)
    catalog = _load(file) if file is not None else None
    state = asyncio.run(_state(archive, nats_url, cluster, data))
    if catalog is not None:
        wishes = [_wish_of(entry, state) for entry in catalog.models]
    elif weights is not None:
        wishes = [_by_hand(weights, kv_per_token or 0, engine, given)]
    else:
        wishes = [_wish(model or "", engine, revision, given, state)]
    most = max(LEAST_COUNTED, MOST_COUNTED // max(1, len(wishes)))
    plans = [planned(wish, state, _classes(state), most=most) for wish in wishes]
    _show(plans, state, catalog, output)


def _check(
    file: Path | None,
    model: str | None,
    weights: int | None,
    kv_per_token: int | None,
    given: dict[str, Any],
    engine: str | None,
    revision: str | None,
) -> None:
    if sum(way is not None for way in (file, model, weights)) != 1:
        raise UsageError(
            "give one of: a catalog's file, --model NAME|PATH|REPOSITORY, or --weights SIZE with "
            "--kv-per-token SIZE"
        )
    if file is not None and (given or engine or revision):
        raise UsageError("a catalog has its own settings: change them there, or use --model")
    if (weights is None) != (kv_per_token is None):
        raise UsageError("--weights and --kv-per-token go together")
    if weights is not None and "context" not in given:
        raise UsageError("--weights needs --context: how long is one sequence?")


def _load(file: Path) -> Catalog:
    from llmgw.catalog.load import load

    checked = load(file)
    for warning in checked.warnings:
        note(f"warning: {warning}")
    return checked.catalog


async def _state(
    archive: Path | None, nats_url: str | None, cluster: str | None, data: Path | None
) -> Cluster | None:
    """Return the cluster to plan for, or `None` where nothing says which that could be.

    A server that was named and does not answer is an error.
    """
    from llmgw.errors import LogUnreachable
    from llmgw.replay import fold_log

    asked = where(archive, nats_url, cluster, data)
    named = asked.settings is None or asked.settings.nats_url is not None
    try:
        async with opened(asked) as source:
            state = await fold_log(source.log)
    except LogUnreachable:
        if named:
            raise
        note(
            "no cluster is known here (start `llmgw up`, set LLMGW_NATS_URL, or give --from-log): "
            "this is for well-known cards, and nothing is counted"
        )
        return None
    if not any(node.devices for node in state.nodes.values()):
        note("the cluster has no devices yet: this is for well-known cards")
        return None
    return state


def _classes(state: Cluster | None) -> Sequence[Any]:
    from llmgw.views.plan import WELL_KNOWN, device_classes

    return WELL_KNOWN if state is None else device_classes(state)


def _wish_of(entry: Entry, state: Cluster | None) -> Wish:
    """Return an entry of a catalog as it is to be planned, with what was measured of it."""
    from llmgw.core.cluster import unit
    from llmgw.views.plan import Wish

    model = state.models.get(entry.name) if state is not None else None
    same = model if model is not None and model.one == unit(entry) else None
    return Wish(entry=entry, metadata=_metadata(entry), model=same)


def _metadata(entry: Entry) -> Metadata | Unknown:
    from llmgw.errors import ModelUnreadable
    from llmgw.models.metadata import read, side_files
    from llmgw.models.types import Unknown

    if entry.source is None:
        return Unknown(reason=f"the engine {entry.engine} names no model: its own memory counts")
    try:
        return read(entry.source, entry.revision, side_files=side_files(entry.args))
    except ModelUnreadable as error:
        return Unknown(reason=str(error))


def _wish(
    name: str,
    engine: str | None,
    revision: str | None,
    given: dict[str, Any],
    state: Cluster | None,
) -> Wish:
    """Return a model of the catalog in force, or one that is read from files."""
    from msgspec.structs import replace

    from llmgw.models.metadata import read
    from llmgw.views.plan import Wish

    model = state.models.get(name) if state is not None else None
    if model is not None and engine is None and revision is None:
        if not given:
            return _wish_of(model.entry, state)
        return _wish_of(replace(model.entry, memory_estimated=True, **given), None)
    if "/" not in name and not name.lower().endswith((".gguf", ".json")):
        raise UsageError(_unknown_name(name, state))
    metadata = read(name, revision)
    engine = engine or ("llama.cpp" if metadata.format == "gguf" else "vllm")
    return Wish(entry=_entry(name, engine, name, revision, given), metadata=metadata)


def _unknown_name(name: str, state: Cluster | None) -> str:
    from llmgw.cli.asked import unknown

    paths = "; for a file or a folder begin with ./ or /"
    if state is None:
        return f"no catalog is known here that could have the model {name!r:.80}{paths}"
    return unknown("model", name, state.models) + paths


def _by_hand(weights: int, kv_per_token: int, engine: str | None, given: dict[str, Any]) -> Wish:
    from llmgw.models.by_hand import by_hand
    from llmgw.views.plan import Wish

    metadata = by_hand(weights, kv_per_token)
    return Wish(entry=_entry(_BY_HAND, engine or "vllm", None, None, given), metadata=metadata)


def _entry(
    name: str, engine: str, source: str | None, revision: str | None, given: dict[str, Any]
) -> Entry:
    from msgspec.structs import replace

    from llmgw.catalog.entries import Entry
    from llmgw.engines.registry import ENGINES

    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r:.40}; there are {', '.join(ENGINES)}")
    entry = Entry(
        name=name,
        engine=engine,
        classes=("*",),
        memory_bytes=0,
        source=source,
        revision=revision,
        memory_estimated=True,
    )
    return replace(entry, **given)


def _show(
    plans: Sequence[ModelPlan], state: Cluster | None, catalog: Catalog | None, output: Format
) -> None:
    """Print plans and forecast, and end the program with 4 where something does not fit."""
    import msgspec

    from llmgw.cli.output import emit

    found = _forecast(state, catalog)
    said: dict[str, Any] = {"models": msgspec.to_builtins(plans)}
    if state is not None:
        said["sequence"] = state.sequence
    if found is not None:
        said["forecast"] = {"steps": [], **msgspec.to_builtins(found)}
    emit(said, output, lambda _, wide: _lines(plans, found, wide))
    if found is not None and not found.settled:
        note("the forecast ends here: it goes on changing")
    refused = found is not None and (
        found.rejected or any(step.action == "cannot" for step in found.steps)
    )
    if refused or not all(one.fits for one in plans):
        raise typer.Exit(SAID_NO)


def _forecast(state: Cluster | None, catalog: Catalog | None) -> Forecast | None:
    from llmgw.cli.asked import foresee
    from llmgw.core.events import CatalogApplied

    if catalog is None or state is None:
        return None
    return foresee(state, CatalogApplied(catalog=catalog))


def _lines(plans: Sequence[ModelPlan], found: Forecast | None, wide: bool) -> Iterator[str]:
    from llmgw.cli.tables import view_lines
    from llmgw.masking import visible

    for number, one in enumerate(plans):
        if number:
            yield ""
        yield from (visible(line) for line in _head(one))
        yield from _parts(one, wide)
        yield from _offers(one, wide)
    if found is None:
        return
    yield ""
    if found.rejected:
        yield "the catalog would be rejected:"
        yield from (visible(f"  {reason}") for reason in found.rejected)
        return
    yield "what applying it would do:"
    yield from view_lines(found.steps, wide)
    if not found.steps:
        yield "  nothing"


def _head(one: ModelPlan) -> Iterator[str]:
    from llmgw.cli.tables import as_size

    of = f", {one.architecture}" if one.architecture else ""
    load = f", {one.context} tokens x {one.parallel or 1}" if one.context else ""
    yield f"{one.model}: {one.engine}{of}{load}"
    if one.cautious:
        yield "  an unknown architecture: this is the most that it can be"
    if one.unknown is not None:
        yield f"  no estimate: {one.unknown}"
    if one.given_bytes is not None:
        yield f"  memory given in the catalog: {as_size(one.given_bytes)}"
    if one.measured_bytes is not None:
        error = f"; the estimate is {one.error_percent:+g} % off" if one.error_percent else ""
        yield f"  measured: {as_size(one.measured_bytes)} on a device{error}"
    yield from (f"  {said}" for said in one.assumptions)


def _parts(one: ModelPlan, wide: bool) -> Iterator[str]:
    from llmgw.cli.output import Column, table_lines
    from llmgw.cli.tables import as_size

    if not one.parts:
        return
    rows = [(part.name, part.bytes, part.assumption) for part in one.parts]
    rows.append(("sum", one.memory_bytes or 0, "on each device, split as the entry says"))
    columns = (
        Column("PART", lambda row: row[0]),
        Column("SIZE", lambda row: as_size(row[1]), right=True),
        Column("ASSUMED", lambda row: row[2]),
    )
    yield ""
    yield from table_lines(rows, columns, wide)


def _smallest(offers: Sequence[Offer]) -> list[Offer]:
    """Return the first offer of each class: the one of the fewest devices."""
    first: dict[str, Offer] = {}
    for offer in offers:
        first.setdefault(offer.device_class, offer)
    return [*first.values()]


def _offers(one: ModelPlan, wide: bool) -> Iterator[str]:
    from llmgw.cli.output import Column, table_lines
    from llmgw.cli.tables import as_size

    def counted(number: int | None) -> str | None:
        return f"{number}+" if number == one.counted_to else None if number is None else str(number)

    columns = (
        Column("CLASS", lambda row: row.device_class),
        Column("HAVE", lambda row: row.devices, right=True),
        Column("EACH HAS", lambda row: as_size(row.device_memory_bytes), right=True, wide=True),
        Column("TAKES", lambda row: row.gpus, right=True),
        Column("TP", lambda row: row.tp, right=True),
        Column("PP", lambda row: row.pp, right=True),
        Column("NODES", lambda row: row.nodes, right=True),
        Column("ON EACH", lambda row: as_size(row.memory_bytes), right=True),
        Column("LEFT", lambda row: as_size(row.headroom_bytes), right=True),
        Column("FIT NOW", lambda row: counted(row.fits_now), right=True),
        Column("IF EMPTY", lambda row: counted(row.fits_empty), right=True),
        Column("CONTEXT", lambda row: row.largest_context, right=True),
        Column("WHY NOT", lambda row: row.reason),
    )
    yield ""
    yield from table_lines(one.offers if wide else _smallest(one.offers), columns, wide)
