"""How an inventory is printed: for programs as the contract says, for people as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llmgw.cli.output import Column, table_lines
from llmgw.cli.tables import as_size
from llmgw.hardware.types import Card, Inventory, Wear

_CARDS = (
    Column("CARD", lambda c: c.index, right=True),
    Column("NAME", lambda c: c.name),
    Column("CLASS", lambda c: c.card_class),
    Column("MEMORY", lambda c: as_size(c.memory_total_bytes), right=True),
    Column("MIG", lambda c: c.mig_mode),
    Column("NVLINK", lambda c: c.nvlink_domain),
    Column("HEAT", lambda c: _unit(c.temperature_celsius, "°C"), right=True),
    Column("POWER", lambda c: _unit(c.power_watts, "W"), right=True),
    Column("LIMITS", lambda c: _limits(c), wide=True),
    Column("CLOCKS", lambda c: _clocks(c), wide=True),
    Column("THROTTLED BY", lambda c: c.throttled_by, wide=True),
    Column("WEAR", lambda c: _wear(c.wear), wide=True),
    Column("LINKS DOWN", lambda c: c.nvlink_links_down, wide=True),
    Column("LINK ERRORS", lambda c: c.nvlink_errors, wide=True, right=True),
    Column("REPLAYS", lambda c: c.pcie_replays, wide=True, right=True),
    Column("NUMA", lambda c: c.numa_node, wide=True, right=True),
    Column("CPUS", lambda c: c.cpu_affinity, wide=True),
    Column("PCI", lambda c: c.pci, wide=True),
    Column("UUID", lambda c: c.uuid, wide=True),
)

_DEVICES = (
    Column("DEVICE", lambda d: d.label),
    Column("CLASS", lambda d: d.device_class),
    Column("MEMORY", lambda d: as_size(d.memory_total_bytes), right=True),
    Column("USED", lambda d: as_size(d.memory_used_bytes), right=True),
    Column("PROCESSES", lambda d: None if d.processes is None else len(d.processes), right=True),
    Column("BUSY", lambda d: _unit(d.utilization_percent, "%"), wide=True, right=True),
    Column("POOL", lambda d: d.memory_pool, wide=True),
    Column("UUID", lambda d: d.uuid, wide=True),
)

_EXCLUDED = (
    Column("EXCLUDED", lambda x: _place(x.card, x.device)),
    Column("REASON", lambda x: x.reason),
    Column("DETAIL", lambda x: x.detail),
)


def as_contract(inventory: Inventory) -> dict[str, Any]:
    """Return the inventory as programs get it: its lists are there even when they are empty."""
    plain: dict[str, Any] = msgspec.to_builtins(inventory)
    warnings = plain.pop("warnings", [])
    lists = {name: plain.pop(name, []) for name in ("cards", "devices", "excluded")}
    return {**plain, **lists, "warnings": warnings}


def inventory_lines(inventory: Inventory, wide: bool) -> Iterator[str]:
    """Yield the inventory as tables, with what is wrong after them."""
    driver = f", driver {inventory.driver_version}" if inventory.driver_version else ""
    fallback = f" (instead of {inventory.fallback_from})" if inventory.fallback_from else ""
    yield f"{inventory.node}: read by {inventory.backend}{fallback}{driver}"
    tables = ((inventory.cards, _CARDS), (inventory.devices, _DEVICES))
    for rows, columns in (*tables, (inventory.excluded, _EXCLUDED)):
        if rows:
            yield ""
            yield from table_lines(rows, columns, wide)
    if inventory.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in inventory.warnings)


def _limits(card: Card) -> str | None:
    """Where a card slows down and shuts down: temperatures, or what is left of a margin."""
    limits = card.temperature_slowdown_celsius, card.temperature_shutdown_celsius
    kind = "°C"
    if limits == (None, None):
        limits = (
            card.temperature_slowdown_margin_celsius,
            card.temperature_shutdown_margin_celsius,
        )
        kind = "°C left"
    known = [f"{limit:g}" for limit in limits if limit is not None]
    return f"{'/'.join(known)} {kind}" if known else None


def _clocks(card: Card) -> str | None:
    clocks = card.clock_graphics_mhz, card.clock_memory_mhz
    known = [f"{clock:g}" for clock in clocks if clock is not None]
    return f"{'/'.join(known)} MHz" if known else None


def _wear(wear: Wear) -> str | None:
    """What a card has suffered: `none` where it counts and there is nothing, absent where not."""
    counted = msgspec.structs.asdict(wear)
    if all(value is None for value in counted.values()):
        return None
    said = [
        name.replace("_", " ") if value is True else f"{value} {name.replace('_', ' ')}"
        for name, value in counted.items()
        if value
    ]
    return ", ".join(said) or "none"


def _place(card: int | None, device: int | None) -> str | None:
    from llmgw.hardware.types import device_label

    number = card if device is None else device
    return None if number is None else device_label(number)


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"
