"""A real agent on a real nats-server, commanded by the test: what it starts and survives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.commands import Assignment
from llmgw.engines.base import Grant
from tests.support.cluster import Cluster, Program, Programs, pretended
from tests.support.nats import is_running
from tests.support.wait import until


async def assign(cluster: Cluster, replica: str, entry: Entry) -> Assignment:
    """Return an assignment of the processor of node n1, as the controller would give it."""
    inventory = (await cluster.event(e.NodeInventoryTaken)).inventory
    device = inventory.devices[0]
    return Assignment(
        replica=replica,
        generation=1,
        entry=entry,
        devices=(device.id,),
        grants=(Grant(device.uuid, device.device_class),),
    )


async def serving(cluster: Cluster) -> tuple[Assignment, e.ReplicaBecameReady]:
    """Have the agent serve one replica, and return what it was assigned and said."""
    one = await assign(cluster, "r1", pretended(cluster, "m"))
    await cluster.command(one, revision=1)
    return one, await cluster.event(e.ReplicaBecameReady, replica="r1")


def answer(port: int) -> dict[str, object]:
    """Ask an engine who it is."""
    said: dict[str, object] = httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).json()
    return said


def kinds(cluster: Cluster, replica: str) -> list[str]:
    """Return what the log tells of a replica, in order, as `type attempt`."""
    bodies = [record.body for record in cluster.records]
    parts = [b for b in bodies if isinstance(b, e.PartEvent) and b.replica == replica]
    return [f"{b.wire.removeprefix('replica.')} {b.attempt}" for b in parts]


async def test_an_engine_lives_from_command_to_command(cluster: Cluster) -> None:
    agent = cluster.agent()
    one = await assign(cluster, "r1", pretended(cluster, "one"))
    two = await assign(cluster, "r2", pretended(cluster, "two", "child=session"))
    await cluster.command(one, two, revision=1)
    ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
    assert answer(ready.port)["pid"] == ready.pid
    await cluster.event(e.ReplicaBecameReady, replica="r2")
    assert len({engine.marker.port for engine in cluster.engines()}) == 2

    await cluster.command(one, revision=2)
    await cluster.event(e.ReplicaStopped, replica="r2")
    assert cluster.engines("r2") == []
    await cluster.event(e.CommandCompleted, revision=2)
    assert answer(ready.port)["pid"] == ready.pid

    # Left to itself, the agent goes and the engine stays; the next agent takes it over.
    assert await agent.stop() == 0
    await cluster.caught_up()
    assert cluster.events(e.NodeStopped)[-1].engines == "left running"
    assert answer(ready.port)["pid"] == ready.pid
    agent = cluster.agent("n1", "--stop-engines")
    assert (await cluster.event(e.ReplicaAdopted, replica="r1")).pid == ready.pid

    # Told to, it takes its engines along, and starts them again when it comes back.
    assert await agent.stop(signal.SIGINT) == 0
    assert cluster.engines() == []
    await cluster.caught_up()
    assert cluster.events(e.NodeStopped)[-1].engines == "stopped"
    cluster.agent("n1", "--stop-engines")
    await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    assert kinds(cluster, "r1") == [
        *("starting 1", "ready 1", "adopted 1", "stopped 1", "starting 2", "ready 2")
    ]

    # An order to run nothing is one, and so is the same order given twice.
    await cluster.command(revision=3)
    await cluster.command(revision=3)
    await cluster.event(e.ReplicaStopped, replica="r1", attempt=2)
    assert cluster.engines() == []


async def test_failures_tell_their_reason_and_the_engine_is_started_again(
    cluster: Cluster,
) -> None:
    cluster.agent()
    killed = pretended(cluster, "killed", "say=my last words", "child=session")
    broken = pretended(cluster, "broken", "say=password=hunter2\nCUDA out of memory", "exit=3")
    deaf = pretended(cluster, "deaf", "health=503 Loading", start_seconds=0.5)
    wrong = pretended(cluster, "wrong", "health=404 Nothing")
    secret = pretended(cluster, "secret", env={"HF_TOKEN": "${NO_SUCH_SECRET}"})
    entries = {"r1": killed, "r2": broken, "r3": deaf, "r4": wrong, "r5": secret}
    await cluster.command(
        *[await assign(cluster, name, entry) for name, entry in entries.items()], revision=1
    )

    ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
    children = [engine.pid for engine in cluster.engines("r1") if engine.pid != ready.pid]
    os.kill(ready.pid, signal.SIGKILL)
    failed = await cluster.event(e.ReplicaFailed, replica="r1")
    assert not any(is_running(pid) for pid in children), "failed before its children were gone"
    assert (failed.signal, failed.exit_code, failed.output) == (9, None, "my last words")
    assert failed.retry_seconds >= 1
    again = await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    assert again.port != ready.port, "a port is left alone for a while after its engine"

    failed = await cluster.event(e.ReplicaFailed, replica="r2", attempt=1)
    assert (failed.exit_code, failed.signal) == (3, None)
    assert failed.output == "password=***\nCUDA out of memory"
    assert failed.meaning == "the device has not enough free memory for the model"
    assert failed.advice is not None
    later = await cluster.event(e.ReplicaFailed, replica="r2", attempt=2)
    assert later.retry_seconds > failed.retry_seconds >= 1

    assert "not ready after 0.5 s" in (await cluster.event(e.ReplicaFailed, replica="r3")).reason
    assert "answered 404" in (await cluster.event(e.ReplicaFailed, replica="r4")).reason
    assert "NO_SUCH_SECRET" in (await cluster.event(e.ReplicaFailed, replica="r5")).reason


async def test_stubborn_engines_and_ports_in_use_are_dealt_with(cluster: Cluster) -> None:
    first = cluster.ports[0]
    cluster.agent()
    stubborn = pretended(cluster, "m", "ignore=term", "child=session", stop_seconds=0.5)
    with socket.create_server(("127.0.0.1", first)):
        await cluster.command(await assign(cluster, "r1", stubborn), revision=1)
        ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
    failed = cluster.events(e.ReplicaFailed, replica="r1")
    assert [f.reason for f in failed] == [f"port {first} on 127.0.0.1 is in use"]
    assert ready.port == first + 1
    await cluster.command(revision=2)
    await cluster.event(e.ReplicaStopped, replica="r1")
    assert cluster.engines() == []


def kill_at_first_child(agent: Program) -> int:
    """Kill an agent in the moment in which it has a child, and return the child."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    deadline = time.monotonic() + 20
    while not (found := children.read_text().split()):
        assert time.monotonic() < deadline, "the agent starts no engine"
    agent.kill()
    return int(found[0])


