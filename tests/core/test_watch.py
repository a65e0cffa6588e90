"""Who counts as lost and who as back: numbers in, events out, no clock."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llmgw.core import events as e
from llmgw.core.cluster import FLAPPING_SECONDS, KEPT_LOSSES
from llmgw.core.watch import (
    LONGEST_STEADY_SECONDS,
    STEADY_SECONDS,
    WITHOUT_HEARTBEATS,
    Watch,
    steady_seconds,
)
from llmgw.testing.builders import From, Story, entry, joined, processor, serving, started

LIMIT = 15.0


class Watched:
    """A cluster under a watch that is looked at every second, and folds what is noted.

    Agents of before, which send samples alone, are those in `old`.
    """

    def __init__(self, nodes: int, *, old: Iterable[str] = ()) -> None:
        self.story = serving(nodes=[joined(f"n{k}", processor()) for k in range(1, nodes + 1)])
        self.now = 1000.0
        self.old = {*old}
        self.beats = dict.fromkeys(self.names - self.old, self.now)
        self.next_term()
        self.doubts: list[str] = []

    def next_term(self) -> None:
        self.watch = Watch(LIMIT, self.story.state, self.now, self.beats)

    @property
    def names(self) -> set[str]:
        return {*self.story.state.nodes}

    @property
    def lost(self) -> set[str]:
        return {node.name for node in self.story.state.nodes.values() if node.lost}

    def after(self, seconds: float, *, without: Iterable[str] = (), connected: bool = True) -> None:
        """Let time go on; all nodes are heard each second but these."""
        for _ in range(round(seconds)):
            self.now += 1
            for name in sorted(self.names - {*without}):
                self.hear(name)
            self.look(connected=connected)

    def hear(self, name: str) -> None:
        if name not in self.old:
            self.beats[name] = self.now
        self.watch.hear(name, self.now)

    def sampled(self, name: str, every: int, *, times: int) -> None:
        """Let time go on while all others are heard each second, and one so rarely."""
        for _ in range(times):
            self.after(every, without=[name])
            self.hear(name)

    def look(self, *, connected: bool = True) -> None:
        noted = self.watch.look(self.story.state, self.now, connected=connected)
        if self.watch.doubt is not None:
            self.doubts.append(self.watch.doubt)
        self.story.given(*noted)

    def lose(self, name: str) -> None:
        """Let a node be silent for as long as it takes, and be heard again."""
        self.after(LIMIT + 1, without=[name])
        assert name in self.lost


def test_a_node_is_lost_after_its_lease_and_not_before() -> None:
    one = Watched(3)
    one.after(LIMIT, without=["n2"])
    assert one.lost == set()
    one.after(1, without=["n2"])
    assert one.lost == {"n2"}
    body = one.story.records[-1].body
    assert isinstance(body, e.NodeLost)
    assert body.silent_seconds == LIMIT + 1


def test_a_node_that_is_heard_again_is_back_at_once() -> None:
    one = Watched(3)
    one.lose("n2")
    one.after(1)
    assert one.lost == set()


def test_a_fact_is_a_sign_of_life_as_much_as_a_sample() -> None:
    one = Watched(3)
    one.after(10, without=["n2"])
    one.story.given(From("n2", started("b2")))
    one.after(10, without=["n2"])
    assert one.lost == set()
    one.after(7, without=["n2"])
    assert one.lost == {"n2"}


def test_a_node_that_joins_has_been_heard_though_it_never_beat() -> None:
    one = Watched(3)
    one.after(60)
    one.story.given(*joined("n4", processor()))
    one.look()
    one.after(WITHOUT_HEARTBEATS * LIMIT, without=["n4"])
    assert one.lost == set()
    one.after(1, without=["n4"])
    assert one.lost == {"n4"}


def test_the_only_node_there_is_can_be_lost() -> None:
    one = Watched(1)
    one.lose("n1")


@pytest.mark.parametrize("nodes", [2, 3, 200])
def test_when_all_fall_silent_together_the_listener_doubts_itself(nodes: int) -> None:
    one = Watched(nodes)
    one.after(100, without=one.names)
    assert one.lost == set()
    assert f"all {nodes} nodes fell silent together" in one.doubts[0]


def test_all_that_are_left_count_as_all() -> None:
    one = Watched(3)
    one.lose("n3")
    one.after(100, without=one.names)
    assert one.lost == {"n3"}


def test_a_controller_that_was_away_gives_every_node_a_fresh_lease() -> None:
    one = Watched(3)
    one.after(14, without=["n2"])
    one.now += 60
    one.look()
    assert one.doubts == ["this controller was away for 60.0 s: every node gets 15 s more"]
    one.after(LIMIT, without=["n2"])
    assert one.lost == set()
    one.after(1, without=["n2"])
    assert one.lost == {"n2"}


def test_a_controller_that_is_cut_off_blames_nobody() -> None:
    one = Watched(3)
    one.after(100, without=["n2"], connected=False)
    assert one.lost == set()
    one.after(LIMIT + 1, without=["n2"])
    assert one.lost == {"n2"}


def test_a_new_leader_gives_every_node_a_fresh_lease() -> None:
    one = Watched(3)
    one.after(14, without=["n2"])
    one.next_term()
    one.after(LIMIT, without=["n2"])
    assert one.lost == set()


def test_a_new_leader_does_not_take_a_lost_node_for_one_that_it_hears() -> None:
    one = Watched(3)
    one.lose("n2")
    one.next_term()
    one.after(100, without=["n2"])
    assert one.lost == {"n2"}


# --- heartbeats, and agents of before that send none ----------------------------------------------


def test_a_node_that_was_never_heard_to_beat_may_be_silent_for_longer() -> None:
    one = Watched(3, old=["n2"])
    one.after(WITHOUT_HEARTBEATS * LIMIT, without=["n2"])
    assert one.lost == set()
    one.after(1, without=["n2"])
    assert one.lost == {"n2"}


@pytest.mark.parametrize("every", [10, 15, 20])
def test_a_node_that_sends_samples_alone_is_not_lost_between_them(every: int) -> None:
    one = Watched(3, old=["n2"])
    one.sampled("n2", every, times=10)
    assert one.lost == set()


def test_a_node_that_sends_samples_alone_comes_back_like_any_other() -> None:
    one = Watched(3, old=["n2"])
    for _ in range(2):
        one.after(WITHOUT_HEARTBEATS * LIMIT + 1, without=["n2"])
        assert one.lost == {"n2"}
        one.sampled("n2", 20, times=4)
        assert one.lost == set()


def test_an_agent_that_is_upgraded_is_held_to_the_shorter_limit() -> None:
    one = Watched(3, old=["n2"])
    one.sampled("n2", 10, times=3)
    one.old.clear()
    one.after(5)
    one.after(LIMIT + 1, without=["n2"])
    assert one.lost == {"n2"}


def test_an_agent_that_is_taken_back_to_a_version_before_heartbeats_is_not_lost() -> None:
    one = Watched(3)
    one.after(5)
    one.old.add("n2")
    one.sampled("n2", 10, times=3)
    one.sampled("n2", 2 * 10, times=3)
    assert one.lost == set()


def test_a_new_leader_knows_who_beats_from_the_time_when_it_did_not_lead() -> None:
    one = Watched(3)
    one.after(5)
    one.next_term()
    one.after(LIMIT + 1, without=["n2"])
    assert one.lost == {"n2"}


def test_in_the_middle_of_an_upgrade_silence_of_all_is_doubted_as_well() -> None:
    one = Watched(4, old=["n1", "n2"])
    one.after(300, without=one.names)
    assert one.lost == set()
    assert "all 4 nodes fell silent together" in one.doubts[0]


# --- many at once, and again and again ------------------------------------------------------------


def test_of_many_silent_nodes_only_some_are_given_up_at_a_time() -> None:
    one = Watched(100)
    half = {f"n{k}" for k in range(1, 51)}
    one.after(LIMIT + 1, without=half)
    assert len(one.lost) == 5
    assert "50 nodes are silent at once" in one.doubts[-1]
    one.after(21, without=half)
    assert len(one.lost) == 7
    one.after(3)
    assert one.lost == set(), "and a network that is mended has cost no more"


def test_of_four_nodes_two_are_lost_at_once_and_the_third_after_a_while() -> None:
    one = Watched(4)
    gone = ["n1", "n2", "n3"]
    one.after(LIMIT + 1, without=gone)
    assert len(one.lost) == 2
    one.after(11, without=gone)
    assert one.lost == {*gone}


def test_a_flapping_node_must_be_heard_for_longer_and_longer() -> None:
    one = Watched(3)
    waited = []
    for _ in range(5):
        one.lose("n2")
        waited.append(0)
        while "n2" in one.lost:
            one.after(1)
            waited[-1] += 1
    assert waited == [1, 31, 61, 121, 241]


def test_a_flapping_node_that_is_silent_again_begins_to_wait_anew() -> None:
    one = Watched(3)
    one.lose("n2")
    one.after(1)
    one.lose("n2")
    one.after(25)
    one.after(LIMIT + 1, without=["n2"])
    one.after(25)
    assert one.lost == {"n2"}
    one.after(6)
    assert one.lost == set()


def test_old_losses_are_forgotten() -> None:
    one = Watched(3)
    for _ in range(3):
        one.lose("n2")
    one.now += FLAPPING_SECONDS
    one.next_term()
    one.look()
    one.now += FLAPPING_SECONDS + 1
    one.look()
    one.after(1)
    assert one.lost == set()


def test_a_new_leader_knows_from_the_log_who_flaps() -> None:
    one = Watched(3)
    one.lose("n2")
    one.after(1)
    one.lose("n2")
    one.next_term()
    one.after(STEADY_SECONDS)
    assert one.lost == {"n2"}
    one.after(1)
    assert one.lost == set()


def test_the_wait_grows_to_a_limit_and_few_losses_are_kept() -> None:
    assert [steady_seconds(n) for n in (0, 1, 2, 3)] == [0, 0, STEADY_SECONDS, 2 * STEADY_SECONDS]
    assert steady_seconds(10**9) == LONGEST_STEADY_SECONDS
    one = Watched(2)
    for _ in range(KEPT_LOSSES + 3):
        one.story.given(e.NodeLost(term=1, node="n1", silent_seconds=20))
        one.story.given(e.NodeReturned(term=1, node="n1"))
    assert len(one.story.state.nodes["n1"].losses) == KEPT_LOSSES


def test_what_replaced_a_replica_of_a_flapping_node_stays() -> None:
    m = entry("m", "cpu", gib=5)
    story = serving(m, nodes=[joined("n1", processor()), joined("n2", processor())])
    assert story.state.replicas["r1"].parts[0].node == "n1"
    for _ in range(2):
        story.given(e.NodeLost(term=1, node="n1", silent_seconds=20)).decided()
        for name in story.state.replicas:
            ready(story, name)
        story.given(e.NodeReturned(term=1, node="n1"))
    story.then("retire r1: more than the 1 wanted")


def ready(story: Story, name: str) -> None:
    said = e.ReplicaBecameReady(
        replica=name, generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
    )
    story.given(From(story.state.replicas[name].parts[0].node, said))
