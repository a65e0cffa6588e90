"""Who has been silent for too long, and who is back: what a controller writes down of its nodes.

Time is a fact that only a shell can see, so it comes in as numbers of seconds on a clock that
never jumps; only differences matter. Pure: the shell asks once a second and appends what comes
back. One watch is made for each term, so a new leader gives every node a fresh lease.

Silence is evidence against the listener as well. All nodes get a fresh lease when the controller
itself was away or cut off, and when all that it watches fall silent together; of many that do,
only so many at a time count as lost, since a fault of the network is not a hundred dead machines.
A node that is lost again and again must be heard for longer and longer before it counts as back.

An agent of an earlier version sends no heartbeats, only samples, and those much more rarely: who
was never heard to beat may be silent for longer. What was heard of whom is kept beyond a term.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.core import events as e
from llmgw.core.cluster import FLAPPING_SECONDS, Cluster, Node

AWAY_SECONDS = 5.0
"""A look that comes so much later than the last one: this process did not run in between."""
LOST_AT_ONCE = 2
LOST_AT_ONCE_SHARE = 20
"""So many nodes may be lost without delay, and one of so many where that is more."""
SECONDS_FOR_ONE_MORE = 10.0
STEADY_SECONDS = 30.0
"""How long a node must be heard that was lost for the second time; doubled with each further."""
LONGEST_STEADY_SECONDS = 600.0
WITHOUT_HEARTBEATS = 3
"""So many times the limit may one be silent that sends samples alone."""
_SECOND_NS = 1_000_000_000


def steady_seconds(losses: int) -> float:
    """Return how long a node must be heard before it counts as back, after so many losses."""
    if losses < 2:
        return 0.0
    return min(STEADY_SECONDS * 2.0 ** min(losses - 2, 20), LONGEST_STEADY_SECONDS)


class Watch:
    """Hears signs of life and tells what to note. `limit_seconds` is the lease of a node.

    `beats` is when each node's newest heartbeat was heard, on the same clock; the caller keeps it
    for the watch of the next term, and notes it there before he says it here.
    """

    def __init__(
        self, limit_seconds: float, state: Cluster, now: float, beats: Mapping[str, float]
    ) -> None:
        self.doubt: str | None = None
        """Why silence was not believed at the last look, if it was not."""
        self._limit = limit_seconds
        self._beats = beats
        self._since = self._looked = now
        self._facts = {node.name: node.heard_ns for node in state.nodes.values()}
        self._heard: dict[str, float] = {}
        self._back: dict[str, float] = {}
        self._anchor = (state.sequence, state.time_ns, now)
        self._allowance = float("inf")

    def hear(self, node: str, now: float) -> None:
        """Take a sign of life."""
        if now - self._heard.get(node, float("-inf")) > self._patience(node):
            self._back[node] = now
        self._heard[node] = now

    def look(
        self, state: Cluster, now: float, *, connected: bool = True
    ) -> list[e.NodeLost | e.NodeReturned]:
        """Return which nodes are lost and which are back, to be written down at once."""
        away, self._looked, self.doubt = now - self._looked, now, None
        if state.sequence != self._anchor[0]:
            self._anchor = (state.sequence, state.time_ns, now)
        self._hear_facts(state, now)
        self._refill(state, away)
        if away > AWAY_SECONDS or not connected:
            why = f"this controller was away for {away:.1f} s" if connected else "the log is away"
            return self._believe_nothing(why, now)
        watched = [node for node in state.nodes.values() if node.started and not node.lost]
        silent = {node.name: self._silence(node, now) for node in watched}
        lost = sorted(
            (name for name, seconds in silent.items() if seconds > self._patience(name)),
            key=lambda name: -silent[name],
        )
        if lost and len(silent) > 1 and min(silent.values()) > self._limit / 2:
            return self._believe_nothing(f"all {len(silent)} nodes fell silent together", now)
        if len(lost) > self._allowance:
            self.doubt = f"{len(lost)} nodes are silent at once: they are given up by and by"
        lost = lost[: int(self._allowance)]
        self._allowance -= len(lost)
        back = [n.name for n in state.nodes.values() if n.lost and self._is_back(n, now)]
        term = state.term
        return [
            *(e.NodeLost(term=term, node=n, silent_seconds=round(silent[n], 1)) for n in lost),
            *(e.NodeReturned(term=term, node=n) for n in back),
        ]

    def _patience(self, node: str) -> float:
        """Return how long a node may be silent: longer if it sends no heartbeats, or no more."""
        beat = self._beats.get(node)
        beats = beat is not None and self._heard.get(node, beat) - beat <= self._limit
        return self._limit if beats else WITHOUT_HEARTBEATS * self._limit

    def _silence(self, node: Node, now: float) -> float:
        return now - max(self._heard.get(node.name, self._since), self._since)

    def _is_back(self, node: Node, now: float) -> bool:
        heard = self._heard.get(node.name)
        if heard is None or now - heard >= self._patience(node.name):
            return False
        return heard - self._back[node.name] >= steady_seconds(self._losses(node, now))

    def _losses(self, node: Node, now: float) -> int:
        """Return how often the node was lost of late, by the log's own clock."""
        _, anchor_ns, anchored = self._anchor
        now_ns = anchor_ns + (now - anchored) * _SECOND_NS
        return sum(now_ns - at_ns <= FLAPPING_SECONDS * _SECOND_NS for at_ns in node.losses)

    def _hear_facts(self, state: Cluster, now: float) -> None:
        """A fact is a sign of life as much as a sample is, and a new node's first one."""
        for node in state.nodes.values():
            if self._facts.get(node.name) != node.heard_ns:
                self._facts[node.name] = node.heard_ns
                self.hear(node.name, now)

    def _refill(self, state: Cluster, seconds: float) -> None:
        most = max(LOST_AT_ONCE, len(state.nodes) / LOST_AT_ONCE_SHARE)
        self._allowance = min(most, self._allowance + seconds / SECONDS_FOR_ONE_MORE)

    def _believe_nothing(self, why: str, now: float) -> list[e.NodeLost | e.NodeReturned]:
        self.doubt = f"{why}: every node gets {self._limit:g} s more"
        self._since = now
        return []
