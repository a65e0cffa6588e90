"""What a person sees of an inventory: little as a rule, all that a fault shows in when asked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.cli.inventory import inventory_lines
from llmgw.testing.fake_smi import FakeCard, FakeMachine

from .described import H100, T4
from .support import A100, read


def table(card: FakeCard, *, wide: bool) -> str:
    inventory = read(FakeMachine((card,)), topology=True)
    return "\n".join(inventory_lines(inventory, wide))


@pytest.mark.parametrize(
    ("card", "cells"),
    [
        (
            T4,
            (
                *("93/96 °C", "585/5000 MHz", "sw_power_cap, hw_thermal_slowdown", "0-15"),
                "2 ecc corrected, 1 ecc volatile corrected, 2 retired pages",
            ),
        ),
        (H100, ("-2/-8 °C left", "1980/2619 MHz", "4 ecc volatile corrected", "0-23,48-71")),
        (replace(H100, ecc_volatile_corrected=0), ("  none  ",)),
        (replace(H100, remapped_rows=1, remap_pending=True), ("1 remapped rows, remap pending",)),
    ],
)
def test_limits_clocks_wear_and_what_a_card_is_near_are_shown_when_asked_for(
    card: FakeCard, cells: tuple[str, ...]
) -> None:
    wide, narrow = table(card, wide=True), table(card, wide=False)
    assert [cell for cell in cells if cell not in wide] == []
    assert [cell for cell in cells if cell in narrow] == []


def test_what_a_card_does_not_tell_is_a_dash_and_no_number() -> None:
    silent = replace(A100, clock_graphics_mhz=None, clock_memory_mhz=None, pcie_replays=None)
    shown = table(silent, wide=True)
    assert "None" not in shown
    assert "MHz" not in shown
    assert "0 %" in shown
