"""What an agent remembers is read by the agents after it, of whichever version."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from llmgw.core.memory import Memory
from tests.core.agent import Agent, exited, found
from tests.core.test_agent_stops import stuck

RELEASED = sorted(Path(__file__).parent.glob("remembered_*.json"))


def structs_of(kind: object) -> set[type[msgspec.Struct]]:
    """Return the structs that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = get_type_hints(kind).values()
        return {kind}.union(*(structs_of(field) for field in fields))
    return set().union(*(structs_of(inner) for inner in getattr(kind, "__args__", ())))


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_memory_of_every_released_version_is_read(path: Path) -> None:
    """One of its engines serves and is adopted; the other failed and has its next start."""
    memory = msgspec.json.decode(path.read_bytes(), type=Memory)
    agent = Agent(memory).up(found(pid=77))
    agent.then(
        "publish node.started",
        "publish node.inventory",
        "publish replica.adopted r1/0 attempt 1",
        "publish replica.starting r2/0 attempt 2 on port 18101",
        "spawn r2/0 attempt 2 on port 18101",
    )


def test_what_a_newer_version_adds_anywhere_is_passed_over() -> None:
    kinds = structs_of(Memory)
    assert len(kinds) > 10
    strict = [kind.__name__ for kind in kinds if kind.__struct_config__.forbid_unknown_fields]
    assert strict == []


def test_whatever_is_remembered_reads_back_the_same() -> None:
    memory = stuck(Agent().serving("r1", "r2").given(exited("r2"))).memory
    assert msgspec.json.decode(msgspec.json.encode(memory), type=Memory) == memory
