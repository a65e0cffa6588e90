"""What it costs to turn samples into conditions, beside writing the same samples as messages.

With NVML there is one sample a second, and the whole agent may use half a per cent of a core; of
that this may take a tenth. The machine has eight cards carved into seven instances each, with one
process on every instance: once in good order, and once with every card hot and every instance
occupied by others.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw import wire
from llmgw.core.conditions import ConditionTracker
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import (
    Card,
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Process,
    Readings,
    Wear,
    device_label,
    instance_id,
)
from tests.benchmarks.history import CLUSTER, TIME
from tests.benchmarks.measure import Result, Turns, at_most

CARDS, INSTANCES = 8, 7
TURNS, SAMPLES = 60, 50
GOAL_PERCENT = 0.05
OURS = frozenset({7})
UNTOUCHED = Wear(
    ecc_corrected=0,
    ecc_uncorrected=0,
    ecc_volatile_corrected=0,
    ecc_volatile_uncorrected=0,
    remapped_rows=0,
    remap_pending=False,
    remap_failed=False,
)


def benchmark() -> Iterator[Result]:
    """Measure a machine in good order, and one on which everything holds that can."""
    yield from _told("all well", _readings(celsius=55, pid=7))
    yield from _told("all hot and occupied", _readings(celsius=95, pid=8))


def _told(what: str, readings: Readings) -> Iterator[Result]:
    tracker, inventory, turns = ConditionTracker(), _inventory(), Turns()
    now = 0.0
    for _ in range(TURNS):
        with turns.ours():
            for _ in range(SAMPLES):
                now += 1.0
                tracker.update(readings, OURS, now, inventory)
        with turns.peer():
            for number in range(SAMPLES):
                sample = NodeSample(node="n", session="s", number=number, readings=readings)
                wire.encode_sample(CLUSTER, sample, time=TIME)
    name = f"judging {CARDS * INSTANCES} instances, {what}"
    seconds = turns.ours_seconds / SAMPLES
    peer = f"encoding the sample, {1e6 * turns.peer_seconds / SAMPLES:.0f} µs"
    yield at_most(GOAL_PERCENT, name, 100 * seconds, "% of a core, every second", peer)
    yield Result(name, 1e6 * seconds, "µs a sample", peer)


def _inventory() -> Inventory:
    cards = [
        Card(index=n, uuid=f"GPU-{n}", name="card", card_class="c", mig_mode="enabled")
        for n in range(CARDS)
    ]
    devices = [
        Device(
            id=instance_id(card.index, n),
            label=device_label(instance_id(card.index, n)),
            card=card.index,
            uuid=f"MIG-{card.index}-{n}",
            device_class="c-mig-1g.10gb",
        )
        for card in cards
        for n in range(INSTANCES)
    ]
    return Inventory(node="n", backend="nvml", cards=tuple(cards), devices=tuple(devices))


def _readings(celsius: float, pid: int) -> Readings:
    inventory = _inventory()
    return Readings(
        cards=tuple(
            CardReading(
                index=card.index,
                uuid=card.uuid,
                temperature_celsius=celsius,
                power_watts=310,
                power_limit_watts=400,
                clock_graphics_mhz=1410,
                throttled_by=(),
                wear=UNTOUCHED,
            )
            for card in inventory.cards
        ),
        devices=tuple(
            DeviceReading(
                id=device.id,
                uuid=device.uuid,
                memory_used_bytes=9 << 30,
                memory_free_bytes=1 << 30,
                processes=(Process(pid=pid, memory_bytes=9 << 30),),
            )
            for device in inventory.devices
        ),
    )
