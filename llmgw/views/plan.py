"""How a model could run on each class of device that there is: splits, head-room, how many fit.

Pure. It estimates what a replica needs for every sensible split, and counts by placement itself
how many more replicas there is room for: now, and if nothing ran. What applying a catalog would
do is the forecast's answer; `llmgw plan` prints both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Cluster, Model
from llmgw.core.demand import demand_bytes, usable_bytes
from llmgw.core.placement import Held, Placed, place
from llmgw.engines.registry import ENGINES
from llmgw.hardware.types import Device
from llmgw.models.estimate import estimate, largest_context
from llmgw.models.types import Estimate, MemoryPart, Metadata, Unknown
from llmgw.views.shared import Row
from llmgw.views.summaries import counted

MOST_COUNTED = 1_000
"""Replicas that a plan counts on a class; where there is room for more it stops there."""
MOST_OFFERS = 3
"""Splits shown of one class: the smallest that fit."""
_LARGEST_GROUP = 64

_PROCESSOR = "cpu"
_GIB = 1 << 30


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A model to plan for: the entry that it has, or would have, and what its files say.

    `metadata` is `Unknown` where they cannot be read; then the entry's own memory counts, if it
    has any. `model` is there for an entry in force, whose memory may have been measured.
    """

    entry: Entry
    metadata: Metadata | Unknown
    model: Model | None = None


class DeviceClass(NamedTuple):
    """The devices of one class: how many, the least memory, and how many a node has at most.

    `nodes` have one at least. `single`: a replica can have only one of them (MIG, the processor).
    """

    name: str
    devices: int
    memory_bytes: int
    on_a_node: int
    nodes: int
    single: bool


class Offer(Row, frozen=True, kw_only=True):
    """One way to run a model on a class, or why there is none (`reason`).

    `gpus` devices make one replica, `tp` ranks within layers, `pp` stages, over `nodes` nodes.
    `memory_bytes` is the estimate for the fullest of them, `headroom_bytes` what a device has
    beyond it. `fits_now` and `fits_empty` count further replicas. Without a cluster these are
    absent, and so are `devices`, which count the whole class.
    """

    device_class: str = msgspec.field(name="class")
    devices: int | None = None
    device_memory_bytes: int
    gpus: int
    tp: int
    pp: int
    nodes: int
    memory_bytes: int | None = None
    headroom_bytes: int | None = None
    fits_now: int | None = None
    fits_empty: int | None = None
    largest_context: int | None = None
    reason: str | None = None


