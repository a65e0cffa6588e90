"""What a real agent measures through NVML, how it lets go of it, and what it sees meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from llmgw.children import Child
from llmgw.core import events as e
from llmgw.core.telemetry import NodeSample
from llmgw.hardware import running
from llmgw.hardware.watch import troubles
from llmgw.releasing import REQUEST_FILE
from llmgw.replay import newest_samples
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeMachine, FakeProcess
from llmgw.testing.nvml_events import XID, supports_events, tell_event
from tests.hardware.described import carved, part
from tests.hardware.support import A100, L40S, needs_nvml
from tests.hardware.test_smi_program import running as programs_naming
from tests.support.cluster import NAME, Cluster, Program
from tests.support.wait import until

MACHINE = FakeMachine((L40S,))
CARVED = FakeMachine((carved(A100, part("1g.10gb", 9728, 7)),))


def library_folder(cluster: Cluster) -> Path:
    folder = cluster.folder / "driver"
    folder.mkdir(exist_ok=True)
    return folder


async def write(cluster: Cluster, machine: FakeMachine, **changed: str) -> Path:
    """Have the machine be so; return the library."""
    answers = supports_events(0) | changed
    return await asyncio.to_thread(
        lambda: write_fake_nvml(library_folder(cluster), machine, changed=answers)
    )


def agent(cluster: Cluster, **settings: object) -> Program:
    """An agent that looks through the pretended NVML alone."""
    settings = {"nvml_sample_seconds": 0.2, "nvml_library": library_folder(cluster)} | settings
    return cluster.agent("n1", backend="nvml", cpu_device="", **settings)


async def sample(cluster: Cluster, condition: Callable[[NodeSample], bool]) -> NodeSample:
    """Wait for a sample that is so."""

    async def found() -> NodeSample | None:
        newest = (await newest_samples(cluster.log, NAME, ["n1"])).get("n1")
        return newest if newest is not None and condition(newest) else None

    answer: NodeSample | None = await until(found, 20, "a sample is so")
    assert answer is not None
    return answer


def holders(cluster: Cluster) -> list[int]:
    """The programs that hold the library."""
    return programs_naming(library_folder(cluster))


async def release(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    return await cluster.run("agent", "release", *words, data=cluster.folder / "n1")


@needs_nvml
async def test_an_agent_samples_over_one_session_and_tells_of_a_critical_error(
    cluster: Cluster,
) -> None:
    here = FakeProcess(pid=os.getpid(), memory_mib=100)
    library = await write(cluster, FakeMachine((replace(L40S, processes=(here,)),)))
    program = agent(cluster, process_names="true")
    first = await sample(cluster, lambda s: s.readings is not None)
    (session,) = holders(cluster)
    assert first.readings is not None
    (process,) = first.readings.devices[0].processes or ()
    comm = await asyncio.to_thread(Path("/proc/self/comm").read_text)
    assert (process.pid, process.name) == (os.getpid(), comm.strip())

    await write(cluster, FakeMachine((replace(L40S, temperature_celsius=71),)))
    hot = await sample(cluster, lambda s: s.readings is not None and s.number > first.number + 3)
    assert hot.readings is not None
    assert hot.readings.cards[0].temperature_celsius == 71
    assert holders(cluster) == [session], "samples start no program"

    await asyncio.to_thread(tell_event, library, card=0, kind=XID, data=95)
    await cluster.until_state(
        lambda _: any(
            c.name == "xid" and "95" in c.detail
            for event in cluster.events(e.NodeConditionsChanged)
            for c in event.conditions
        ),
        "the critical error is in the log",
    )
    assert len(cluster.events(e.NodeInventoryTaken)) == 1, "what is the same is not said again"
    await program.stop()
    assert holders(cluster) == []


@needs_nvml
async def test_nvml_is_given_up_on_request_and_taken_up_again_with_a_fresh_look(
    cluster: Cluster,
) -> None:
    await write(cluster, MACHINE)
    code, _, err = await release(cluster)
    assert code == 3
    assert "no agent runs on" in err
    program = agent(cluster)
    await sample(cluster, lambda s: s.readings is not None)

    code, out, err = await release(cluster, "--for", "1h")
    assert (code, err) == (0, "")
    assert "NVML is released until" in out
    assert holders(cluster) == []
    silent = await sample(cluster, lambda s: s.readings is None)
    assert "a person had NVML released until" in (silent.error or "")

    # A request outlives the agent, and what a signal asks for.
    program.kill()
    await write(cluster, CARVED)
    program = agent(cluster)
    again = await sample(cluster, lambda s: s.session != silent.session)
    assert again.readings is None
    program.send(signal.SIGHUP)
    await until(lambda: program.output.count("nvml_released") == 2, what="it was asked again")
    assert holders(cluster) == []
    assert len(cluster.events(e.NodeInventoryTaken)) == 1, "the devices stay as they were"
    assert cluster.events(e.NodeHardwareUnreadable) == []

    assert (await release(cluster, "--end"))[0] == 0
    await cluster.until_state(lambda _: len(cluster.events(e.NodeInventoryTaken)) == 2, "a look")
    devices = cluster.events(e.NodeInventoryTaken)[-1].inventory.devices
    assert [device.label for device in devices] == ["0/mig0"]

    # By itself, too.
    assert (await release(cluster, "--for", "1s"))[0] == 0
    await sample(cluster, lambda s: s.readings is None)
    await sample(cluster, lambda s: s.readings is not None)


@needs_nvml
async def test_a_request_is_answered_though_a_look_hangs_and_not_by_a_dead_agent(
    cluster: Cluster,
) -> None:
    await write(cluster, MACHINE)
    program = agent(cluster)
    await sample(cluster, lambda s: s.readings is not None)
    await write(cluster, MACHINE, **{"0 nvmlDeviceGetPowerUsage": "*"})
    # A sample that hangs takes far longer than this to be given up by itself.
    began = time.monotonic()
    assert (await release(cluster))[0] == 0
    assert time.monotonic() - began < 25
    assert holders(cluster) == []
    program.kill()
    assert (await release(cluster))[0] == 3
    (cluster.folder / "n1" / "agent" / REQUEST_FILE).write_bytes(b'{"id": 1}')
    await write(cluster, MACHINE)
    agent(cluster)
    await sample(cluster, lambda s: s.readings is not None)


async def test_a_hangup_that_comes_while_an_agent_is_loaded_is_not_its_end(
    cluster: Cluster,
) -> None:
    settings: dict[str, object] = {
        "node": "n1",
        "data": cluster.folder / "n1",
        "nats_url": cluster.url,
    }
    child = Child("agent", ["agent", "run"], cluster.environment(settings), cluster.folder)
    keeping = asyncio.create_task(child.keep())
    try:
        pid = await until(lambda: child.pid or 0, what="the process is there")
        os.kill(pid, signal.SIGHUP)
        await cluster.event(e.NodeInventoryTaken)
        said = await until(
            lambda: "hardware_looked_at_again" in child.log_file.read_text(), what="it was heard"
        )
        assert said
        assert child.pid == pid
    finally:
        await child.stop(20)
        await keeping


async def test_a_program_that_cannot_be_ended_is_a_trouble_of_the_node_until_it_is_gone() -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert await troubles() == ()
        await asyncio.to_thread(running.leave_behind, "nvidia-smi", process.pid)
        ((name, detail),) = await troubles()
        assert name == "tool-hung"
        assert f"nvidia-smi (pid {process.pid}) hangs in the driver" in detail
    finally:
        process.kill()
        await process.wait()
    assert await troubles() == ()
