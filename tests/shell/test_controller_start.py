"""A controller that starts: what it decides on, and what it does with a log that is not whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.testing.builders import entry, inventory, processor
from tests.support.cluster import Cluster, Program, running_cluster
from tests.support.wait import until

FACTS = 500


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


async def write_much(cluster: Cluster) -> int:
    """Have a catalog wanted at first and another one in the end; return the last sequence."""
    await cluster.write(e.NodeStarted(boot_id="b1", agent_version="1"), "n1")
    await cluster.write(e.NodeInventoryTaken(inventory=inventory("n1", processor())), "n1")
    await cluster.apply(entry("early", "cpu", gib=1))
    for number in range(FACTS):
        await cluster.write(e.NodeStarted(boot_id=f"b{number}", agent_version="1"), "n2")
    return await cluster.apply(entry("late", "cpu", gib=1))


def said(program: Program, event: str) -> dict[str, object]:
    """Return the first line that a program logged of an event."""
    lines = (msgspec.json.decode(x) for x in program.output.splitlines() if event in x)
    return next(lines, {})


async def test_nothing_is_decided_before_all_of_the_log_is_folded(cluster: Cluster) -> None:
    last = await write_much(cluster)
    controller = cluster.controller()
    await cluster.event(SetAssignments, node="n1")
    assert (said(controller, "controller_begins")["sequence"], last) == (0, last)
    assert said(controller, "controller_begins")["of"] == last
    assert said(controller, "controller_caught_up")["sequence"] == last
    decisions = [r.body for r in cluster.records if isinstance(r.body, e.Decision)]
    assert min(body.at for body in decisions) > last
    placed = [body.model for body in decisions if isinstance(body, e.ReplicaAssigned)]
    assert placed == ["late"], "a controller that decides early would have placed the early one"
    await cluster.assert_folds_the_same()


async def test_a_log_that_lost_its_beginning_is_not_decided_on(cluster: Cluster) -> None:
    """No snapshot stands for what is gone: it says what is missing, and waits."""
    await write_much(cluster)
    await cluster.log.let_go(FACTS // 2)
    bounds = await cluster.log.bounds()
    assert bounds.first == FACTS // 2 + 1
    controller = cluster.controller()
    await until(lambda: controller.says("controller_folds_anew"), 20, "it says what is missing")
    reason = str(said(controller, "controller_folds_anew")["reason"])
    assert f"misses the sequences 1 to {bounds.first - 1}" in reason
    await until(lambda: controller.output.count("controller_folds_anew") > 1, 20, "it tries again")
    assert not controller.has_ended()
    assert (await cluster.log.bounds()).last == bounds.last, "it has written nothing"
    assert not controller.says("controller_caught_up")
