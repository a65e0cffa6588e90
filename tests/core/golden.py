"""One example of everything that goes on the wire, and where its golden file is.

    LLMGW_REWRITE=1 pytest tests/core/test_wire_golden.py

writes the files anew; a change in one is a change of what other programs read.
"""

from __future__ import annotations

from pathlib import Path

from llmgw import wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.telemetry import ControllerHeartbeat, NodeHeartbeat, NodeSample
from llmgw.engines.base import Grant
from llmgw.hardware.types import (
    Card,
    CardReading,
    Device,
    DeviceReading,
    Excluded,
    Inventory,
    Process,
    Readings,
)

FOLDER = Path(__file__).with_name("golden")
TIME = "2026-01-02T03:04:05Z"

ENTRY = Entry(
    name="qwen3-8b",
    engine="vllm",
    classes=("h100-80g", "a100-*"),
    memory_bytes=40 << 30,
    source="Qwen/Qwen3-8B",
    args=("--enable-prefix-caching",),
    env={"HF_TOKEN": "${HF_TOKEN}"},
    context=32768,
    replicas=2,
    gpus=2,
    tp=2,
)

INVENTORY = Inventory(
    node="gpu-1",
    boot_id="b3c1",
    backend="nvidia-smi",
    fallback_from="nvml",
    driver_version="570.86.15",
    cards=(
        Card(
            index=0,
            uuid="GPU-0",
            name="NVIDIA A100-SXM4-80GB",
            card_class="a100-80g",
            memory_total_bytes=85899345920,
            mig_mode="enabled",
            nvlink_domain="nvlink-0",
        ),
    ),
    devices=(
        Device(
            id=1000,
            label="0/mig0",
            card=0,
            uuid="MIG-0",
            device_class="a100-80g-mig-1g.20gb",
            profile="1g.20gb",
            gpu_instance=3,
            compute_instance=0,
            memory_pool="0/gi3",
            memory_total_bytes=20937965568,
        ),
    ),
    excluded=(Excluded(card=1, reason="mig-empty", detail="MIG is on and no instance is carved"),),
    warnings=("the driver attaches 4 cards and 1 answered",),
)

PART = {"replica": "r7", "generation": 1, "attempt": 2}

EVENTS: tuple[e.Event, ...] = (
    e.NodeStarted(boot_id="b3c1", agent_version="0.1.0", address="10.0.0.7"),
    e.NodeStopped(engines="left running"),
    e.NodeInventoryTaken(inventory=INVENTORY),
    e.NodeConditionsChanged(
        conditions=(e.Condition(device=1000, name="hot", detail="91 °C"),),
    ),
    e.ReplicaStarting(**PART, port=18100, devices=(1000,)),  # type: ignore[arg-type]
    e.ReplicaBecameReady(**PART, address="10.0.0.7", port=18100, pid=4242, seconds=12.5),  # type: ignore[arg-type]
    e.ReplicaAdopted(**PART, pid=4242, port=18100),  # type: ignore[arg-type]
    e.ReplicaFailed(
        **PART,  # type: ignore[arg-type]
        reason="the engine exited with code 1",
        exit_code=1,
        meaning="the model file is not there",
        advice="check `source`",
        output="failed to open GGUF file",
        retry_seconds=2.125,
    ),
    e.ReplicaStopped(**PART, reason="not wanted any more", revision=8),  # type: ignore[arg-type]
    e.StrayEngineStopped(pid=4242, marker="r7/0 g1 a2"),
    e.CommandCompleted(revision=8, term=3),
    e.CommandRefused(revision=8, term=2, reason="term 2 is over; this agent has seen 3"),
    e.CommandSuperseded(revision=7, term=3, by=8),
    e.CatalogApplied(catalog=Catalog(models=(ENTRY,)), file="catalog.yaml"),
    e.ControllerElected(term=3, holder="gpu-1-77"),
    e.NodeLost(term=3, node="gpu-1", silent_seconds=15.5),
    e.NodeReturned(term=3, node="gpu-1"),
    e.CatalogAccepted(term=3, at=40, request=40),
    e.CatalogRejected(term=3, at=40, request=40, reasons=("m: named twice",)),
    e.ReplicaAssigned(
        term=3,
        at=41,
        replica="r7",
        model="qwen3-8b",
        generation=1,
        catalog=40,
        parts=(e.PartPlacement(node="gpu-1", devices=(0, 1), memory_bytes=40 << 30),),
        reasons=("one NVLink domain: nvlink-0",),
        refusals={"in use": 2},
    ),
    e.ModelLeftUnplaced(
        term=3, at=41, model="qwen3-8b", missing=1, refusals={"too small by 4.2 GiB": 3}
    ),
    e.ReplicaRetired(term=3, at=50, replica="r7", reason="its entry changed"),
    e.NodeHardwareUnreadable(reason="nvidia-smi: no driver: load the kernel module"),
    e.ModelScaled(model="chat", replicas=3),
    e.ModelDeleted(model="chat"),
    e.NodeCordoned(node="gpu-1"),
    e.NodeUncordoned(node="gpu-1"),
    e.NodeDrained(node="gpu-1"),
    e.ReplicaRestartAsked(replica="r1"),
)

COMMAND = SetAssignments(
    node="gpu-1",
    revision=8,
    term=3,
    at=42,
    assignments=(
        Assignment(
            replica="r7",
            generation=1,
            entry=ENTRY,
            devices=(0, 1),
            grants=(
                Grant("GPU-0", "h100-80g", 0, 85899345920),
                Grant("GPU-1", "h100-80g", 1, 85899345920),
            ),
        ),
    ),
)

SAMPLE = NodeSample(
    node="gpu-1",
    session="s1",
    number=9,
    readings=Readings(
        cards=(CardReading(index=0, uuid="GPU-0", temperature_celsius=61.0, power_watts=250.5),),
        devices=(
            DeviceReading(
                id=1000,
                uuid="MIG-0",
                memory_used_bytes=0,
                processes=(Process(pid=4242, memory_bytes=1 << 30),),
            ),
        ),
    ),
)

HEARTBEAT = NodeHeartbeat(node="gpu-1", session="s1", number=3)
LEADER = ControllerHeartbeat(holder="ctl-1-4242-0a1b2c3d", term=3, lease_sequence=812, number=9)


def messages() -> dict[str, wire.Outgoing]:
    """Return a message of every type, by wire type."""
    found = {
        event.wire: wire.encode_event(
            "main", event, node="gpu-1", session="s1", number=number, time=TIME
        )
        for number, event in enumerate(EVENTS, 1)
    }
    found[COMMAND.wire] = wire.encode_command("main", COMMAND, time=TIME)
    found[SAMPLE.wire] = wire.encode_sample("main", SAMPLE, time=TIME)
    found[HEARTBEAT.wire] = wire.encode_heartbeat("main", HEARTBEAT, time=TIME)
    found[LEADER.wire] = wire.encode_leader_heartbeat("main", LEADER, time=TIME)
    return found
