"""Real programs, and a log in which somebody writes what nobody can read."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.engines.base import Grant
from llmgw.log.setup import MAX_MESSAGE_BYTES
from tests.core.test_bad_input import UNREADABLE
from tests.support.cluster import NAME, Cluster, pretended, running_cluster
from tests.views.history import CLUSTER as STRANGE


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


async def test_a_fleet_serves_on_a_log_full_of_what_nobody_can_read_and_all_of_it_is_shown(
    tmp_path: Path,
) -> None:
    """Every kind of bad record is there before anybody comes, and once more when all serve."""
    bad = [
        other._replace(
            subject=other.subject.replace(f".{STRANGE}.", f".{NAME}."),
            payload=other.payload.replace(f"/{STRANGE}/".encode(), f"/{NAME}/".encode()),
        )
        for other in UNREADABLE.values()
        if len(other.payload) <= MAX_MESSAGE_BYTES and other.subject.startswith("llmgw.v1.")
    ]
    async with running_cluster(tmp_path) as cluster:
        for round_ in (1, 2):
            for number, one in enumerate(bad):
                message_id = f"bad-{round_}-{number}"
                await cluster.log.append(one.subject, one.payload, message_id=message_id)
            if round_ == 1:
                cluster.controller()
                cluster.agent()
                await cluster.apply(pretended(cluster, "m"))
                await cluster.until_ready("r1")
        sequence = await cluster.apply(replace(pretended(cluster, "m"), replicas=2))
        await cluster.until_ready("r1", "r2")
        assert len(bad) > 25
        assert cluster.state.unreadable == 2 * len(bad)
        assert cluster.state.needs_upgrade is None
        asked = {"nats_url": cluster.url, "data": tmp_path / "k1"}
        for words, count in (
            (("events", "--rejected"), 2 * len(bad)),
            (("events", "--type", "unreadable"), 2 * len(bad)),
            (("replicas",), 2),
        ):
            code, out, err = await cluster.run("ctl", *words, "-o", "json", **asked)
            assert (code, len(json.loads(out))) == (0, count), err
        code, out, err = await cluster.run("ctl", "explain", str(sequence), **asked)
        assert (code, "r2 of m goes to n1" in out) == (0, True), err
        archive = str(tmp_path / "log.llmgw")
        assert (await cluster.run("ctl", "export", archive, "--scrub", **asked))[0] == 0
        code, out, err = await cluster.run("ctl", "replay", "--verify", "--archive", archive)
        assert (code, out.partition(":")[0]) == (0, "Every decision agrees"), err
