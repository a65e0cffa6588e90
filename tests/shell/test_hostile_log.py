"""A real agent, and a log in which somebody writes what nobody can read."""

from __future__ import annotations

import json
from pathlib import Path

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.engines.base import Grant
from tests.support.cluster import NAME, Cluster, pretended, running_cluster


async def write_command(cluster: Cluster, revision: int, **fields: object) -> None:
    """Append a command for n1 whose envelope has other fields."""
    command = SetAssignments(node="n1", revision=revision, term=1, at=0)
    message = wire.encode_command(NAME, command, time="2026-01-01T00:00:00Z")
    payload = json.dumps(json.loads(message.payload) | fields).encode()
    await cluster.log.append(message.subject, payload, message_id=f"{message.message_id} bad")


async def with_a_nul(cluster: Cluster) -> Assignment:
    """Return an assignment that no system can start."""
    device = cluster.events(e.NodeInventoryTaken)[-1].inventory.devices[0]
    return Assignment(
        replica="r1",
        generation=1,
        entry=pretended(cluster, "m", "a\0b"),
        devices=(device.id,),
        grants=(Grant(device.uuid, device.device_class),),
    )


async def test_a_command_that_cannot_be_read_is_refused_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        agent = cluster.agent()
        await cluster.event(e.NodeInventoryTaken)
        await write_command(cluster, 1, data={"node": 7})
        await write_command(cluster, 2, dataversion=9, data={"run": "all"})
        await write_command(cluster, 3, source="/llmgw/c1/operator")
        await cluster.log.append(wire.command_subject(NAME, "n1"), b"{", message_id="garbage")
        malformed = await cluster.event(e.CommandRefused, revision=1, term=1)
        newer = await cluster.event(e.CommandRefused, revision=2, term=1)
        assert "data.node" in malformed.reason
        assert "version 9 of assignments.set is newer than this code" in newer.reason
        await cluster.command(revision=4)
        await cluster.event(e.CommandCompleted, revision=4)
        agent.kill()
        await write_command(cluster, 5, data=[])
        cluster.agent()
        await cluster.event(e.CommandRefused, revision=5)
        await cluster.command(revision=6)
        await cluster.event(e.CommandCompleted, revision=6)
        await cluster.command(await with_a_nul(cluster), revision=7)
        failed = await cluster.event(e.ReplicaFailed)
        assert "embedded null" in failed.reason
        assert [event.revision for event in cluster.events(e.CommandRefused)] == [1, 2, 5]
        assert cluster.state.unreadable == 4
