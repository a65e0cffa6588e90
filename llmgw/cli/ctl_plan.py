"""`llmgw ctl plan --defrag`: which replicas would have to move so that a large group fits.

A proposal only: nothing is written, and nobody moves anything by it. How models could run, and
what a catalog would do, is `llmgw plan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.asked import SAID_NO
from llmgw.cli.ctl_source import ArchiveFile, Where, opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.core.defrag import Proposal


def plan(
    defrag: Annotated[
        bool, typer.Option("--defrag", help="Propose moves that make a domain whole.")
    ] = False,
    cards: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="How many must be free together (without it: the largest group without a place).",
            show_default=False,
        ),
    ] = None,
    archive: ArchiveFile = None,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show which moves would free an NVLink domain, at what cost. Exits with 4 if none would."""
    import asyncio

    import msgspec

    from llmgw.cli.output import emit
    from llmgw.core.defrag import is_free, proposals

    if not defrag:
        raise UsageError("what shall be planned? --defrag proposes moves; a model or a catalog is "
                         "planned by `llmgw plan`")  # fmt: skip
    state = asyncio.run(_state(where(archive, nats_url, cluster, data)))
    size = cards if cards is not None else _largest_missing(state)
    found = proposals(state, size)
    free = is_free(state, size)
    said = {"cards": size, "free_already": free, "proposals": msgspec.to_builtins(found)}
    emit(said, output, lambda _, __: _lines(size, found, free))
    if not found and not free:
        raise typer.Exit(SAID_NO)


async def _state(asked: Where) -> Cluster:
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        return await fold_log(source.log)


def _largest_missing(state: Cluster) -> int:
    """Return the size of the largest group that a model lacks a place for."""
    groups = [m.entry.gpus // m.entry.nodes for m in state.models.values() if m.missing]
    size = max(groups, default=0)
    if size < 2:
        raise UsageError("no group of cards lacks a place: say with --cards how many shall be free")
    return size


def _lines(size: int, found: list[Proposal], free: bool) -> Iterator[str]:
    from llmgw.cli.tables import as_size
    from llmgw.hardware.types import device_label

    if free:
        yield f"{size} cards of one NVLink domain are free already: nothing has to move"
    elif not found:
        yield f"no moves would free {size} cards of one NVLink domain"
    for number, one in enumerate(found, 1):
        count = f"{len(one.moves)} replica{'s' if len(one.moves) > 1 else ''}"
        yield (
            f"{number}. {one.node}: {one.domain} ({one.device_class}), {one.free_now} of "
            f"{len(one.devices)} free now; {count} would load {as_size(one.memory_bytes)} again"
        )
        for move in one.moves:
            here = "+".join(map(device_label, move.devices))
            there = "+".join(map(device_label, move.to_devices))
            yield f"   {move.replica} of {move.model}: {here} to {move.to_node} {there}"
