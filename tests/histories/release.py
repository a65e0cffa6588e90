"""Writes down what a version of llmgw decides, once, when it is released.

    python -m tests.histories.release 0.2

One history with every kind of decision: groups and instances, models that fit nowhere, failures,
lost nodes, what an operator asks for, a second controller. It goes to `released/VERSION.llmgw`,
which is never written again: tests decide it again with every later version.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.log.archive import write_archive
from llmgw.log.base import Bounds, Message
from llmgw.testing.builders import (
    CLUSTER,
    SECOND_NS,
    From,
    Story,
    applied,
    card,
    elected,
    entry,
    instance,
    joined,
    processor,
    started,
)

FOLDER = Path(__file__).parent / "released"
BEGIN_NS = 1_772_366_400 * SECOND_NS  # 2026-03-01T12:00:00Z
PORT = 18_100


class Fleet(Story):
    """A story whose nodes do what they are told."""

    def settled(self) -> Self:
        """Decide and obey until nothing more comes of it."""
        while decisions := self.decisions():
            self.given(*decisions)
            for decision in decisions:
                if isinstance(decision, SetAssignments):
                    self.given(*self._answers(decision))
        return self

    def _answers(self, command: SetAssignments) -> Iterator[From]:
        node = self.state.nodes[command.node]
        if node.lost:
            return
        wanted = {(one.replica, one.part) for one in command.assignments}
        for replica in [*self.state.replicas.values()]:
            for number, part in enumerate(replica.parts):
                if part.node != node.name:
                    continue
                about: dict[str, Any] = {
                    "replica": replica.name,
                    "part": number,
                    "generation": replica.generation,
                }
                if (replica.name, number) not in wanted:
                    gone = e.ReplicaStopped(**about, attempt=part.attempt, reason="not wanted")
                    yield From(node.name, gone)
                elif part.phase == "assigned":
                    yield from self._starts(node.name, part.devices, about)
        done = e.CommandCompleted(revision=command.revision, term=command.term)
        yield From(node.name, done)

    def _starts(self, node: str, devices: tuple[int, ...], about: dict[str, Any]) -> Iterator[From]:
        starting = e.ReplicaStarting(**about, port=PORT, devices=devices)
        ready = e.ReplicaBecameReady(**about, address="127.0.0.1", port=PORT, pid=7, seconds=2.5)
        yield From(node, starting)
        yield From(node, ready)


def history() -> Fleet:
    """Return the history."""
    chat = entry("chat", "l40s-*", gib=20, replicas=2, priority=5)
    group = entry("group", "l40s-*", gib=40, gpus=2, tp=2)
    part = entry("part", "a100-80g-mig-3g.40gb", gib=8, replicas=2)
    small = entry("small", "cpu", gib=4)
    huge = entry("huge", "l40s-*", "a100-80g", gib=300)
    carved = card(0, gib=80, of_class="a100-80g", mig=True)
    fleet = Fleet()
    fleet.given(
        *joined("n1", *(card(n, domain="a") for n in range(4))),
        *joined("n2", *(card(n) for n in range(2)), processor()),
        *joined("n3", carved, *(instance(carved, n, gib=40, profile="3g.40gb") for n in (1, 2))),
        elected(),
        applied(chat, group, part, small, huge),
    ).settled()
    for attempt in range(2, 7):
        fleet.given(*failure("chat", attempt, fleet)).settled()
    failing = e.Condition(device=0, name="failing", detail="r1 failed 5 times")
    where = next(iter(fleet.state.replicas.values())).parts[0].node
    fleet.given(From(where, e.NodeConditionsChanged(conditions=(failing,)))).settled()
    fleet.given(From(where, e.NodeConditionsChanged(conditions=()))).settled()
    fleet.given(e.ModelScaled(model="chat", replicas=1)).settled()
    fleet.given(e.NodeDrained(node="n2")).settled()
    fleet.given(e.NodeCordoned(node="n1"), e.NodeUncordoned(node="n2")).settled()
    fleet.given(e.ModelScaled(model="chat", replicas=3), e.NodeUncordoned(node="n1")).settled()
    fleet.given(e.NodeLost(term=1, node="n3", silent_seconds=45.0)).settled()
    fleet.given(From("n3", started("b2")), e.NodeReturned(term=1, node="n3")).settled()
    fleet.given(e.ReplicaRestartAsked(replica=next(iter(fleet.state.replicas)))).settled()
    fleet.given(elected(2, "b"), e.ModelDeleted(model="small")).settled()
    other = entry("chat", "l40s-*", gib=24, replicas=2, priority=5)
    fleet.given(applied(other, group, part)).settled()
    late = entry("late", "l40s-*", gib=30, replicas=9, priority=9)
    fleet.given(applied(other, group, late)).settled()
    fleet.given(applied(entry("no", gib=0))).settled()
    return fleet.given(applied()).settled()


def failure(model: str, attempt: int, fleet: Story) -> Iterator[From]:
    """Yield a failed start of the oldest replica of a model, where it is."""
    replica = next(r for r in fleet.state.replicas.values() if r.model == model)
    (part,) = replica.parts
    about: dict[str, Any] = {
        "replica": replica.name,
        "generation": replica.generation,
        "attempt": attempt,
    }
    starting = e.ReplicaStarting(**about, port=PORT, devices=part.devices)
    failed = e.ReplicaFailed(**about, reason="exit code 1", exit_code=1, retry_seconds=9.0)
    yield From(part.node, starting)
    yield From(part.node, failed)


def messages() -> list[Message]:
    """Return the history as a log stores it, one second apart."""
    return [
        Message(n, BEGIN_NS + n * SECOND_NS, m.subject, m.payload)
        for n, m in enumerate(history().log, start=1)
    ]


def write(version: str) -> Path:
    """Write the history of a version; one that is there is left as it is."""
    path, stored = FOLDER / f"{version}.llmgw", messages()

    async def batches() -> AsyncIterator[list[Message]]:
        yield stored

    FOLDER.mkdir(exist_ok=True)
    bounds = Bounds(1, len(stored), BEGIN_NS)
    now_ns = stored[-1].time_ns
    asyncio.run(write_archive(path, batches(), cluster=CLUSTER, log=bounds, now_ns=now_ns))
    return path


if __name__ == "__main__":
    print(f"wrote {write(sys.argv[1])}")