async def test_an_agent_killed_while_it_starts_engines_never_starts_two(cluster: Cluster) -> None:
    """Killed as soon as the process appears: often before its id was written down."""
    agent = cluster.agent()
    entry = pretended(cluster, "m", "child=session")
    revision = 0
    for round_number in range(10):
        revision += 1
        name = f"r{round_number}"
        await cluster.command(await assign(cluster, name, entry), revision=revision)
        engine = await asyncio.to_thread(kill_at_first_child, agent)
        agent = cluster.agent()
        assert (await cluster.event(e.ReplicaAdopted, replica=name)).pid == engine
        await cluster.event(e.ReplicaBecameReady, replica=name, pid=engine)
    assert len(cluster.starts()) == 10
    await cluster.command(revision=revision + 1)
    await cluster.event(e.CommandCompleted, revision=revision + 1)
    assert cluster.engines() == []


async def test_what_happens_while_the_log_is_away_is_told_later_in_order_and_once(
    cluster: Cluster,
) -> None:
    await cluster.server.stop()
    agent = cluster.agent()
    records = cluster.folder / "n1" / "agent" / "agent.sqlite"
    await until(records.exists, 20, "the agent is up without its log")
    assert await agent.stop() == 0
    agent = cluster.agent()
    await cluster.server.start()
    await cluster.command(await assign(cluster, "r1", pretended(cluster, "m")), revision=1)
    ready = await cluster.event(e.ReplicaBecameReady, replica="r1")

    await cluster.kill_server()
    os.kill(ready.pid, signal.SIGKILL)
    await until(lambda: len(cluster.starts()) == 2, what="the engine was started again")
    [engine] = await until(lambda: cluster.engines("r1"), what="the engine runs")
    assert answer_when_up(engine.marker.port)
    agent.kill()  # what it has to tell is on disk
    cluster.agent()
    await cluster.server.start()
    await cluster.event(e.ReplicaAdopted, replica="r1", pid=engine.pid)
    await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    assert kinds(cluster, "r1") == [
        *("starting 1", "ready 1", "failed 1", "starting 2"),
        *(k for k in kinds(cluster, "r1")[4:] if k in ("adopted 2", "ready 2")),
    ]
    own = [r for r in await cluster.all_records() if r.origin == "node"]
    numbers = [(r.session, r.number) for r in own]
    assert len(numbers) == len(set(numbers))
    for session in {r.session for r in own}:
        counted = [r.number for r in own if r.session == session]
        assert counted == list(range(1, len(counted) + 1)), "in order, without a gap"


