"""What agents say of the parts of replicas, and what becomes of them."""

from __future__ import annotations

from typing import Any

from llmgw.core import events as e
from llmgw.testing.builders import From, Story, applied, card, entry, joined, serving

GANG = entry("m", engine="vllm", nodes=2, gpus=2, pp=2)


def one_part() -> Story:
    return serving(entry("m"), nodes=[joined("n1", card(0))])


def two_parts() -> Story:
    return serving(GANG, nodes=[joined("n1", card(0)), joined("n2", card(0))])


def starting(**fields: object) -> e.ReplicaStarting:
    told: dict[str, object] = {"replica": "r1", "generation": 1, "port": 1, "devices": (0,)}
    return e.ReplicaStarting(**(told | fields))  # type: ignore[arg-type]


def adopted(part: int = 0) -> e.ReplicaAdopted:
    return e.ReplicaAdopted(replica="r1", part=part, generation=1, pid=7, port=1)


def measured(memory_bytes: int) -> e.ReplicaBecameReady:
    return e.ReplicaBecameReady(
        replica="r1",
        generation=1,
        address="a",
        port=1,
        pid=7,
        seconds=1,
        memory_bytes=(memory_bytes,),
    )


def test_a_part_is_where_its_agent_last_said_and_at_which_attempt() -> None:
    story = one_part()
    part = story.state.replicas["r1"].parts[0]
    told: dict[str, Any] = {"replica": "r1", "generation": 1}
    story.given(starting(attempt=2, port=11))
    assert (part.attempt, part.port, part.pid, part.address) == (2, 11, None, None)
    story.given(e.ReplicaBecameReady(address="a", port=12, pid=5, seconds=1, **told))
    assert (part.attempt, part.port, part.pid, part.address) == (2, 12, 5, "a")
    story.given(e.ReplicaAdopted(pid=6, port=13, **told))
    assert (part.attempt, part.port, part.pid, part.address) == (2, 13, 6, "a")
    story.given(e.ReplicaFailed(attempt=3, reason="it fell", retry_seconds=1, **told))
    assert (part.attempt, part.port, part.pid, part.address) == (3, 13, None, "a")


def test_a_part_that_a_replica_does_not_have_is_a_stray() -> None:
    story = one_part().given(starting(part=7))
    assert story.state.nodes["n1"].strays == {"r1/7": (0,)}
    assert story.state.replicas["r1"].parts[0].phase == "assigned"


def test_strays_ask_for_one_new_command_and_not_for_one_each() -> None:
    story = one_part()
    before = story.state.nodes["n1"].revision
    story.given(starting(replica="r7"), starting(replica="r8"), starting(replica="r9"))
    assert len(story.state.nodes["n1"].strays) == 3
    assert story.state.nodes["n1"].revision == before + 1


def test_a_part_that_is_wanted_is_no_stray_any_more() -> None:
    story = one_part().given(starting(generation=9), starting())
    assert story.state.nodes["n1"].strays == {}


def test_only_the_first_part_of_several_says_where_to_meet() -> None:
    alone = one_part().given(starting(meeting_port=5))
    assert alone.state.replicas["r1"].parts[0].meeting_port is None
    story = two_parts().given(starting(meeting_port=5))
    before = {name: node.revision for name, node in story.state.nodes.items()}
    story.given(From("n2", starting(part=1, meeting_port=6)))
    assert [p.meeting_port for p in story.state.replicas["r1"].parts] == [5, None]
    assert {name: node.revision for name, node in story.state.nodes.items()} == before


def test_a_gang_is_adopted_as_it_is_once_its_first_part_said_where_to_meet() -> None:
    story = two_parts().given(starting(meeting_port=5), From("n2", starting(part=1)))
    story.given(adopted(), From("n2", adopted(part=1)))
    assert story.state.replicas["r1"].regroups == 0


def test_a_gang_that_is_retired_is_not_started_again() -> None:
    story = two_parts().given(starting(meeting_port=5))
    story.given(e.ReplicaRetired(term=1, at=1, replica="r1", reason="it is over"))
    story.given(e.ReplicaFailed(replica="r1", generation=1, reason="it fell", retry_seconds=1))
    assert (story.state.replicas["r1"].generation, story.state.replicas["r1"].regroups) == (1, 0)


def test_the_most_that_was_measured_counts_and_only_of_the_entry_in_force() -> None:
    story = one_part().given(measured(7), measured(5))
    assert story.state.models["m"].measured_bytes == 7
    request = story.state.sequence + 1
    story.given(applied(entry("m", context=4096)))
    story.given(e.CatalogAccepted(term=1, at=request, request=request), measured(9))
    assert story.state.models["m"].measured_bytes is None
