"""Samples of small machines, for the tests of conditions: what was measured, and little else."""

from __future__ import annotations

from llmgw.hardware.types import (
    Card,
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Process,
    Readings,
    device_label,
)

MIB = 1 << 20
COOL = 50.0


def offered(*numbers: int, slowdown: float | None = None) -> Inventory:
    """A machine with these devices, and the cards that they are or are on."""
    devices = tuple(_device(number) for number in numbers)
    cards = tuple(
        Card(
            index=index,
            uuid=f"GPU-{index}",
            name="card",
            card_class="c",
            temperature_slowdown_celsius=slowdown,
        )
        for index in sorted({d.card for d in devices if d.card is not None})
    )
    return Inventory(node="n", backend="nvml", cards=cards, devices=devices)


def _device(number: int) -> Device:
    card = (number - 1000) // 100 if number >= 1000 else number
    return Device(
        id=number,
        label=device_label(number),
        card=card,
        uuid=f"GPU-{number}" if number < 1000 else f"MIG-{number}",
        device_class="c",
    )


ONE = offered(0)


def reads(index: int = 0, **values: object) -> CardReading:
    return CardReading(index=index, uuid=f"GPU-{index}", **values)  # type: ignore[arg-type]


def of_card(**values: object) -> Readings:
    """A sample of card 0 that measured this, on a card that is cool and rests unless told."""
    told = {"temperature_celsius": COOL, "throttled_by": ()} | values
    return Readings(cards=(reads(0, **told),))


def used_by(*processes: Process) -> Readings:
    reading = DeviceReading(id=0, uuid="GPU-0", processes=processes)
    return Readings(cards=(reads(temperature_celsius=COOL),), devices=(reading,))


def held_mib(mib: int, pid: int = 4242) -> Readings:
    return used_by(Process(pid=pid, memory_bytes=mib * MIB))
