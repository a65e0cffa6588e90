"""Who leads after a leader died, and after the log stalled: real controllers, real nats-servers."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.log.jetstream import connect
from llmgw.testing.builders import entry, inventory, processor
from tests.support.cluster import NAME, OnLog, Program, running_cluster
from tests.support.nats_cluster import ServerCluster, three_servers
from tests.support.pulse import Pulse
from tests.support.wait import until

LOG = f"LLMGW_{NAME}_LOG"
LEASES = f"KV_LLMGW_{NAME}"


async def two_controllers(on: OnLog, **settings: object) -> dict[str, Program]:
    """Start two controllers and wait until one leads and the other has folded all, too."""
    both = {node: on.controller(node, **settings) for node in ("k1", "k2")}
    await on.event(e.ControllerElected, term=1)
    for program in both.values():
        await until(lambda p=program: p.says("controller_caught_up"), 30, "both are caught up")  # type: ignore[misc]
    return both


def leader(on: OnLog, programs: dict[str, Program]) -> Program:
    return next(p for p in programs.values() if f"-{p.pid}-" in on.state.leader)


async def until_led(on: OnLog, term: int, deadline_seconds: float = 30) -> float:
    """Wait for the leader of a term, and return when it took the lead (seconds since 1970)."""
    await on.event(e.ControllerElected, deadline_seconds, term=term)
    [at_ns] = [
        r.time_ns
        for r in on.records
        if isinstance(r.body, e.ControllerElected) and r.body.term == term
    ]
    return at_ns / 1e9


async def decides(on: OnLog, model: str) -> None:
    """Wait until whoever leads has decided something new."""
    request = await on.apply(entry(model, "cpu", gib=1))
    await on.event(e.CatalogAccepted, 60, request=request)


async def test_another_controller_takes_over_soon_after_the_leader_died(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        programs = await two_controllers(cluster)
        killed_at = time.time()
        leader(cluster, programs).kill()
        led_at = await until_led(cluster, 2, deadline_seconds=10)
        print(f"taken over after {led_at - killed_at:.2f} s")
        await decides(cluster, "m")
        await cluster.assert_folds_the_same()


@contextlib.asynccontextmanager
async def on_three_servers(folder: Path) -> AsyncIterator[tuple[OnLog, ServerCluster]]:
    """A log that lies on three servers, with two nodes that have something to place on."""
    async with three_servers(folder) as servers:
        log = await connect(
            servers.url,
            NAME,
            name="test",
            deadline_seconds=30,
            answer_deadline_seconds=30,
            replicas=3,
        )
        on = OnLog(folder, servers.url, log)
        try:
            for node in ("n1", "n2"):
                await on.write(e.NodeStarted(boot_id="b1", agent_version="1"), node)
                await on.write(e.NodeInventoryTaken(inventory=inventory(node, processor())), node)
            async with Pulse(on, "n1", "n2").beating():
                yield on, servers
            await on.assert_folds_the_same()
        finally:
            await on.close()


@pytest.mark.faults
async def test_losing_the_server_that_leads_a_stream_costs_no_lead_no_node_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """Nodes may be silent for less than JetStream takes to choose, and are heard meanwhile."""
    async with on_three_servers(tmp_path) as (on, servers):
        await two_controllers(on, log_replicas=3, node_lost_seconds=3)
        for number, stream in enumerate((LOG, LEASES, LOG)):
            name = await servers.leader_of(stream)
            stalled_at = time.time()
            await servers.kill(name)
            await decides(on, f"m{number}")
            print(f"{stream} led by {name}: decided after {time.time() - stalled_at:.2f} s")
            await servers.start(name)
            await servers.until_ready()
        assert on.state.term == 1, "the lease survives what nobody could renew through"
        assert on.events(e.NodeLost) == []
        assert on.state.void == 0
        commands = Counter((c.node, c.term, c.revision) for c in on.events(SetAssignments))
        assert max(commands.values()) == 1
        assigned = Counter(a.replica for a in on.events(e.ReplicaAssigned))
        assert max(assigned.values()) == 1


@pytest.mark.faults
async def test_a_leader_that_dies_with_the_server_that_leads_the_log_is_followed(
    tmp_path: Path,
) -> None:
    async with on_three_servers(tmp_path) as (on, servers):
        programs = await two_controllers(on, log_replicas=3)
        for number, stream in enumerate((LOG, LEASES)):
            term = on.state.term
            name = await servers.leader_of(stream)
            leading = leader(on, programs)
            for program in {*programs.values()} - {leading}:
                await until(lambda p=program: p.says("controller_waits"), 30, "another one waits")  # type: ignore[misc]
            killed_at = time.time()
            leading.kill()
            await servers.kill(name)
            led_at = await until_led(on, term + 1, deadline_seconds=60)
            print(f"{stream} led by {name}: taken over after {led_at - killed_at:.2f} s")
            await decides(on, f"m{number}")
            await servers.start(name)
            await servers.until_ready()
            programs = {f"k{number + 3}": on.controller(f"k{number + 3}", log_replicas=3)} | {
                name: program for name, program in programs.items() if not program.has_ended()
            }
        assert on.events(e.NodeLost) == []