def answer_when_up(port: int) -> bool:
    transport = httpx.HTTPTransport(retries=5)
    with httpx.Client(transport=transport, trust_env=False) as client:
        return client.get(f"http://127.0.0.1:{port}/").status_code == 200


async def test_a_log_that_was_wiped_is_told_what_runs_and_no_engine_is_touched(
    cluster: Cluster,
) -> None:
    cluster.agent()
    one = await assign(cluster, "r1", pretended(cluster, "m"))
    await cluster.command(one, revision=7, term=5)
    ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
    await cluster.wipe_log()
    await cluster.event(e.NodeStarted)
    await cluster.event(e.NodeInventoryTaken)
    assert (await cluster.event(e.ReplicaAdopted, replica="r1")).pid == ready.pid
    assert answer(ready.port)["pid"] == ready.pid

    # The new log begins with small numbers; its commands count, and what is the same runs on.
    await cluster.command(one, revision=1, term=1)
    await cluster.event(e.ReplicaBecameReady, replica="r1", pid=ready.pid)
    await cluster.event(e.CommandCompleted, revision=1)
    assert answer(ready.port)["pid"] == ready.pid
    other = msgspec.structs.replace(one, entry=pretended(cluster, "other"))
    await cluster.command(other, revision=2, term=1)
    await cluster.event(e.ReplicaStopped, replica="r1")
    replaced = await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    assert answer(replaced.port)["model"] == "other"
    assert len(cluster.engines()) == 1


async def test_an_old_command_is_superseded_and_one_of_an_old_term_refused(
    cluster: Cluster,
) -> None:
    agent = cluster.agent()
    one = await assign(cluster, "r1", pretended(cluster, "one"))
    two = await assign(cluster, "r2", pretended(cluster, "two"))
    await cluster.command(one, revision=1, term=2)
    await cluster.event(e.CommandCompleted, revision=1)
    await agent.stop()
    await cluster.command(two, revision=2, term=2)
    await cluster.command(one, revision=3, term=2)
    await cluster.command(two, revision=4, term=1)
    cluster.agent()
    await cluster.event(e.CommandRefused, revision=4, term=1)
    await cluster.event(e.CommandSuperseded, revision=2)
    await cluster.event(e.CommandCompleted, revision=3)
    assert {engine.marker.start.key.replica for engine in cluster.engines()} == {"r1"}
    assert len(cluster.starts()) == 1


def rewrite_record(cluster: Cluster, name: str, value: bytes) -> None:
    """Change what the agent n1, which must not run, has kept under a name."""
    path = cluster.folder / "n1" / "agent" / "agent.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        changed = database.execute("UPDATE kept SET value = ? WHERE name = ?", (value, name))
        assert changed.rowcount == 1


