"""Real controllers on a real nats-server; the test plays the operator and the nodes."""

from __future__ import annotations

import asyncio
import signal
import time

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.testing.builders import entry, inventory, processor
from tests.support.cluster import Cluster, Program
from tests.support.nats import stopped
from tests.support.pulse import Pulse
from tests.support.wait import until


async def join(cluster: Cluster, node: str) -> None:
    """Have a node come up and say what it has."""
    await cluster.write(e.NodeStarted(boot_id="b1", agent_version="1"), node)
    await cluster.write(e.NodeInventoryTaken(inventory=inventory(node, processor())), node)


async def leader_of(cluster: Cluster, term: int, *programs: Program) -> tuple[Program, ...]:
    """Wait for the leader of a term; return it, and the others after it."""
    holder = (await cluster.event(e.ControllerElected, term=term)).holder
    return tuple(sorted(programs, key=lambda program: f"-{program.pid}-" not in holder))


def terms_after_election(cluster: Cluster, term: int) -> set[int]:
    """Return the terms of all that controllers wrote after the election of a term."""
    bodies = [record.body for record in cluster.records]
    elected = next(
        place
        for place, body in enumerate(bodies)
        if isinstance(body, e.ControllerElected) and body.term == term
    )
    decided = [b for b in bodies[elected:] if isinstance(b, e.ControllerEvent | SetAssignments)]
    return {body.term for body in decided}


async def test_a_leader_that_was_paused_past_its_lease_steps_back_and_writes_nothing(
    cluster: Cluster,
) -> None:
    await join(cluster, "n1")
    old, new = await leader_of(cluster, 1, cluster.controller("k1"), cluster.controller("k2"))
    await cluster.apply(entry("one", "cpu", gib=1))
    await cluster.event(SetAssignments, revision=1)

    with stopped(old.pid):
        request = await cluster.apply(entry("two", "cpu", gib=1))
        elected = await cluster.event(e.ControllerElected, 60, term=2)
        assert f"-{new.pid}-" in elected.holder
        await cluster.event(e.CatalogAccepted, request=request, term=2)
        await cluster.event(e.ReplicaRetired, replica="r1")
    await until(lambda: old.says("controller_lost_the_lead"), 20, "the old leader steps back")
    request = await cluster.apply(entry("three", "cpu", gib=1))
    await cluster.event(e.CatalogAccepted, request=request, term=2)
    assert terms_after_election(cluster, 2) == {2}
    assert cluster.state.void == 0

    # A leader that leaves in good order keeps nobody waiting for the end of its lease.
    assert await new.stop() == 0
    await cluster.event(e.ControllerElected, 10, term=3)
    assert await old.stop(signal.SIGINT) == 0


async def test_silence_of_one_node_is_a_loss_and_silence_of_all_is_a_doubt(
    cluster: Cluster,
) -> None:
    for node in ("n1", "n2"):
        await join(cluster, node)
    pulse = Pulse(cluster, "n1", "n2")
    async with pulse.beating():
        controller = cluster.controller(node_lost_seconds=2)
        await cluster.apply(entry("m", "cpu", gib=1, replicas=2))
        await cluster.event(e.ReplicaAssigned, replica="r2")
        assert {r.parts[0].node for r in cluster.state.replicas.values()} == {"n1", "n2"}

        pulse.nodes.clear()
        await until(lambda: controller.says("silence_not_believed"), 20, "the controller doubts")
        assert cluster.events(e.NodeLost) == []

        pulse.nodes.add("n1")
        lost = await cluster.event(e.NodeLost)
        assert lost.node == "n2"
        assert lost.silent_seconds >= 2
        await cluster.event(e.ReplicaAssigned, replica="r3")
        assert cluster.state.replicas["r3"].parts[0].node == "n1"

        pulse.nodes.add("n2")
        await cluster.event(e.NodeReturned, node="n2")
        retired = await cluster.event(e.ReplicaRetired)
        assert "2 wanted" in retired.reason


async def test_an_agent_of_before_that_sends_samples_alone_counts_as_alive(
    cluster: Cluster,
) -> None:
    for node in ("n1", "n2"):
        await join(cluster, node)
    pulse = Pulse(cluster, "n1")
    pulse.old = {"n2"}
    async with pulse.beating():
        cluster.controller(node_lost_seconds=1)
        await cluster.event(e.ControllerElected, term=1)
        pulse.nodes.clear()
        assert (await cluster.event(e.NodeLost)).node == "n1"
        pulse.nodes, pulse.old = {"n1"}, set()
        await cluster.event(e.NodeReturned, node="n1")
        lost = await cluster.event(e.NodeLost, node="n2")
        assert lost.silent_seconds >= 3, "who was never heard to beat is waited for longer"


