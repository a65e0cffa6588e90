"""An agent whose cards nvidia-smi (a pretended one) tells: engines are weighed, and seen to go."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path

import msgspec

from llmgw.core import events as e
from llmgw.core.commands import Assignment
from llmgw.engines.base import Grant
from llmgw.testing.fake_smi import FakeCard, FakeMachine, FakeProcess, card_uuid, write_fake_smi
from tests.support.cluster import Cluster, pretended
from tests.support.wait import until

MIB = 1 << 20
L40S = FakeCard(name="NVIDIA L40S", memory_total_mib=46068)


def machine(*held: tuple[int, int] | None) -> FakeMachine:
    """Two cards, each with a process and what it holds in MiB, or empty."""
    return FakeMachine(tuple(_card(one) for one in held))


def _card(held: tuple[int, int] | None) -> FakeCard:
    if held is None:
        return msgspec.structs.replace(L40S, memory_used_mib=1)
    pid, mib = held
    processes = (FakeProcess(pid=pid, memory_mib=mib),)
    return msgspec.structs.replace(L40S, memory_used_mib=1 + mib, processes=processes)


async def test_an_engine_is_weighed_kept_to_its_card_and_seen_to_be_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    program, may_serve = tmp_path / "nvidia-smi", tmp_path / "may-serve"

    async def shows(*held: tuple[int, int] | None) -> None:
        await to_thread(write_fake_smi, program, machine(*held))

    await shows(None, None)
    cluster.agent(backend="nvidia-smi", nvidia_smi=program, cpu_device="")
    await cluster.event(e.NodeInventoryTaken)
    entry = pretended(cluster, "m", f"ready={may_serve}", classes=("l40s-48g",))
    one = Assignment(
        replica="r1",
        generation=1,
        entry=entry,
        devices=(0,),
        grants=(Grant(card_uuid(machine(None, None), 0), "l40s-48g", 0, 46068 * MIB),),
    )
    await cluster.command(one, revision=1)

    # It strays to a card that is not its own.
    (engine,) = await until(cluster.engines, what="the engine runs")
    await shows((engine.pid, 20_000), (engine.pid, 300))
    failed = await cluster.event(e.ReplicaFailed, attempt=1)
    assert failed.reason == f"its process {engine.pid} is on device 1, which it was not given"

    # The next start waits until the cards are free of it, and is then weighed.
    assert cluster.engines() == []
    await shows(None, None)
    await cluster.event(e.ReplicaStarting, attempt=2)
    (engine,) = await until(cluster.engines, what="the engine runs again")
    await shows((engine.pid, 20_000), None)
    may_serve.touch()
    ready = await cluster.event(e.ReplicaBecameReady, attempt=2)
    assert ready.memory_bytes == (20_000 * MIB,)

    # It is over when the card says so, and not before.
    await cluster.command(revision=2)
    await until(lambda: not cluster.engines(), what="the engine has ended")
    assert cluster.events(e.ReplicaStopped) == []
    await shows(None, None)
    await cluster.event(e.ReplicaStopped)
    await cluster.event(e.CommandCompleted, revision=2)
    assert all(not found.conditions for found in cluster.events(e.NodeConditionsChanged))
