"""Nodes that are simulated from captured folders, and agents that are told to look again."""

from __future__ import annotations

import json
import signal
import time
from asyncio import to_thread
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmgw.core import events as e
from llmgw.hardware.captures import LISTING_FILE, REPORT_FILE, TOPOLOGY_FILE
from llmgw.log.retention import move
from llmgw.testing.fake_smi import (
    FakeAnswer,
    FakeCard,
    FakeInstance,
    FakeMachine,
    render_listing,
    render_report,
    render_topology,
    write_fake_smi,
)
from tests.support.cluster import NAME, Cluster, Program, Programs, pretended, running_up
from tests.support.wait import until

L40S = FakeCard(name="NVIDIA L40S", architecture="Ada Lovelace", memory_total_mib=46068)
PARTS = tuple(
    FakeInstance(profile="3g.40gb", memory_total_mib=40192, gpu_instance=number, multiprocessors=42)
    for number in (1, 2)
)
CARVED = FakeCard(
    name="NVIDIA A100-SXM4-80GB", memory_total_mib=81920, mig="Enabled", instances=PARTS
)
MIG = "a100-80g-mig-3g.40gb"


def captured(folder: Path, *cards: FakeCard) -> Path:
    """Write a folder as `agent inventory --capture` does."""
    machine = FakeMachine(cards)
    folder.mkdir()
    (folder / REPORT_FILE).write_text(render_report(machine))
    (folder / LISTING_FILE).write_text(render_listing(machine))
    (folder / TOPOLOGY_FILE).write_text(render_topology(machine))
    return folder


async def test_captured_machines_serve_beside_the_real_one_and_are_marked(tmp_path: Path) -> None:
    whole, carved = captured(tmp_path / "whole", L40S), captured(tmp_path / "carved", CARVED)
    flags = ("--simulate", f"{whole},{carved}", "--copies", "2")
    async with running_up(tmp_path, *flags) as up:
        await up.apply(
            replace(pretended(up, "m"), classes=(MIG,), memory_bytes=20 << 30, replicas=4),
            replace(pretended(up, "w"), classes=("l40s-*",), memory_bytes=20 << 30, replicas=2),
            replace(pretended(up, "p"), classes=("cpu",)),
        )
        await up.until_state(
            lambda state: [r.parts[0].phase for r in state.replicas.values()] == ["ready"] * 7,
            "all seven replicas are ready",
            deadline_seconds=90,
        )
        nodes = up.state.nodes
        assert {name for name, node in nodes.items() if node.simulated} == {
            f"sim-{number}" for number in range(1, 5)
        }
        assert not nodes["n1"].simulated
        where = sorted((r.entry.name, r.parts[0].node) for r in up.state.replicas.values())
        assert where == [
            *(("m", node) for node in ("sim-2", "sim-2", "sim-4", "sim-4")),
            ("p", "n1"),
            *(("w", node) for node in ("sim-1", "sim-3")),
        ]
        assert len({r.parts[0].port for r in up.state.replicas.values()}) == 7
        assert (tmp_path / "data" / "simulated" / "agent.sqlite").exists(), "one for all"
        code, out, _ = await up.run("ctl", "nodes", "-o", "json", data=tmp_path / "data")
        rows = {row["name"]: row for row in json.loads(out)}
        assert (code, rows["sim-2"]["simulated"]) == (0, True)

        assert await up.program.stop(signal.SIGINT) == 0
        assert up.engines() == []