async def test_a_controller_that_was_paused_renews_its_lease_before_it_says_anything(
    cluster: Cluster,
) -> None:
    """It was away for longer than nodes may be silent, and none of them is blamed for that."""
    for node in ("n1", "n2", "n3"):
        await join(cluster, node)
    lost_seconds = 1.0
    lease = cluster.log.lease_subject("controller")
    said: list[str] = []

    def take(subject: str, _: bytes) -> None:
        if subject == lease or ".event.controller." in subject or ".command." in subject:
            said.append(subject)

    listening = asyncio.create_task(cluster.log.ear([">"], take).listen())
    async with Pulse(cluster, "n1", "n2", "n3").beating():
        controller = cluster.controller(lease_seconds=0.5, node_lost_seconds=lost_seconds)
        await cluster.event(e.ControllerElected, term=1)
        await until(lambda: lease in said, what="it is heard to renew its lease")
        with stopped(controller.pid):
            began = time.monotonic()
            request = await cluster.apply(entry("m", "cpu", gib=1, replicas=2))
            await until(lambda: time.monotonic() - began > 3 * lost_seconds, what="it was away")
            said.clear()
        await cluster.event(e.CatalogAccepted, request=request, term=1)
        await cluster.event(SetAssignments)
        assert said[0] == lease
        # What it had decided before it slept, it decides on what it knows now: once.
        assert len(cluster.events(e.ReplicaAssigned)) == 2
        await until(lambda: said.count(lease) > 10, what="it has looked at its nodes again")
    assert cluster.events(e.NodeLost) == []
    assert cluster.state.term == 1
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def test_a_controller_without_its_log_waits_and_blames_no_node(cluster: Cluster) -> None:
    await join(cluster, "n1")
    controller = cluster.controller(node_lost_seconds=1)
    pulse = Pulse(cluster, "n1")
    async with pulse.beating():
        await cluster.event(e.ControllerElected, term=1)
        await cluster.kill_server()
        await until(lambda: controller.says("log cannot be reached"), 20, "the log is missed")
        await cluster.server.start()
        request = await cluster.apply(entry("m", "cpu", gib=1))
        await cluster.event(e.CatalogAccepted, request=request)
        await cluster.event(SetAssignments)
    assert cluster.events(e.NodeLost) == []
    assert len(cluster.events(e.ReplicaAssigned)) == 1


async def test_a_log_that_was_wiped_is_folded_anew_and_stops_nothing(cluster: Cluster) -> None:
    await join(cluster, "n1")
    cluster.controller()
    await cluster.apply(entry("m", "cpu", gib=1))
    await cluster.event(SetAssignments)
    await cluster.wipe_log()
    await join(cluster, "n1")
    await cluster.write(e.ReplicaAdopted(replica="r1", generation=1, pid=7, port=18100), "n1")
    await cluster.event(e.ControllerElected, 60, term=1)
    # Nobody has said what shall run: until then nothing that runs is unwanted.
    assert "r1/0" in cluster.state.nodes["n1"].strays
    request = await cluster.apply(entry("m", "cpu", gib=1))
    await cluster.event(e.CatalogAccepted, request=request)
    command = await cluster.event(SetAssignments)
    assert [a.replica for a in command.assignments] == ["r1"]
    assert len(cluster.events(SetAssignments)) == 1


async def test_after_a_log_was_wiped_nothing_is_decided_until_all_nodes_of_before_have_reported(
    cluster: Cluster,
) -> None:
    """What runs on a node that has not been heard would else be started a second time elsewhere."""
    for node in ("n1", "n2"):
        await join(cluster, node)
    controller = cluster.controller(node_lost_seconds=30)
    await cluster.apply(entry("m", "cpu", gib=1))
    await cluster.event(SetAssignments)
    placed = cluster.state.replicas["r1"].parts[0].node
    other = "n2" if placed == "n1" else "n1"
    await cluster.wipe_log()
    await join(cluster, other)
    request = await cluster.apply(entry("m", "cpu", gib=1))
    await until(lambda: controller.says("waits_for_nodes"), 30, "it waits for the one that serves")
    assert f'"nodes": ["{placed}"]' in controller.output
    await join(cluster, placed)
    await cluster.write(e.ReplicaAdopted(replica="r1", generation=1, pid=7, port=18100), placed)
    await cluster.event(e.CatalogAccepted, 60, request=request)
    await cluster.event(SetAssignments)
    heard = [r.sequence for r in cluster.records if r.node == placed]
    decided = [r.sequence for r in cluster.records if isinstance(r.body, e.Decision)]
    assert min(heard) < min(decided)


async def test_a_node_that_stays_away_after_a_log_was_wiped_is_not_waited_for_for_ever(
    cluster: Cluster,
) -> None:
    for node in ("n1", "n2"):
        await join(cluster, node)
    controller = cluster.controller(node_lost_seconds=4, heartbeat_seconds=1)
    async with Pulse(cluster, "n1", "n2").beating():
        await cluster.event(e.ControllerElected, term=1)
        await cluster.wipe_log()
        await join(cluster, "n1")
        await cluster.apply(entry("m", "cpu", gib=1))
        await until(lambda: controller.says("waits_for_nodes"), 30, "it waits for n2")
        command = await cluster.event(SetAssignments, 30)
    assert command.node == "n1"