class ModelPlan(Row, frozen=True, kw_only=True):
    """A model's estimate on the devices that its entry asks for, and what each class offers.

    `unknown` says why there is no estimate. `measured_bytes` is the most that a replica was seen
    to take of a device, `error_percent` how far the estimate is from that. Where as many fit as
    `counted_to`, more may.
    """

    model: str
    engine: str
    source: str | None = None
    architecture: str | None = None
    weights_bytes: int | None = None
    context: int | None = None
    parallel: int | None = None
    memory_bytes: int | None = None
    given_bytes: int | None = None
    measured_bytes: int | None = None
    error_percent: float | None = None
    parts: tuple[MemoryPart, ...] = ()
    assumptions: tuple[str, ...] = ()
    cautious: bool = False
    unknown: str | None = None
    counted_to: int = MOST_COUNTED
    offers: tuple[Offer, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether any class has a way to run it; without a cluster: could have."""
        return any(offer.reason is None and offer.fits_empty != 0 for offer in self.offers)


WELL_KNOWN: tuple[DeviceClass, ...] = tuple(
    DeviceClass(name, 0, mebibytes << 20, 8, 1, "-mig-" in name)
    for name, mebibytes in (
        *(("t4-16g", 15_360), ("l4-24g", 23_034), ("rtx3090-24g", 24_576), ("rtx4090-24g", 24_564)),
        *(("rtx5090-32g", 32_607), ("l40s-48g", 46_068), ("a100-40g", 40_960)),
        *(("a100-80g-mig-1g.10gb", 9_728), ("a100-80g-mig-3g.40gb", 40_192)),
        *(("a100-80g", 81_920), ("h100-80g", 81_559), ("h100-nvl-94g", 95_830)),
        *(("h200-141g", 143_771), ("b200-180g", 183_359)),
    )
)
"""Classes to plan for where no cluster is known, with the memory that their drivers report."""


def device_classes(state: Cluster) -> list[DeviceClass]:
    """Return the classes that the cluster has, by name. Lost nodes and excluded devices count."""
    found: dict[str, list[tuple[str, Device]]] = {}
    for node in state.nodes.values():
        for device in node.devices.values():
            if device.memory_total_bytes is not None:
                found.setdefault(device.device_class, []).append((node.name, device))
    return [_class(name, found[name]) for name in sorted(found)]


def _class(name: str, devices: Sequence[tuple[str, Device]]) -> DeviceClass:
    nodes = [node for node, _ in devices]
    return DeviceClass(
        name=name,
        devices=len(devices),
        memory_bytes=min(device.memory_total_bytes or 0 for _, device in devices),
        on_a_node=max(nodes.count(node) for node in set(nodes)),
        nodes=len(set(nodes)),
        single=name == _PROCESSOR or any(device.profile is not None for _, device in devices),
    )


def plan(
    wish: Wish,
    state: Cluster | None,
    classes: Iterable[DeviceClass],
    *,
    most: int = MOST_COUNTED,
) -> ModelPlan:
    """Return how the model could run on `classes`.

    `state` is what replicas are counted in, up to `most` on each class.
    """
    entry = wish.entry
    found = _estimate(wish, entry.tp, entry.pp, processor=entry.classes == (_PROCESSOR,))
    known = found if isinstance(found, Estimate) else None
    metadata = wish.metadata if isinstance(wish.metadata, Metadata) else None
    measured = wish.model.measured_bytes if wish.model is not None else None
    total = known.total_bytes if known is not None else None
    given = None if entry.memory_estimated else entry.memory_bytes or None
    return ModelPlan(
        model=entry.name,
        engine=entry.engine,
        source=entry.source,
        architecture=metadata.architecture if metadata else None,
        weights_bytes=metadata.weight_bytes if metadata else None,
        context=known.context if known else entry.context,
        parallel=known.parallel if known else entry.parallel,
        memory_bytes=total,
        given_bytes=given,
        measured_bytes=measured,
        error_percent=_error_percent(total, measured),
        parts=known.parts if known else (),
        assumptions=known.assumptions if known else (),
        cautious=known.cautious if known else False,
        unknown=found.reason if isinstance(found, Unknown) else None,
        counted_to=most,
        offers=tuple(offer for one in classes for offer in _offers(wish, state, one, most)),
    )


def _error_percent(total: int | None, measured: int | None) -> float | None:
    if total is None or not measured:
        return None
    return round(100 * (total - measured) / measured, 1)


class _Choice(NamedTuple):
    gpus: int
    tp: int
    pp: int
    nodes: int


def _offers(wish: Wish, state: Cluster | None, one: DeviceClass, most: int) -> Iterator[Offer]:
    """Yield the smallest splits that fit on devices of the class, or the one that nearly does."""
    refused: Offer | None = None
    made = 0
    for choice in _choices(wish, one):
        found = _memory(wish, choice, one)
        if isinstance(found, Unknown):
            refused = refused or _offer(one, choice, None, found.reason)
            continue
        short = found - usable_bytes(wish.entry, one.memory_bytes)
        if short > 0:
            said = f"too small by {max(short / _GIB, 0.1):.1f} GiB on {_devices(choice.gpus)}"
            refused = _offer(one, choice, found, said)
            continue
        yield _counted(_offer(one, choice, found, None), wish, state, one, most)
        made += 1
        if made == MOST_OFFERS:
            return
    if not made and refused is not None:
        yield refused


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"each of {count} devices"


def _choices(wish: Wish, one: DeviceClass) -> list[_Choice]:
    """Return the splits to try, from few devices to many: powers of two on a node, then nodes.

    Of MIG instances and the processor a replica has one. Without metadata only the entry's own.
    """
    entry, engine = wish.entry, ENGINES.get(wish.entry.engine)
    if one.single:
        return [_Choice(1, 1, 1, 1)]
    if isinstance(wish.metadata, Unknown) or engine is None:
        return [_Choice(entry.gpus, entry.tp, entry.pp, entry.nodes)]
    sizes = [1 << power for power in range(8) if 1 << power <= min(one.on_a_node, _LARGEST_GROUP)]
    if engine.gpus_mean == "pp":
        layers = len(wish.metadata.layers)
        return [_Choice(size, 1, size, 1) for size in sizes if size <= max(layers, 1)]
    heads = wish.metadata.attention_heads
    sizes = [size for size in sizes if heads is None or heads % size == 0]
    within = [_Choice(size, size, 1, 1) for size in sizes]
    if not engine.spans_nodes or not sizes:
        return within
    counts = [count for count in (2, 4, 8) if count <= one.nodes]
    return within + [_Choice(sizes[-1] * n, sizes[-1], n, n) for n in counts]


def _estimate(wish: Wish, tp: int, pp: int, *, processor: bool) -> Estimate | Unknown:
    entry = wish.entry
    if isinstance(wish.metadata, Unknown):
        return wish.metadata
    return estimate(
        wish.metadata,
        engine=entry.engine,
        context=entry.context,
        parallel=entry.parallel,
        cache_key_dtype=entry.cache_key_dtype,
        cache_value_dtype=entry.cache_value_dtype,
        tp=tp,
        pp=pp,
        gpu_memory_fraction=entry.gpu_memory_fraction,
        processor=processor,
    )


def _memory(wish: Wish, choice: _Choice, one: DeviceClass) -> int | Unknown:
    """Return what a replica needs on each device of the choice: estimated, or as it was given."""
    entry = wish.entry
    found = _estimate(wish, choice.tp, choice.pp, processor=one.name == _PROCESSOR)
    if isinstance(found, Unknown) and not entry.memory_bytes:
        return found
    memory = found.total_bytes if isinstance(found, Estimate) else entry.memory_bytes
    if choice != _Choice(entry.gpus, entry.tp, entry.pp, entry.nodes):
        return memory
    return demand_bytes(replace(entry, memory_bytes=memory, memory_estimated=True), wish.model)


def _offer(one: DeviceClass, choice: _Choice, memory: int | None, reason: str | None) -> Offer:
    return Offer(
        device_class=one.name,
        devices=one.devices or None,
        device_memory_bytes=one.memory_bytes,
        gpus=choice.gpus,
        tp=choice.tp,
        pp=choice.pp,
        nodes=choice.nodes,
        memory_bytes=memory,
        reason=reason,
    )


def _counted(offer: Offer, wish: Wish, state: Cluster | None, one: DeviceClass, most: int) -> Offer:
    """Return the offer with its head-room, the longest context, and how many replicas fit."""
    entry, memory = wish.entry, offer.memory_bytes or 0
    longest = None
    if isinstance(wish.metadata, Metadata):
        longest = largest_context(
            wish.metadata,
            one.memory_bytes,
            engine=entry.engine,
            parallel=entry.parallel,
            cache_key_dtype=entry.cache_key_dtype,
            cache_value_dtype=entry.cache_value_dtype,
            tp=offer.tp,
            pp=offer.pp,
            gpu_memory_fraction=entry.gpu_memory_fraction,
            processor=one.name == _PROCESSOR,
        )
    asked = replace(
        entry,
        name=f"{entry.name} (planned)",
        classes=(one.name,),
        memory_bytes=memory,
        gpus=offer.gpus,
        tp=offer.tp,
        pp=offer.pp,
        nodes=offer.nodes,
    )
    offer = replace(
        offer,
        headroom_bytes=usable_bytes(entry, one.memory_bytes) - memory,
        largest_context=longest,
    )
    if state is None:
        return offer
    now = count_fits(state, asked, most)
    empty = count_fits(state, asked, most, empty=True)
    reason = None if empty.replicas else counted(empty.refusals)
    return replace(offer, fits_now=now.replicas, fits_empty=empty.replicas, reason=reason)


class Room(NamedTuple):
    """How many replicas find a place, and what refuses the next one."""

    replicas: int
    refusals: Mapping[str, int]


def count_fits(state: Cluster, entry: Entry, most: int, *, empty: bool = False) -> Room:
    """Return how many more replicas of the entry find a place; `empty`: as if nothing ran.

    By placement itself, one after another; it stops at `most`.
    """
    held = Held()
    for name in state.replicas if empty else ():
        held.release(state, name)
    for count in range(most):
        answer = place(state, entry, held)
        if not isinstance(answer, Placed):
            return Room(count, answer.refusals)
        held.take(state, f"planned-{count}", answer.parts, entry)
    return Room(most, {})
