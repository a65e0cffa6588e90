"""Whatever NVML is said to have answered, it tells a machine or says that it cannot be told."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import HostMemory
from llmgw.hardware.nvml import Nvml, parse_record, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_record import Record
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeMachine

from .described import GB10, H100, MIXED_A100, SHARED_H200
from .support import A100, L40S, needs_nvml
from .test_mutations import assert_sound

pytestmark = needs_nvml

MACHINES = (
    FakeMachine(MIXED_A100[:3], driver="535.104.05"),
    FakeMachine((H100, H100, replace(L40S, lost=True)), switched=(0, 1)),
    FakeMachine((SHARED_H200, GB10, replace(L40S, handle_error=15))),
    FakeMachine((replace(A100, mig="Enabled", bare_gpu_instances=(1, 5)),)),
)
Place = tuple[Any, ...]
HOST = HostMemory(128 << 30, 100 << 30)
VALUES: tuple[Any, ...] = (
    *(None, "", True, False, 0, -1, 1, 7, 99, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -2.5),
    *("x", "GPU-x", "1.5", "9" * 5000, [], {}, [1], {"total": -1}, {"pid": 0}, [[0]]),
)


class Answers(list[dict[str, Any]]):
    """What NVML answers about each machine, as plain JSON values: too much to be printed."""

    def __repr__(self) -> str:
        return "what NVML answers"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    def ask(machine: FakeMachine) -> dict[str, Any]:
        library = write_fake_nvml(tmp_path_factory.mktemp("nvml"), machine)
        record = anyio.run(Nvml(library=str(library)).record)
        assert isinstance(record, Record)
        found: dict[str, Any] = json.loads(msgspec.json.encode(record))
        return found

    return Answers(ask(machine) for machine in MACHINES)


def places(value: object, above: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value, as the keys that lead to it."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*above, key))


def at(value: Any, place: Place) -> Any:  # noqa: ANN401 - any JSON value
    for key in place:
        value = value[key]
    return value


def mutated(value: dict[str, Any], chance: random.Random, times: int) -> dict[str, Any]:
    """The value with something left out, put twice, put elsewhere, or in another's place."""
    value = copy.deepcopy(value)
    for _ in range(times):
        found = [*places(value)]
        if not found:
            break
        place = chance.choice(found)
        above, key = at(value, place[:-1]), place[-1]
        kind = chance.choice(("leave out", "twice", "elsewhere", "another", "another"))
        if kind == "leave out":
            del above[key]
        elif kind == "twice" and isinstance(above, list):
            above.insert(key, copy.deepcopy(above[key]))
        elif kind == "elsewhere":
            above[key] = copy.deepcopy(at(value, chance.choice(found)))
        else:
            above[key] = copy.deepcopy(chance.choice(VALUES))
    return value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(MACHINES) - 1), st.randoms(use_true_random=False), st.integers(1, 5))
def test_mutated_answers_are_a_sound_inventory_or_a_failure_with_a_reason(
    answers: Answers, machine: int, chance: random.Random, times: int
) -> None:
    text = json.dumps(mutated(answers[machine], chance, times))
    found = read_record("n1", parse_record(text), host=HOST)
    if isinstance(found, Failure):
        assert found.reason
    else:
        assert_sound(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0))
def test_answers_that_were_cut_short_are_a_failure(answers: Answers, place: int) -> None:
    text = json.dumps(answers[0])
    assert isinstance(parse_record(text[: place % len(text)]), Failure)


def test_a_card_that_answers_and_does_not_is_no_machine(answers: Answers) -> None:
    record = copy.deepcopy(answers[2])
    for card in record["cards"]:
        card["index"] = 0
    found = read_record("n1", parse_record(json.dumps(record)), host=HOST)
    assert isinstance(found, Failure)
    assert "does not belong together" in found.reason or "same index" in found.reason


def test_a_capture_of_such_answers_names_its_file(answers: Answers, tmp_path: Path) -> None:
    from llmgw.hardware.discover import HardwareSettings, discover

    (tmp_path / "nvml.json").write_text(json.dumps(answers[0])[:500])
    settings = HardwareSettings(node="n1", backend="nvml", capture_from=tmp_path)
    with pytest.raises(BackendUnavailable):
        anyio.run(discover, settings)