async def test_hundreds_of_nodes_are_one_process_and_no_two_engines_get_one_port(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = str(captured(tmp_path / "whole", L40S))
    words = ("agent", "fleet", "--from", folder, "--copies", "300")
    fleet = cluster.start(*words, nats_url=cluster.url, data=tmp_path / "data")
    cluster.controller()
    await cluster.until_state(
        lambda state: len([n for n in state.nodes.values() if n.inventory and n.simulated]) == 300,
        "all nodes told what they have",
    )
    await cluster.apply(
        replace(pretended(cluster, "m"), classes=("l40s-*",), memory_bytes=1 << 30, replicas=12)
    )
    await cluster.until_state(
        lambda state: [r.parts[0].phase for r in state.replicas.values()] == ["ready"] * 12,
        "all are ready",
        deadline_seconds=90,
    )
    parts = [r.parts[0] for r in cluster.state.replicas.values()]
    assert len({part.port for part in parts}) == 12
    assert len({part.node for part in parts}) == 12
    assert cluster.events(e.ReplicaFailed) == []

    running = {p.pid for p in cluster.engines()}
    fleet.kill()
    again = cluster.start(*words, nats_url=cluster.url, data=tmp_path / "data")
    await cluster.until_state(
        lambda _: len(cluster.events(e.ReplicaAdopted)) == 12, "the next one has found them"
    )
    assert {p.pid for p in cluster.engines()} == running
    await cluster.apply()
    await cluster.until_state(lambda _: len(cluster.events(e.ReplicaStopped)) == 12, "all stopped")
    assert await again.stop() == 0
    await cluster.caught_up()
    assert len(cluster.events(e.NodeStopped)) == 300
    assert cluster.engines() == []


async def test_a_node_that_joins_once_old_records_were_archived_hears_its_commands(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.controller()
    await cluster.event(e.ControllerElected)
    cut_ns = cluster.records[0].time_ns + 100_000_000
    await until(lambda: time.time_ns() > cut_ns, what="the log has grown old")
    of_fleet = replace(pretended(cluster, "m"), classes=("l40s-*",))
    await cluster.apply(of_fleet, pretended(cluster, "c"))
    await cluster.event(e.ModelLeftUnplaced)
    at = {"cluster": NAME, "before_ns": cut_ns, "now_ns": time.time_ns()}
    moved = await move(cluster.log, tmp_path / "old.llmgw", least_age_seconds=0, **at)  # type: ignore[arg-type]
    assert moved.log_first > 1
    folder = str(captured(tmp_path / "whole", L40S))
    cluster.start("agent", "fleet", "--from", folder, nats_url=cluster.url, data=tmp_path / "data")
    cluster.agent("n1")
    await cluster.until_ready("r1")
    await cluster.until_ready("r2")


async def test_a_simulated_node_starts_commands_alone_and_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.agent("s1", "--from", str(captured(tmp_path / "capture", L40S)), "--node", "s1")
    cluster.controller()
    entry = replace(
        pretended(cluster, "m"),
        engine="llama.cpp",
        command=(),
        source=str(tmp_path / "model.gguf"),
        classes=("l40s-*",),
    )
    await cluster.apply(entry)
    failed = await cluster.event(e.ReplicaFailed)
    assert "this node is simulated and cannot run llama.cpp" in failed.reason
    assert cluster.engines() == []
    [inventory] = cluster.events(e.NodeInventoryTaken)
    assert [device.device_class for device in inventory.inventory.devices] == ["l40s-48g"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--copies", "2001"), "are 2001 simulated nodes"),
        (("--node", "sim-1"), "sim-1 is the name of a simulated node"),
    ],
)
async def test_what_cannot_be_simulated_starts_nothing(
    flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    programs = Programs(tmp_path)
    folder = captured(tmp_path / "capture", L40S)
    data = tmp_path / "data"
    code, _, err = await programs.run("up", "--simulate", str(folder), *flags, data=data)
    assert code == 2
    assert says in err
    assert not data.exists()


async def test_a_folder_that_is_no_capture_is_refused_by_up_and_by_an_agent(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    data, nothing = tmp_path / "data", str(tmp_path)
    for words in (
        ("up", "--simulate", nothing),
        ("agent", "run", "--from", nothing, "--node", "s1"),
    ):
        code, _, err = await programs.run(*words, data=data)
        assert code == 2
        assert f"{tmp_path} holds no {REPORT_FILE}" in err
    code, _, err = await programs.run("agent", "run", "--from", nothing, data=data)
    assert code == 2
    assert "--node NAME" in err
    assert not data.exists()


def patient_agent(cluster: Cluster, smi: Path) -> Program:
    """An agent that by itself looks at the hardware once an hour."""
    return cluster.agent(backend="nvidia-smi", nvidia_smi=smi, cpu_device="", sample_seconds=3600)


async def test_a_hangup_has_the_hardware_looked_at_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    smi = await to_thread(write_fake_smi, tmp_path / "nvidia-smi", FakeMachine((L40S,)))
    agent = patient_agent(cluster, smi)
    await cluster.event(e.NodeInventoryTaken)
    agent.send(signal.SIGHUP)
    await until(lambda: agent.says("hardware_looked_at_again"), what="the agent has heard it")
    await to_thread(write_fake_smi, smi, FakeMachine((L40S, L40S)))
    agent.send(signal.SIGHUP)
    await cluster.until_state(
        lambda _: len(cluster.events(e.NodeInventoryTaken)[-1].inventory.cards) == 2,
        "the new card is in the log",
    )
    assert len(cluster.events(e.NodeInventoryTaken)) == 2  # what did not change is not said again


async def test_an_agent_whose_first_look_failed_looks_again_soon(
    cluster: Cluster, tmp_path: Path
) -> None:
    broken = dict.fromkeys(("-L", "-q -x", "topo -m"), FakeAnswer("No devices were found", code=6))
    smi = await to_thread(write_fake_smi, tmp_path / "nvidia-smi", broken)
    agent = patient_agent(cluster, smi)
    await until(lambda: agent.says("hardware_unreadable"), what="the first look has failed")
    await to_thread(write_fake_smi, smi, FakeMachine((L40S,)))
    await cluster.event(e.NodeInventoryTaken)
