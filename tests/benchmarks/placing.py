"""How long one placement takes in fleets of up to 800,000 cards, and how good placements are.

Speed: a fleet of eight-card nodes (every twentieth carved into instances) is filled with a mixed
catalog, each placement timed with its reasons, scores and counts of refusals, and taking the
devices included where it says so. Quality: random fleets and catalogs that CP-SAT solves to the
optimum, which sees everything at once and knows no order.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import mean

from llmgw import wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Model, Node, unit
from llmgw.core.decide import by_priority
from llmgw.core.held import Held
from llmgw.core.index import index_of
from llmgw.core.placement import Placed, place
from llmgw.folding import fold
from llmgw.hardware.types import Card, Device, Inventory, instance_id
from llmgw.log.base import Message
from tests.benchmarks.history import CLUSTER, TIME, machine
from tests.benchmarks.measure import Result, at_least, at_most

GIB = 1 << 30
FLEETS = (1_000, 10_000, 100_000)
REPLICAS = 10_000
TURNS = 20
INSTANCES = 100
NODES_FOR_MEMORY = 1_000


def benchmark() -> Iterator[Result]:
    """Measure speed, growth, memory and quality."""
    yield from speed()
    yield from growth()
    yield from memory()
    yield from quality()


# --- speed ----------------------------------------------------------------------------------------


def speed() -> Iterator[Result]:
    """Fill a fleet of ten thousand nodes with a mixed catalog, and ask for what fits nowhere."""
    entries, nodes = catalog(), 10_000
    filling = Filling(fleet(nodes), entries)
    filling.go_on(REPLICAS)
    refused = refusals(filling.state)
    name, peer = f"placement, {nodes:,} nodes x 8", f"{REPLICAS:,} replicas of {len(entries)}"
    median_us = filling.percentile(50) * 1e6
    yield at_most(50, f"{name}, median", median_us, "us", peer)
    slow_us = filling.percentile(99) * 1e6
    yield at_most(500, f"{name}, 99th percentile", slow_us, "us", peer)
    rate = REPLICAS / filling.seconds
    yield at_least(15_000, f"{name}, placed and taken", rate, "replicas/s", peer)
    refused_us = refused[len(refused) // 2] * 1e6
    yield at_most(median_us, f"{name}, refused, median", refused_us, "us", "one that is placed")


def growth() -> Iterator[Result]:
    """Fill fleets of growing size in turns: a busy moment falls on all of them."""
    entries = catalog()
    fillings = {nodes: Filling(fleet(nodes), entries) for nodes in FLEETS}
    for _ in range(TURNS):
        for nodes, filling in fillings.items():
            filling.go_on(min(REPLICAS, 2 * nodes) // TURNS)
    costs = {nodes: filling.percentile(50) for nodes, filling in fillings.items()}
    for before, after in pairwise(FLEETS):
        name = f"growth of a placement, {before:,} to {after:,} nodes"
        said = f"{costs[before] * 1e6:.1f} us in the smaller fleet"
        yield at_most(1.2, name, costs[after] / costs[before], "x", said)


class Filling:
    """A fleet that is filled bit by bit: the processor time of it all, and of each placement."""

    def __init__(self, state: Cluster, entries: list[Entry]) -> None:
        state.models = {entry.name: Model(entry, unit(entry)) for entry in entries}
        index_of(state)
        self.state = state
        self.seconds = 0.0
        self._entries = entries
        self._choose = random.Random(1).choice
        self._held = Held()
        self._each: list[float] = []

    def go_on(self, count: int) -> None:
        """Place and take so many more."""
        clock, held = time.process_time, self._held
        began = clock()
        for _ in range(count):
            entry = self._choose(self._entries)
            start = clock()
            answer = place(self.state, entry, held)
            self._each.append(clock() - start)
            assert isinstance(answer, Placed)
            held.take(self.state, f"r{len(self._each)}", answer.parts, entry)
        self.seconds += clock() - began

    def percentile(self, percent: int) -> float:
        """Return the time below which so many of the placements took, in seconds."""
        return sorted(self._each)[len(self._each) * percent // 100]


def refusals(state: Cluster) -> list[float]:
    """Return the times of placements that nothing is large enough for, sorted."""
    huge = Entry(
        name="huge", engine="vllm", classes=("h100-*",), memory_bytes=90 * GIB, source="o/m"
    )
    each = []
    for _ in range(1_000):
        start = time.process_time()
        answer = place(state, huge, Held())
        each.append(time.process_time() - start)
        assert not isinstance(answer, Placed)
    return sorted(each)


def fleet(nodes: int) -> Cluster:
    """Return a state of so many nodes, made directly: folding it would take minutes."""
    state = Cluster()
    for number in range(nodes):
        name = f"gpu-{number:06d}"
        cards, devices = (carved if number % 20 == 0 else whole)(name, number)
        inventory = Inventory(node=name, backend="nvml", cards=cards, devices=devices)
        state.nodes[name] = Node(
            name, started=True, inventory=inventory, devices={d.id: d for d in devices}
        )
    return state


def whole(name: str, number: int) -> tuple[tuple[Card, ...], tuple[Device, ...]]:
    """Return eight H100 on a switch."""
    cards = tuple(_card(number, index, "h100-80g", f"node:{name}/0") for index in range(8))
    return cards, tuple(
        Device(
            id=card.index,
            label=str(card.index),
            card=card.index,
            uuid=card.uuid,
            device_class="h100-80g",
            memory_total_bytes=80 * GIB,
        )
        for card in cards
    )


def carved(_name: str, number: int) -> tuple[tuple[Card, ...], tuple[Device, ...]]:
    """Return eight A100 of seven instances each."""
    cards = tuple(_card(number, index, "a100-80g", None) for index in range(8))
    return cards, tuple(
        Device(
            id=instance_id(card.index, part),
            label=f"{card.index}/mig{part}",
            card=card.index,
            uuid=f"MIG-{number:08x}-{card.index}-{part}",
            device_class="a100-80g-mig-1g.10gb",
            profile="1g.10gb",
            memory_pool=f"{card.index}/gi{part}",
            memory_total_bytes=10 * GIB,
        )
        for card in cards
        for part in range(7)
    )


def _card(node: int, index: int, card_class: str, domain: str | None) -> Card:
    return Card(
        index=index,
        uuid=f"GPU-{node:08x}-{index}",
        name=card_class,
        card_class=card_class,
        memory_total_bytes=80 * GIB,
        nvlink_domain=domain,
    )


def catalog() -> list[Entry]:
    """Return forty models: groups of one, two, four and eight cards, and MIG instances."""
    models = []
    for number in range(40):
        name, size = f"m{number}", (1, 2, 4, 8)[number % 4]
        if number % 5 == 4:
            classes, need, size = ("a100-*-mig-1g.10gb",), 8, 1
        else:
            classes, need = ("h100-*",), 70
        models.append(
            Entry(
                name=name,
                engine="vllm",
                classes=classes,
                memory_bytes=need * GIB,
                source="organisation/model",
                gpus=size,
                tp=size,
            )
        )
    return models


# --- memory ---------------------------------------------------------------------------------------


def memory() -> Iterator[Result]:
    """Count the bytes of state and index for each device, of nodes read from a log."""
    log: list[Message] = []
    for number in range(NODES_FOR_MEMORY):
        made = machine(number)
        told = (
            e.NodeStarted(boot_id=made.boot, agent_version="0"),
            e.NodeInventoryTaken(inventory=made.inventory),
        )
        for place_in_session, event in enumerate(told, 1):
            subject, payload, _ = wire.encode_event(
                CLUSTER,
                event,
                node=made.name,
                session=made.boot,
                number=place_in_session,
                time=TIME,
            )
            log.append(Message(len(log) + 1, len(log) + 1, subject, payload))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = Cluster()
    fold(state, log)
    index_of(state)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    peer = f"{NODES_FOR_MEMORY:,} nodes x 8"
    yield at_most(
        2048, "memory of state and index", taken / NODES_FOR_MEMORY / 8, "bytes a device", peer
    )


# --- quality --------------------------------------------------------------------------------------

Wanted = list[tuple[Entry, int]]


def quality() -> Iterator[Result]:
    """Hold placements against the optimum: cards needed, and what fits when it is tight."""
    try:
        from ortools.sat.python import cp_model  # noqa: F401
    except ImportError:
        yield Result("placement against the optimum", 0, "not measured", "ortools is not installed")
        return
    peer = f"CP-SAT's optimum, {INSTANCES} random fleets"
    switched = [needed(seed, sizes=(8,)) for seed in range(INSTANCES)]
    mixed = [needed(seed, sizes=(2, 4, 8, 8)) for seed in range(INSTANCES)]
    worst = max(unfilled(seed) for seed in range(INSTANCES))
    name = "cards of the domains used, more than needed"
    yield at_most(2, f"{name}, 8 to a domain", _mean_percent(switched), "%", peer)
    # Not the fewest on purpose: a small domain is opened before a large one is broken.
    yield Result(f"{name}, 2 to 8 to a domain", _mean_percent(mixed), "%", peer)
    yield at_most(1, "cards that stay empty in a tight fleet, at worst", worst * 100, "%", peer)


def _mean_percent(shares: list[float | None]) -> float:
    return mean(share for share in shares if share is not None) * 100


def needed(seed: int, *, sizes: tuple[int, ...]) -> float | None:
    """Return by what share we use more than the optimum; `None` where all does not fit."""
    dice = random.Random(seed)
    state = some_fleet(dice, sizes)
    wanted = some_catalog(dice, state, 0.6)
    ours, _ = used(state, wanted)
    least = optimum(state, wanted, spare=True)
    return ours / least - 1 if least else None


def unfilled(seed: int) -> float:
    """Return the share of cards that the optimum uses in a fleet too small, and we do not."""
    dice = random.Random(seed)
    state = some_fleet(dice, (2, 4, 8, 8))
    wanted = some_catalog(dice, state, 1.05)
    _, fitted = used(state, wanted)
    most = optimum(state, wanted, spare=False)
    return (most - fitted) / most


def some_fleet(dice: random.Random, sizes: tuple[int, ...]) -> Cluster:
    """Return twenty to sixty nodes of two kinds of cards, each one domain of one of the sizes."""
    state = Cluster()
    for number in range(dice.randint(20, 60)):
        name, size = f"n{number:02d}", dice.choice(sizes)
        card_class, gib = dice.choice((("h100-80g", 80), ("a100-40g", 40)))
        cards = tuple(
            Card(
                index=index,
                uuid=f"GPU-{number}-{index}",
                name=card_class,
                card_class=card_class,
                memory_total_bytes=gib * GIB,
                nvlink_domain=f"node:{name}/0",
            )
            for index in range(size)
        )
        devices = tuple(
            Device(
                id=card.index,
                label=str(card.index),
                card=card.index,
                uuid=card.uuid,
                device_class=card_class,
                memory_total_bytes=card.memory_total_bytes,
            )
            for card in cards
        )
        state.nodes[name] = Node(
            name,
            started=True,
            inventory=Inventory(node=name, backend="nvml", cards=cards, devices=devices),
            devices={device.id: device for device in devices},
        )
    return state


def some_catalog(dice: random.Random, state: Cluster, load: float) -> Wanted:
    """Return models and how many replicas of each, asking for about `load` of all cards."""
    wanted: Counter[tuple[int, int]] = Counter()
    room = load * sum(len(node.devices) for node in state.nodes.values())
    while room > 0:
        size, gib = dice.choice((1, 1, 2, 2, 4, 8)), dice.choice((30, 30, 70))
        wanted[size, gib] += 1
        room -= size
    return [
        (
            Entry(
                name=f"m{size}-{gib}",
                engine="vllm",
                classes=("*",),
                memory_bytes=gib * GIB,
                source="o/m",
                gpus=size,
                tp=size,
                nvlink="require",
                policy="pack",
            ),
            count,
        )
        for (size, gib), count in sorted(wanted.items())
    ]


def used(state: Cluster, wanted: Wanted) -> tuple[int, int]:
    """Place in the order in which `decide` does; return cards of domains used, cards placed."""
    counts = {entry.name: count for entry, count in wanted}
    state.models = {entry.name: Model(entry, unit(entry)) for entry, _ in wanted}
    state.catalog = Catalog(models=tuple(entry for entry, _ in wanted))
    held, nodes, placed = Held(), set(), 0
    for model in by_priority(state):
        for number in range(counts[model.entry.name]):
            answer = place(state, model.entry, held)
            if not isinstance(answer, Placed):
                break
            held.take(state, f"{model.entry.name}-{number}", answer.parts, model.entry)
            nodes.add(answer.parts[0].node)
            placed += model.entry.gpus
    return sum(len(state.nodes[name].devices) for name in nodes), placed


def optimum(state: Cluster, wanted: Wanted, *, spare: bool) -> int:
    """Return the fewest cards in domains used for all (0: cannot be), or the most cards placed."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    placed, opened = [], []
    totals: dict[str, list[cp_model.IntVar]] = {entry.name: [] for entry, _ in wanted}
    for node in state.nodes.values():
        size, total_bytes = len(node.devices), node.devices[0].memory_total_bytes or 0
        here = []
        for entry, count in wanted:
            if entry.gpus <= size and entry.memory_bytes <= total_bytes:
                most = min(count, size // entry.gpus)
                number = model.new_int_var(0, most, f"{node.name}-{entry.name}")
                totals[entry.name].append(number)
                here.append(entry.gpus * number)
        is_open = model.new_bool_var(node.name)
        model.add(sum(here) <= size * is_open)
        opened.append(size * is_open)
        placed += here
    for entry, count in wanted:
        total = sum(totals[entry.name])
        model.add(total == count if spare else total <= count)
    if spare:
        model.minimize(sum(opened))
    else:
        model.maximize(sum(placed))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 10
    if solver.solve(model) != cp_model.OPTIMAL:
        return 0 if spare else round(float(solver.best_objective_bound))
    return round(float(solver.objective_value))
