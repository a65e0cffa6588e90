"""A machine with two cards, told by a pretended nvidia-smi that later fails and hangs."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from llmgw.core import events as e
from llmgw.core.telemetry import NodeSample
from llmgw.replay import newest_samples
from llmgw.testing.fake_smi import FakeAnswer, FakeCard, FakeMachine, card_uuid, write_fake_smi
from tests.support.cluster import NAME, Cluster, pretended
from tests.support.wait import until

MACHINE = FakeMachine(tuple(FakeCard(name="NVIDIA L40S", memory_total_mib=46068) for _ in range(2)))


def environment(port: int) -> dict[str, str]:
    """Return the environment that the engine on a port sees."""
    said: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).json()
    seen: dict[str, str] = said["env"]
    return seen


def broken_smi(answer: FakeAnswer) -> dict[str, FakeAnswer]:
    return dict.fromkeys(("-L", "-q -x", "topo -m"), answer)


async def until_sample(cluster: Cluster, condition: Callable[[NodeSample], bool]) -> None:
    """Wait for a sample of the node that is so."""

    async def found() -> object:
        sample = (await newest_samples(cluster.log, NAME, ["n1"])).get("n1")
        return sample is not None and condition(sample)

    answer: object = await until(found, 60, "a sample is so")
    assert answer


async def test_replicas_get_cards_of_their_own_and_outlive_a_driver_that_fails(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = await to_thread(write_fake_smi, tmp_path / "nvidia-smi", MACHINE)
    cluster.agent(backend="nvidia-smi", nvidia_smi=program, cpu_device="")
    cluster.controller()
    entry = pretended(cluster, "m", classes=("l40s-*",), memory_bytes=20 << 30)
    await cluster.apply(msgspec.structs.replace(entry, replicas=3))
    await cluster.until_ready("r1", "r2")
    inventory = cluster.events(e.NodeInventoryTaken)[-1].inventory
    assert [(d.id, d.device_class) for d in inventory.devices] == [(0, "l40s-48g"), (1, "l40s-48g")]
    ports = [r.parts[0].port for r in cluster.state.replicas.values()]
    seen = {environment(port)["CUDA_VISIBLE_DEVICES"] for port in ports if port is not None}
    assert seen == {card_uuid(MACHINE, 0), card_uuid(MACHINE, 1)}
    unplaced = cluster.events(e.ModelLeftUnplaced)[-1]
    assert (unplaced.missing, unplaced.refusals) == (1, {"in use": 2})

    # The driver fails: what is known stays known, and what runs runs on.
    driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    await to_thread(write_fake_smi, program, broken_smi(FakeAnswer(driver, code=9)))
    await until_sample(cluster, lambda sample: "driver" in (sample.error or ""))
    assert all(len(one.inventory.devices) == 2 for one in cluster.events(e.NodeInventoryTaken))
    await to_thread(write_fake_smi, program, MACHINE)
    await until_sample(cluster, lambda sample: sample.readings is not None)

    # It hangs: the agent still gives signs of life, with nothing measured, and does as it is told.
    await to_thread(write_fake_smi, program, broken_smi(FakeAnswer("", end="ignore-term")))
    await until_sample(cluster, lambda sample: sample.readings is None)
    await cluster.apply(entry)
    await cluster.event(e.ReplicaStopped)
    assert cluster.events(e.NodeLost) == []
    assert len(cluster.starts()) == 2
    assert len(cluster.engines()) == 1
