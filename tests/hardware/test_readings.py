"""Printed values: what is measured, and what only says that nothing was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.hardware import readings as read

NO_VALUE = (
    *("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "GPU is lost"),
    *("[Insufficient Permissions]", "Requested functionality has been deprecated", "ERR!"),
    *("[GPU requires reset]", "None", "", "  ", "Not Active", "-", "NaN W", "inf C", "12 parsecs"),
)
READERS = (read.celsius, read.watts, read.percent, read.fan_percent, read.mebibytes, read.counter)


@pytest.mark.parametrize("text", NO_VALUE)
def test_a_text_that_is_no_value_is_absent(text: str) -> None:
    assert [reader(text) for reader in READERS] == [None] * len(READERS)
    assert read.yes_no(text) is None


def test_an_element_that_is_not_there_is_absent() -> None:
    assert [reader(None) for reader in READERS] == [None] * len(READERS)


def test_a_measured_zero_stays_zero() -> None:
    assert read.percent("0 %") == 0
    assert read.mebibytes("0 MiB") == 0
    assert read.celsius("0 C") == 0
    assert read.counter("0") == 0


def test_values_are_read_with_their_units() -> None:
    assert read.watts("26.78 W") == 26.78
    assert read.margin_celsius("-8 C") == -8
    assert read.celsius("-1 C") is None
    assert read.mebibytes("15360 MiB") == 15360 * 2**20
    assert read.counter(" 4294 ") == 4294
    assert read.fan_percent("104 %") == 104


@pytest.mark.parametrize("text", ["26.78 C", "26.78 %", "26.78 MiB", "26.78 KW"])
def test_a_value_in_another_unit_is_absent(text: str) -> None:
    assert read.watts(text) is None


@pytest.mark.parametrize("ones", [2**32 - 1, 2**63 - 1, 2**64 - 1])
def test_all_ones_is_absent(ones: int) -> None:
    assert read.counter(str(ones)) is None
    assert read.percent(f"{ones} %") is None
    assert read.watts(f"{ones} W") is None
    assert read.mebibytes(f"{ones} MiB") is None


def test_a_negative_amount_is_absent() -> None:
    assert read.watts("-1.00 W") is None
    assert read.mebibytes("-1 MiB") is None


def test_a_counter_that_no_part_keeps_is_absent_and_one_part_is_enough() -> None:
    assert read.total(None, None) is None
    assert read.total(None, 0) == 0
    assert read.total(3, None, 4) == 7


@given(st.text())
def test_no_text_breaks_a_reader(text: str) -> None:
    for reader in READERS:
        reader(text)


TOTAL = 48 * 2**30


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ((TOTAL, 1, 2, TOTAL - 3), (TOTAL, 1, 2, TOTAL - 3)),
        ((TOTAL, None, TOTAL, 0), (TOTAL, None, TOTAL, 0)),
        ((TOTAL, 0, 0, TOTAL), (TOTAL, 0, 0, TOTAL)),
        ((TOTAL, 1, 2, TOTAL + 1), (TOTAL, 1, 2, None)),
        ((TOTAL, 1, 2 * TOTAL, 5), (TOTAL, 1, None, 5)),
        ((TOTAL, 2 * TOTAL, 1, 5), (TOTAL, None, 1, 5)),
        ((TOTAL, 1, TOTAL - 1, TOTAL - 1), (TOTAL, 1, None, None)),
        ((None, 1, 2, 3), (None, 1, 2, 3)),
    ],
)
def test_amounts_that_contradict_the_total_are_absent(
    memory: read.Memory, expected: read.Memory
) -> None:
    assert read.believed(memory) == expected


def test_amounts_that_are_rounded_or_moved_meanwhile_contradict_nothing() -> None:
    nearly = (TOTAL, None, TOTAL // 2 + 2**21, TOTAL // 2)
    assert read.believed(nearly) == nearly


@given(st.tuples(*[st.none() | st.integers(0, 2**50)] * 4))
def test_no_amount_that_is_told_is_larger_than_the_whole(memory: read.Memory) -> None:
    found = read.believed(memory)
    total, *parts = found
    assert total == memory[0]
    assert total is None or all(part is None or part <= total for part in parts)
    assert read.believed(found) == found
