"""NVLink domains: groups of cards in which every pair is linked."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.hardware.topology import cliques, parse_topology
from llmgw.hardware.types import Inventory
from llmgw.testing.fake_smi import NO_CLUSTER, FakeMachine, render_report, render_topology

from .support import A100, L40S, SLICE, edited, read

CLUSTER = "0a0b0c0d-0000-0000-0000-000000000001"

# The hybrid mesh of eight V100: each card has four neighbours.
MESH = (
    *((0, 1), (0, 2), (0, 3), (0, 6), (1, 2), (1, 3), (1, 7), (2, 3), (2, 4), (3, 5)),
    *((4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
)


def domains(inventory: Inventory) -> list[str | None]:
    return [card.nvlink_domain for card in inventory.cards]


def test_a_completed_fabric_without_cluster_is_one_domain_of_the_node() -> None:
    card = replace(A100, fabric=("Completed", NO_CLUSTER, 0))
    assert domains(read(FakeMachine((card,) * 8))) == ["node:n1/0"] * 8


def test_a_fabric_of_a_cluster_is_a_domain_across_nodes() -> None:
    first = replace(A100, fabric=("Completed", CLUSTER, 2))
    other = replace(A100, fabric=("Completed", CLUSTER, 3))
    found = domains(read(FakeMachine((first, first, other)), topology=True))
    assert found == [f"{CLUSTER}/2", f"{CLUSTER}/2", f"{CLUSTER}/3"]


def test_a_card_alone_on_its_fabric_is_in_no_domain_of_its_node() -> None:
    card = replace(A100, fabric=("Completed", NO_CLUSTER, 0))
    assert domains(read(FakeMachine((card, L40S)))) == [None, None]


def test_a_fabric_that_completed_with_an_error_is_not_used_and_warned_of() -> None:
    machine = FakeMachine((replace(A100, fabric=("Completed", NO_CLUSTER, 0)),) * 2)
    report = edited(render_report(machine), "status", "Insufficient Resources")
    inventory = read(machine, report=report)
    assert domains(inventory) == [None, None]
    assert "Insufficient Resources" in inventory.warnings[0]


def test_a_lost_card_and_a_carved_card_leave_the_domain() -> None:
    card = replace(A100, fabric=("Completed", NO_CLUSTER, 0))
    carved = replace(card, mig="Enabled", instances=(SLICE,))
    inventory = read(FakeMachine((replace(card, lost=True), card, carved, card)))
    assert domains(inventory) == [None, "node:n1/1", None, "node:n1/1"]


def test_cards_without_nvlink_have_no_domain() -> None:
    inventory = read(FakeMachine((L40S,) * 4), topology=True)
    assert domains(inventory) == [None] * 4
    assert inventory.cards[0].nvlink_peers == ()
    assert inventory.cards[0].numa_node == 0


def test_a_bridge_makes_a_pair_and_not_a_domain_of_all() -> None:
    inventory = read(FakeMachine((L40S,) * 4, links=((0, 1), (2, 3))), topology=True)
    assert domains(inventory) == ["node:n1/0", "node:n1/0", "node:n1/2", "node:n1/2"]
    assert inventory.cards[3].nvlink_peers == (2,)


def test_a_mesh_that_is_connected_but_not_complete_is_two_domains() -> None:
    inventory = read(FakeMachine((L40S,) * 8, links=MESH), topology=True)
    assert domains(inventory) == ["node:n1/0"] * 4 + ["node:n1/4"] * 4
    assert inventory.cards[0].nvlink_peers == (1, 2, 3, 6)


def test_a_link_that_only_one_end_reports_is_none() -> None:
    text = render_topology(FakeMachine((L40S,) * 2, links=((0, 1),)))
    topology = parse_topology(text.replace("NV4", "SYS", 1))
    assert topology is not None
    assert topology.peers == {0: frozenset(), 1: frozenset()}


def test_a_topology_reads_the_same_without_tabs_escapes_or_affinity() -> None:
    text = render_topology(FakeMachine((L40S,) * 8, links=MESH))
    expected = parse_topology(text)
    assert expected is not None
    spaced = parse_topology(text.replace("\x1b[4m", "").expandtabs(8))
    moved = parse_topology("\x1b[4m\t" + text.removeprefix("\x1b[4m\t").replace("0-15", ""))
    assert spaced is not None
    assert moved is not None
    assert spaced.peers == moved.peers == expected.peers
    assert moved.numa == expected.numa


@pytest.mark.parametrize(
    ("affinity", "read"),
    [("0-23,48-71", "0-23,48-71"), ("7", "7"), ("", None), ("N/A", None), ("0-", None)],
)
def test_a_card_is_near_the_processors_that_are_listed(affinity: str, read: str | None) -> None:
    text = render_topology(FakeMachine((replace(L40S, processors=affinity), L40S)))
    topology = parse_topology(text)
    assert topology is not None
    assert (topology.cpus.get(0), topology.cpus.get(1)) == (read, "0-15")
    assert topology.numa == {0: 0, 1: 0}


def test_where_an_affinity_is_empty_and_no_tab_tells_so_no_other_number_takes_its_place() -> None:
    cards = (replace(L40S, processors="", memory_node=1), replace(L40S, memory_node=2))
    machine = FakeMachine(cards, links=((0, 1),))
    header, *rows = render_topology(machine).replace("\t\tN/A", "\tN/A").splitlines()
    topology = parse_topology("\n".join([header, *(" ".join(row.split()) for row in rows)]))
    assert topology is not None
    assert topology.peers == {0: frozenset({1}), 1: frozenset({0})}
    assert (topology.cpus, topology.numa) == ({1: "0-15"}, {1: 2})


def test_an_error_message_is_no_topology() -> None:
    assert parse_topology("Failed to initialize NVML: Unknown Error\n") is None


@given(st.sets(st.sampled_from(list(combinations(range(9), 2)))))
def test_every_group_is_complete_and_no_card_is_in_two(pairs: set[tuple[int, int]]) -> None:
    peers = {n: {b for a, b in pairs if a == n} | {a for a, b in pairs if b == n} for n in range(9)}
    groups = cliques({card: frozenset(found) for card, found in peers.items()})
    members = [card for group in groups for card in group]
    assert len(members) == len(set(members))
    assert all(b in peers[a] for group in groups for a, b in combinations(group, 2))


@given(st.text())
def test_no_text_breaks_the_topology_reader(text: str) -> None:
    parse_topology("GPU0 GPU1\nGPU0 " + text)
    parse_topology(text)
