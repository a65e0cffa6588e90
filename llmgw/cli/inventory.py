"""How an inventory is printed: for programs as the contract says, for people as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llmgw.cli.output import Column, table_lines
from llmgw.cli.tables import as_size
from llmgw.hardware.types import Inventory

_CARDS = (
    Column("CARD", lambda c: c.index, right=True),
    Column("NAME", lambda c: c.name),
    Column("CLASS", lambda c: c.card_class),
    Column("MEMORY", lambda c: as_size(c.memory_total_bytes), right=True),
    Column("MIG", lambda c: c.mig_mode),
    Column("NVLINK", lambda c: c.nvlink_domain),
    Column("HEAT", lambda c: _unit(c.temperature_celsius, "°C"), right=True),
    Column("POWER", lambda c: _unit(c.power_watts, "W"), right=True),
    Column("PCI", lambda c: c.pci, wide=True),
    Column("UUID", lambda c: c.uuid, wide=True),
)

_DEVICES = (
    Column("DEVICE", lambda d: d.label),
    Column("CLASS", lambda d: d.device_class),
    Column("MEMORY", lambda d: as_size(d.memory_total_bytes), right=True),
    Column("USED", lambda d: as_size(d.memory_used_bytes), right=True),
    Column("PROCESSES", lambda d: None if d.processes is None else len(d.processes), right=True),
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


def _place(card: int | None, device: int | None) -> str | None:
    from llmgw.hardware.types import device_label

    number = card if device is None else device
    return None if number is None else device_label(number)


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"
