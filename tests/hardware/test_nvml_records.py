"""Whatever NVML is recorded to have answered, there is a machine or a reason why there is none."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmgw.hardware import nvml_probe
from llmgw.hardware.nvml import parse_record, read_record
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory
from llmgw.testing.fake_nvml import write_fake_nvml

from .described import MACHINES
from .support import needs_nvml

pytestmark = needs_nvml

NOISE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 1e308, 0.5),
    *("", "N/A", "GPU is lost", "\x00", "x" * 9999, [], {}, [[]], {"value": 1}, {"error": 15}),
    *({"error": 4, "said": "no"}, {"error": -1}, {"value": None}, {"value": {"pid": "x"}}),
)


@cache
def recorded(name: str) -> dict[str, Any]:
    """The record of a described machine."""
    with tempfile.TemporaryDirectory() as folder:
        library = write_fake_nvml(Path(folder), MACHINES[name])
        command = [sys.executable, "-P", nvml_probe.__file__, str(library)]
        found: dict[str, Any] = json.loads(subprocess.check_output(command))
    return found


def places(found: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """The path of every value inside a record."""
    keys = (
        found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    )
    inside = [places(found[key], (*here, key)) for key in keys]
    return [here, *(path for paths in inside for path in paths)]


@given(
    st.sampled_from(("a100-mixed-mig", "h100-virtual-machine", "t4", "gb10", "gb200-fabric")),
    st.lists(st.sampled_from(NOISE), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_a_mutated_record_never_breaks_discovery(
    name: str, noise: list[Any], chance: random.Random
) -> None:
    record = copy.deepcopy(recorded(name))
    for value in noise:
        *path, last = chance.choice(places(record)[1:])
        inside = record
        for key in path:
            inside = inside[key]
        inside[last] = copy.deepcopy(value)
    found = read_record("n1", parse_record(json.dumps(record)), host=None)
    if isinstance(found, Inventory):
        shape(found)
        readings(found)
        assert found.cards
        assert len({device.id for device in found.devices}) == len(found.devices)
    else:
        assert found.reason
        assert found.advice


@given(st.text())
def test_any_text_is_a_record_or_a_failure(text: str) -> None:
    parse_record(text)
    parse_record('{"cards":' * 50 + text)
