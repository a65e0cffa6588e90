"""A real agent whose driver, a pretended NVML, loses a card, crashes, hangs and is upgraded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.core import events as e
from llmgw.core.commands import Assignment
from llmgw.engines.base import Grant
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeMachine, card_uuid
from llmgw.testing.nvml_events import XID, supports_events, tell_event
from tests.hardware.support import L40S, MIB, needs_nvml
from tests.support.cluster import Cluster, Program, pretended
from tests.support.wait import until

pytestmark = needs_nvml

MACHINE = FakeMachine((L40S, L40S))
FIRST_LOST = FakeMachine((replace(L40S, lost=True), L40S))


async def write(
    cluster: Cluster, machine: FakeMachine = MACHINE, changed: dict[str, str] | None = None
) -> Path:
    """Have the machine be so; return the library."""
    folder = cluster.folder / "driver"
    folder.mkdir(exist_ok=True)
    answers = supports_events(0, 1) | (changed or {})
    return await asyncio.to_thread(lambda: write_fake_nvml(folder, machine, changed=answers))


def agent(cluster: Cluster) -> Program:
    folder = cluster.folder / "driver"
    return cluster.agent(
        backend="nvml",
        nvml_library=folder,
        nvml_sample_seconds=0.2,
        sample_seconds=1,
        cpu_device="",
    )


def on(cluster: Cluster, replica: str, card: int) -> Assignment:
    """A replica on a card, whose engine does as it is told."""
    grant = Grant(card_uuid(MACHINE, card), "l40s-48g", card, 46068 * MIB)
    entry = pretended(cluster, replica, classes=("l40s-48g",))
    return Assignment(replica=replica, generation=1, entry=entry, devices=(card,), grants=(grant,))


def held(cluster: Cluster) -> dict[int | None, str]:
    """The conditions that hold, by device."""
    told = cluster.events(e.NodeConditionsChanged)
    return {c.device: c.name for c in told[-1].conditions} if told else {}


async def test_what_ran_on_a_lost_card_goes_on_elsewhere_and_nobody_uses_the_card_again(
    cluster: Cluster,
) -> None:
    library = await write(cluster)
    program = agent(cluster)
    cluster.controller()
    one = pretended(cluster, "m", classes=("l40s-*",), memory_bytes=20 << 30)
    await cluster.apply(one)
    await cluster.until_ready("r1")
    assert cluster.state.replicas["r1"].parts[0].devices == (0,)
    (engine,) = cluster.engines()

    await write(cluster, FIRST_LOST)
    await asyncio.to_thread(tell_event, library, 0, XID, 79)
    await cluster.until_ready("r2")
    assert cluster.state.replicas["r2"].parts[0].devices == (1,)
    await cluster.until_state(lambda state: "r1" not in state.replicas, "the first has gone")
    assert engine.pid not in [found.pid for found in cluster.engines()]

    # It answers again: not for this agent, nor for the next.
    await write(cluster)
    await until(lambda: held(cluster).get(0) == "lost", what="the card is known to be lost")
    await cluster.apply(replace(one, replicas=2))
    await cluster.until_state(
        lambda state: state.models["m"].refusals == {"in use": 1, "lost": 1}, "it stays unplaced"
    )
    told = len(cluster.events(e.NodeConditionsChanged))
    program.kill()
    agent(cluster)
    await until(lambda: len(cluster.events(e.ReplicaAdopted)) == 1, what="the next agent is there")
    await until(lambda: len(cluster.events(e.NodeConditionsChanged)) > told, what="it has measured")
    assert held(cluster) == {0: "lost"}
    assert cluster.state.models["m"].missing == 1
    assert [r.parts[0].devices for r in cluster.state.replicas.values()] == [(1,)]
    assert len(cluster.engines()) == 1


async def test_a_driver_that_crashes_or_was_upgraded_costs_no_engine_and_starts_none(
    cluster: Cluster,
) -> None:
    await write(cluster)
    program = agent(cluster)
    await cluster.event(e.NodeInventoryTaken)
    first, second = on(cluster, "r1", 0), on(cluster, "r2", 1)
    await cluster.command(first, revision=1)
    await cluster.event(e.ReplicaBecameReady, replica="r1")
    (engine,) = cluster.engines()

    # The library crashes, with whoever has loaded it.
    await write(cluster, changed={"1 nvmlDeviceGetPowerUsage": "^"})
    await cluster.event(e.NodeHardwareUnreadable)
    assert not program.has_ended()
    assert cluster.engines() == [engine]

    # The driver is upgraded and not loaded: what runs goes on, nothing new starts, and no storm.
    await write(cluster, changed={"- nvmlInit": "!18"})
    await until(
        lambda: any("mismatch" in x.reason for x in cluster.events(e.NodeHardwareUnreadable)),
        what="the new version is told",
    )
    await cluster.command(first, second, revision=2)
    failed = await cluster.event(e.ReplicaFailed, replica="r2")
    assert "driver/library version mismatch" in failed.reason
    assert cluster.engines() == [engine]

    await write(cluster)
    await cluster.event(e.ReplicaBecameReady, replica="r2")
    refused = [(x.attempt, x.reason) for x in cluster.events(e.ReplicaFailed)]
    assert refused == [(1, failed.reason)]
    assert engine in cluster.engines()
    assert len(cluster.starts()) == 2


@pytest.mark.faults
async def test_commands_are_followed_while_nvml_hangs(cluster: Cluster) -> None:
    await write(cluster)
    program = agent(cluster)
    cluster.controller()
    await cluster.event(e.NodeInventoryTaken)
    await write(cluster, changed={"0 nvmlDeviceGetPowerUsage": "*"})
    await cluster.apply(pretended(cluster, "m", classes=("l40s-*",), memory_bytes=20 << 30))
    await cluster.until_ready("r1")
    await until(lambda: cluster.events(e.NodeHardwareUnreadable), 60, "it is said")
    assert "did not answer" in cluster.events(e.NodeHardwareUnreadable)[0].reason
    assert cluster.events(e.NodeLost) == []
    assert not program.has_ended()
    assert len(cluster.engines()) == 1
