"""What a simulated controller has truly heard, and whether it may give up whom it gives up.

It holds what `llmgw.core.watch` says against the simulator's own account of signs of life: a node
is given up only after a silence that long, a few at a time, and never for the blindness of whoever
listens. Called by the simulated controllers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.watch import (
    LOST_AT_ONCE,
    LOST_AT_ONCE_SHARE,
    SECONDS_FOR_ONE_MORE,
    WITHOUT_HEARTBEATS,
)
from llmgw.testing.chance import Violation

LOST_SECONDS = 15.0
JUST_NOW_SECONDS = 4.0
"""Within it who lives is heard. One sign of life may be lost while all seems well."""


class Hearing:
    """The signs of life that one controller could hear, had it been awake and not cut off.

    `spared` are nodes that must not be given up, whatever is heard.
    """

    def __init__(self, name: str) -> None:
        self.limit_seconds = LOST_SECONDS
        self.spared: Collection[str] = ()
        self._name = name
        self._heard: dict[str, float] = {}
        self._facts: dict[str, int] = {}
        self._losses: list[float] = []

    def spare(self, state: Cluster, now: float) -> None:
        """From now on nobody at all can be heard: if all were heard just now, all must be kept."""
        there = [node.name for node in state.nodes.values() if node.started and not node.lost]
        silent = [now - self._heard.get(name, float("-inf")) for name in there]
        all_heard = len(there) > 1 and max(silent) <= JUST_NOW_SECONDS
        self.spared = there if all_heard else ()

    def begin(self) -> None:
        """Another watch begins, which has given nobody up yet."""
        self._losses.clear()

    def hear(self, node: str, now: float) -> None:
        """Note a sign of life that came as far as the log; after it nobody is spared."""
        self._heard[node] = now
        self.spared = ()

    def hear_facts(self, state: Cluster, now: float) -> None:
        """Note the facts that were folded: whoever writes is alive."""
        for node in state.nodes.values():
            if self._facts.get(node.name) != node.heard_ns:
                self._facts[node.name] = node.heard_ns
                self.hear(node.name, now)

    def check(
        self, state: Cluster, noted: Sequence[e.NodeLost | e.NodeReturned], now: float
    ) -> None:
        """Raise `Violation` when what the watch noted is not what was heard."""
        for said in noted:
            silent = now - self._heard.get(said.node, float("-inf"))
            if isinstance(said, e.NodeReturned):
                if silent > WITHOUT_HEARTBEATS * self.limit_seconds:
                    self._say(f"takes {said.node} back, silent for {silent:.0f} s")
                continue
            if silent <= self.limit_seconds - JUST_NOW_SECONDS:
                self._say(f"gives {said.node} up, alive {silent:.1f} s ago")
            if said.node in self.spared:
                self._say(f"gives {said.node} up while no node at all can be heard")
            self._losses.append(now)
        self._check_pace(len(state.nodes))

    def _check_pace(self, nodes: int) -> None:
        """No more are given up at a time than the limit and what time adds to it allow."""
        most = max(LOST_AT_ONCE, nodes // LOST_AT_ONCE_SHARE)
        for count, since in enumerate(reversed(self._losses), start=1):
            seconds = self._losses[-1] - since
            if count > most + seconds / SECONDS_FOR_ONE_MORE + 1:
                self._say(f"gives {count} nodes up in {seconds:.0f} s")

    def _say(self, what: str) -> None:
        raise Violation(f"controller {self._name} {what}")