async def test_after_a_reboot_nothing_starts_before_the_controller_says_so_again(
    cluster: Cluster,
) -> None:
    agent = cluster.agent("n1", "--stop-engines")
    one, _ = await serving(cluster)
    await agent.stop()
    await asyncio.to_thread(rewrite_record, cluster, "boot_id", b"another boot")
    cluster.agent("n1", "--stop-engines")
    await cluster.until_state(lambda _: len(cluster.events(e.NodeInventoryTaken)) == 2, "it is up")
    commanded = await cluster.command(one, revision=2)
    await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    starts = [r.sequence for r in cluster.records if isinstance(r.body, e.ReplicaStarting)]
    assert [sequence > commanded for sequence in starts] == [False, True]


async def test_an_agent_that_cannot_read_its_memory_finds_its_engines_all_the_same(
    cluster: Cluster,
) -> None:
    agent = cluster.agent()
    one, ready = await serving(cluster)
    agent.kill()
    await asyncio.to_thread(rewrite_record, cluster, "memory", b'{"parts": "gone"}')
    agent = cluster.agent()
    assert (await cluster.event(e.ReplicaAdopted, replica="r1")).pid == ready.pid
    await cluster.command(one, revision=2)
    await cluster.event(e.CommandCompleted, revision=2)
    assert agent.says("memory_unreadable")
    assert answer(ready.port)["pid"] == ready.pid
    assert len(cluster.starts()) == 1


async def test_a_second_agent_on_the_same_folder_leaves_the_first_alone(cluster: Cluster) -> None:
    first = cluster.agent()
    await cluster.event(e.NodeInventoryTaken)
    second = cluster.agent()
    assert await second.ended() == 1
    assert f"in use by another agent (pid {first.pid})" in second.output
    assert "Traceback" not in second.output
    assert not first.has_ended()


async def test_a_second_agent_of_the_same_name_starts_nothing_and_says_who_has_it(
    cluster: Cluster,
) -> None:
    first = cluster.agent()
    one, _ = await serving(cluster)
    second = cluster.agent(data=cluster.folder / "elsewhere")
    await until(lambda: second.says("name_taken"), what="the second says that the name is taken")
    await cluster.command(one, await assign(cluster, "r2", pretended(cluster, "m")), revision=2)
    await cluster.event(e.ReplicaBecameReady, replica="r2")
    assert len(cluster.starts()) == 2
    assert len(cluster.state.nodes["n1"].sessions) == 1
    assert not second.has_ended()

    # Told to drain, the first stops its engines in good order, and leaves.
    data = cluster.folder / "n1"
    assert await cluster.run("agent", "drain", "--stop", data=data) == (
        *(0, f"the agent (pid {first.pid}) has stopped its engines and left\n"),
        "",
    )
    await cluster.caught_up()
    assert cluster.events(e.NodeStopped)[-1].engines == "stopped"
    assert cluster.engines() == []
    code, _, said = await cluster.run("agent", "drain", "--stop", data=data)
    assert (code, "no agent runs on" in said) == (3, True)


async def test_what_an_agent_left_undone_at_its_end_the_next_one_goes_on_with(
    cluster: Cluster,
) -> None:
    """Told to leave while one engine loads and another takes its time to stop; then killed."""
    gate = cluster.folder / "loaded"
    agent = cluster.agent()
    loading = await assign(cluster, "r1", pretended(cluster, "one", f"ready={gate}"))
    slow = await assign(cluster, "r2", pretended(cluster, "two", "ignore=term", stop_seconds=60.0))
    await cluster.command(slow, revision=1)
    ready = await cluster.event(e.ReplicaBecameReady, replica="r2")
    await cluster.command(loading, revision=2)
    await cluster.event(e.ReplicaStarting, replica="r1")
    [engine] = await until(lambda: cluster.engines("r1"), what="the engine runs")
    assert await agent.stop() == 0
    assert answer(ready.port)["pid"] == ready.pid, "it may still finish what it has"

    agent = cluster.agent()
    assert (await cluster.event(e.ReplicaAdopted, replica="r1")).pid == engine.pid
    await cluster.event(e.ReplicaStopped, replica="r2")
    assert cluster.engines("r2") == []
    await asyncio.to_thread(gate.touch)
    await cluster.event(e.ReplicaBecameReady, replica="r1", pid=engine.pid)

    # The engine ends while no agent is there: the next one says so, once, with its last words.
    agent.kill()
    os.kill(engine.pid, signal.SIGKILL)
    agent = cluster.agent()
    await cluster.event(e.ReplicaBecameReady, replica="r1", attempt=2)
    await agent.stop()
    cluster.agent()
    await cluster.event(e.ReplicaAdopted, replica="r1", attempt=2)
    assert kinds(cluster, "r1") == [
        *("starting 1", "adopted 1", "ready 1", "failed 1", "starting 2", "ready 2", "adopted 2")
    ]
    failed = await cluster.event(e.ReplicaFailed, replica="r1")
    assert failed.reason == "the engine was not running when the agent came up"
    assert len(cluster.starts()) == 3


async def test_an_adopted_engine_that_ends_is_noticed_at_once(cluster: Cluster) -> None:
    """By the kernel's word: its health is asked for every five seconds alone."""
    agent = cluster.agent()
    await cluster.command(await assign(cluster, "r1", pretended(cluster, "m")), revision=1)
    ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
    agent.kill()
    cluster.agent()
    await cluster.event(e.ReplicaAdopted, replica="r1")
    os.kill(ready.pid, signal.SIGKILL)
    failed = await cluster.event(e.ReplicaFailed, replica="r1")
    assert failed.reason == "the engine exited (its exit code went to an earlier agent)"


def remembered(cluster: Cluster) -> dict[str, Any]:
    """Return what the agent n1, which must not run, remembers."""
    path = cluster.folder / "n1" / "agent" / "agent.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        [[value]] = database.execute("SELECT value FROM kept WHERE name = 'memory'")
    found: dict[str, Any] = json.loads(value)
    return found


def of_a_newer_agent(memory: dict[str, Any]) -> dict[str, Any]:
    """Add to everything what this version does not know."""
    part = memory["parts"]["r1/0"]
    assignment = part["assignment"]
    for value in (memory, part, assignment, assignment["entry"], *assignment["grants"]):
        value["since_tomorrow"] = [1]
    return memory


async def test_an_agent_that_was_put_back_to_an_older_version_adopts_what_the_newer_one_ran(
    cluster: Cluster,
) -> None:
    agent = cluster.agent()
    _, ready = await serving(cluster)
    await agent.stop()
    memory = await asyncio.to_thread(remembered, cluster)
    newer = json.dumps(of_a_newer_agent(memory)).encode()
    await asyncio.to_thread(rewrite_record, cluster, "memory", newer)
    agent = cluster.agent()
    assert (await cluster.event(e.ReplicaAdopted, replica="r1")).pid == ready.pid
    assert not agent.says("memory_unreadable")
    assert answer(ready.port)["pid"] == ready.pid
    assert len(cluster.starts()) == 1


PLANTED = """
import asyncio, sys
from llmgw import agent
from llmgw.cli import agent_process, main

async def planted(self):
    {bug}

agent.Agent._follow_commands = planted
agent_process.become = lambda orders: asyncio.run(agent.run_agent(orders.settings))
sys.argv = ["llmgw", "agent", "run"]
main.run()
"""


@pytest.mark.parametrize("bug", ["raise KeyError('planted')", "return"])
async def test_an_agent_ends_as_a_failure_when_one_of_its_loops_ends(
    tmp_path: Path, bug: str
) -> None:
    """So that systemd, or `llmgw up`, starts it again; the engines are adopted then."""
    programs = Programs(tmp_path)
    settings = {"node": "n1", "data": tmp_path / "n1", "nats_url": "nats://127.0.0.1:9"}
    command = [sys.executable, "-c", PLANTED.format(bug=bug)]
    program = Program(command, programs.environment(settings), tmp_path / "out")
    programs.started.append(program)
    try:
        assert await program.ended() not in (0, 2)
        assert ("planted" if "planted" in bug else "has ended, and must not") in program.output
    finally:
        programs.end_all()
