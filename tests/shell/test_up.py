"""`llmgw up` as a program: what a person gets wrong is said in a word, and nothing is damaged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import connect
from llmgw.outputs import MOST_BYTES, earlier
from llmgw.settings import Settings
from llmgw.telling import say, tell
from tests.support.cluster import Programs, pretended, running_up
from tests.support.disks import fill, mounted
from tests.support.nats import is_running
from tests.support.wait import until

BAD_CATALOG = """\
models:
  - name: Bad Name
    engine: no-such-engine
    class: cpu
    memory: lots
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    own = Programs(tmp_path)
    yield own
    own.end_all()
    own.assert_never_doubled()


def catalog_file(folder: Path, *entries: Entry) -> Path:
    """Write entries of the engine `command` as an operator would."""
    models = []
    for entry in entries:
        model = msgspec.to_builtins(entry)
        model["memory"] = model.pop("memory_bytes")
        model["class"] = list(entry.classes)
        models.append(model)
    path = folder / "catalog.yaml"
    path.write_text(yaml.safe_dump({"models": models}))
    return path


async def refused(programs: Programs, code: int, *arguments: str, **settings: object) -> str:
    """Run `llmgw up`, which must end with this exit code and no traceback; return its message."""
    returned, out, message = await programs.run("up", *arguments, **settings)
    assert (returned, out) == (code, ""), message
    assert "Traceback" not in message
    assert programs.tree() == [], "something was left running"
    return message


async def test_a_catalog_with_mistakes_starts_nothing(programs: Programs) -> None:
    file = programs.folder / "bad.yaml"
    file.write_text(BAD_CATALOG)
    data = programs.folder / "data"
    message = await refused(programs, 2, "--catalog", str(file), data=data)
    assert {f"{file}:{line}:" for line in (2, 3, 5)} <= {
        line.split(" ")[0] for line in message.splitlines()
    }
    assert not data.exists()


async def test_an_address_that_others_could_reach_is_refused(programs: Programs) -> None:
    message = await refused(programs, 2, "--listen", "0.0.0.0:0", data=programs.folder / "data")
    assert "loopback" in message


async def test_a_port_in_use_is_named(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refused(
            programs, 1, "--listen", f"127.0.0.1:{port}", data=programs.folder / "data"
        )
    assert f"port {port} on 127.0.0.1 is in use" in message


async def test_a_data_folder_that_cannot_be_one_is_named(programs: Programs) -> None:
    file = programs.folder / "file"
    file.write_text("mine")
    assert f"data folder {file}: a file" in await refused(programs, 1, data=file)
    assert f"{file}/below" in await refused(programs, 1, data=file / "below")
    assert file.read_text() == "mine"


async def test_a_data_folder_that_is_read_only_is_named(programs: Programs) -> None:
    with mounted(programs.folder / "ro", "ro") as folder:
        message = await refused(programs, 1, data=folder / "data")
    assert f"data folder {folder}/data: Read-only file system" in message


async def test_a_disk_that_is_full_is_named_before_anything_starts(programs: Programs) -> None:
    with mounted(programs.folder / "small", "size=1m") as folder:
        message = await refused(programs, 1, data=folder / "data")
        assert "make room" in message
        fill(folder)
        message = await refused(programs, 1, data=folder / "other")
        assert str(folder / "other") in message


async def test_a_second_one_on_the_same_data_leaves_the_first_serving(tmp_path: Path) -> None:
    async with running_up(tmp_path) as up:
        gate = tmp_path / "gate"
        await up.apply(pretended(up, "m", "say=reading weights", f"ready={gate}"))
        await until(lambda: up.program.says(": reading weights"), 20, "progress is shown")
        gate.touch()
        ready = await up.event(e.ReplicaBecameReady)
        code, _, message = await up.run("up", data=tmp_path / "data")
        assert (code, "Traceback" in message) == (1, False)
        assert f"in use by another llmgw up (pid {up.program.pid})" in message
        port = up.url.rpartition(":")[2]
        code, _, message = await up.run("up", "--listen", f"127.0.0.1:{port}", data=tmp_path / "b")
        assert (code, "Traceback" in message) == (1, False)
        assert f"port {port} on 127.0.0.1 is in use" in message
        assert [p.pid for p in up.engines()] == [ready.pid]
        await up.apply()
        await up.event(e.ReplicaStopped)
        assert await up.program.stop(signal.SIGINT) == 0
        assert up.tree() == []


async def test_on_a_server_of_somebody_elses_it_uses_that_and_leaves_it_running(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server:
        async with running_up(tmp_path, nats_url=server.url) as up:
            assert up.url == server.url
            await up.apply(pretended(up, "m"))
            await up.event(e.ReplicaBecameReady)
            assert await up.program.stop() == 0
            assert up.tree() == []
            assert not (tmp_path / "data" / "nats").exists()
        assert is_running(server.pid)


@pytest.mark.parametrize("heard", ["log server started", "log: nats://", "agent 0"])
async def test_ctrl_c_at_any_time_of_the_start_leaves_nothing_running(
    programs: Programs, heard: str
) -> None:
    file = catalog_file(programs.folder, pretended(programs, "m"))
    up = programs.start("up", "--catalog", str(file), data=programs.folder / "data", node="n1")
    await until(lambda: up.says(heard), 30, heard)
    up.send(signal.SIGINT)
    assert await up.ended(30) in (0, 130)
    await until(lambda: programs.tree() == [], 20, "everything has ended")
    assert "Traceback" not in up.output


async def test_ctrl_c_ends_the_engines_of_an_agent_that_has_just_died(tmp_path: Path) -> None:
    async with running_up(tmp_path) as up:
        await up.apply(pretended(up, "m", "child=session"))
        await up.event(e.ReplicaBecameReady)
        os.kill(up.part("agent"), signal.SIGKILL)
        assert await up.program.stop(signal.SIGINT) == 0
        assert up.tree() == []


async def test_killed_it_takes_its_parts_along_and_goes_on_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    async with running_up(tmp_path) as up:
        file = catalog_file(tmp_path, pretended(up, "m", "child=session"))
        code, out, message = await up.run("ctl", "apply", str(file), "-o", "json", nats_url=up.url)
        assert code == 0, message
        assert json.loads(out)["answer"] == "accepted"
        await up.event(e.ReplicaBecameReady, replica="r1")
        up.program.kill()
        await until(lambda: up.tree() == [], 30, "everything has ended")
    async with running_up(tmp_path, "--catalog", str(file)) as up:
        await up.event(e.ReplicaBecameReady, replica="r1", attempt=2)
        assert len(up.events(e.CatalogApplied)) == 1, "the catalog was in force already"
        assert len(up.events(e.ReplicaAssigned)) == 1
        # The parts heard of its death, and ended as they do when it is asked to stop.
        assert [s.reason for s in up.events(e.ReplicaStopped)] == ["the agent is shutting down"]
        assert up.events(e.ReplicaAdopted) == []
        assert await up.program.stop() == 0
        assert up.tree() == []


async def test_a_disk_that_fills_up_later_stops_nothing_that_runs(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=40m") as folder:
        async with running_up(tmp_path, data=folder) as up:
            await up.apply(pretended(up, "m"), pretended(up, "other"))
            ready = await up.event(e.ReplicaBecameReady, replica="r1")
            other = await up.event(e.ReplicaBecameReady, replica="r2")
            filler = fill(folder)
            os.kill(ready.pid, signal.SIGKILL)
            agent_log = folder / "logs" / "agent.log"
            await until(
                lambda: "agent_cannot_remember" in agent_log.read_text(), 30, "the agent says so"
            )
            os.kill(up.part("nats-server"), signal.SIGKILL)
            await until(
                lambda: up.program.says("log_server_does_not_start"), 30, "up says so as well"
            )
            assert [p.pid for p in up.engines("r2")] == [other.pid]
            filler.unlink()
            assert (await up.event(e.ReplicaFailed)).signal == signal.SIGKILL
            again = await up.event(e.ReplicaBecameReady, 60, attempt=2)
            assert {p.pid for p in up.engines()} == {again.pid, other.pid}
            await up.assert_folds_the_same()
            assert await up.program.stop() == 0
            assert up.tree() == []


async def test_a_first_start_with_a_catalog_never_says_that_a_model_has_no_place(
    tmp_path: Path,
) -> None:
    file = catalog_file(tmp_path, pretended(Programs(tmp_path), "m"))
    async with running_up(tmp_path, "--catalog", str(file)) as up:
        await up.event(e.ReplicaBecameReady)
        assert up.events(e.ModelLeftUnplaced) == []
        assert "without a place" not in up.program.output


async def test_a_catalog_is_applied_though_the_hardware_cannot_be_read(tmp_path: Path) -> None:
    file = catalog_file(tmp_path, pretended(Programs(tmp_path), "m"))
    unreadable = {"backend": "nvidia-smi", "nvidia_smi": "no-such-program"}
    async with running_up(tmp_path, "--catalog", str(file), **unreadable) as up:
        await up.event(e.ModelLeftUnplaced)
        [asked] = up.events(e.CatalogApplied)
        assert asked.file == str(file)


async def test_what_engines_and_parts_print_is_cut_while_they_go_on(tmp_path: Path) -> None:
    async with running_up(tmp_path) as up:
        chatty = ("/bin/sh", "-c", 'yes reading weights | head -c 17000000; exec "$@"', "sh")
        entry = pretended(up, "m")
        await up.apply(replace(entry, command=(*chatty, *entry.command)))
        ready = await up.event(e.ReplicaBecameReady)
        engine_log = tmp_path / "data" / "agent" / "engines" / "r1-0-g1-a1.log"
        controller_log = tmp_path / "data" / "logs" / "controller.log"
        with controller_log.open("ab") as file:
            file.write(bytes(17_000_000))
        for log in (engine_log, controller_log):
            await until(lambda log=log: log.stat().st_size < 1_000_000, 30, f"{log} is cut")  # type: ignore[misc]
            assert earlier(log).stat().st_size == MOST_BYTES
        assert [p.pid for p in up.engines()] == [ready.pid]
        await up.apply()
        await up.event(e.ReplicaStopped)
        await until(lambda: b"replica_retired" in controller_log.read_bytes(), 20, "it writes on")


async def test_a_log_that_a_full_disk_made_refuse_is_started_again_once_there_is_room(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "small", "size=40m") as folder:
        async with running_up(tmp_path, data=folder) as up:
            await up.apply(pretended(up, "m"))
            ready = await up.event(e.ReplicaBecameReady)
            server = up.part("nats-server")
            filler = fill(folder)
            large = e.NodeHardwareUnreadable(reason="x" * 9000)
            writing = asyncio.create_task(up.write(large, node="n2"))
            log = folder / "nats" / "server.log"
            await until(lambda: "no space left" in log.read_text(), 30, "the log has refused")
            filler.unlink()
            await until(lambda: up.program.says("log_server_started_again"), 30, "up has noticed")
            assert await writing > 0, "what was refused is stored after all"
            assert up.part("nats-server") != server
            assert [p.pid for p in up.engines()] == [ready.pid]
            await up.apply()
            await up.event(e.ReplicaStopped, 60)
            assert await up.program.stop() == 0


async def test_a_log_that_was_wiped_is_said_and_stops_nothing(tmp_path: Path) -> None:
    async with running_up(tmp_path) as up:
        await up.apply(pretended(up, "m"))
        ready = await up.event(e.ReplicaBecameReady)
        await until(lambda: up.program.says("r1 answers at"), 20, "it is told")
        (tmp_path / "data" / "nats" / "jetstream").rename(tmp_path / "moved")
        os.kill(up.part("nats-server"), signal.SIGKILL)
        await until(lambda: up.program.says("the log was wiped or replaced"), 40, "up says so")
        assert up.program.says("nothing was stopped")
        before = len(up.program.output)
        await until(
            lambda: "r1 found running" in up.program.output[before:], 40, "the new log is told"
        )
        assert not up.program.has_ended()
        assert [p.pid for p in up.engines()] == [ready.pid]
        assert await up.program.stop(signal.SIGINT) == 0
        assert up.tree() == []


async def test_who_tells_the_log_goes_on_trying_when_it_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with embedded_server(tmp_path) as server:
        log = await connect(server.url, "c1", name="test")
        await log.close()
        settings = Settings(node="n1", data=tmp_path)
        telling = asyncio.create_task(tell(settings, log, None, None))
        shown = await until(lambda: capsys.readouterr().err, 10, "the reason is said")
        assert "the log cannot be followed, trying again: the log at nats://" in shown
        assert not telling.done()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        assert telling.cancelled()


async def test_why_a_part_ended_is_said_at_once(programs: Programs) -> None:
    data = programs.folder / "data"
    other = programs.start("agent", "run", data=data, node="n1", nats_url="nats://127.0.0.1:1")
    await until(lambda: other.says("node_started"), 30, "another agent runs")
    up = programs.start("up", data=data, node="n1")
    await until(lambda: up.says('"part_ended"'), 30, "its own agent has ended")
    [line] = [line for line in up.output.splitlines() if '"part_ended"' in line][:1]
    told = json.loads(line)
    assert "is in use by another agent" in told["said"]
    assert told["log"] == str(data / "logs" / "agent.log")
    assert await up.stop(signal.SIGINT) == 0
    assert await other.stop() == 0


async def test_a_second_ctrl_c_ends_at_once_and_leaves_engines_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with running_up(tmp_path) as up:
        await up.apply(pretended(up, "m", "ignore=term"))
        ready = await up.event(e.ReplicaBecameReady)
        up.program.send(signal.SIGINT)
        await until(lambda: up.program.says("Ctrl-C again ends at once"), 20, "up says how long")
        assert await up.program.stop(signal.SIGINT) == 0
        assert "left to the next `llmgw up`" in up.program.output
        assert up.program.output.endswith("stopped\n")
        assert "Traceback" not in up.program.output
        assert up.tree() == [ready.pid], "the engine alone is left"
        assert not (tmp_path / "data" / "endpoint.json").exists()
        async with running_up(tmp_path) as again:
            await again.event(e.ReplicaAdopted)
            assert [p.pid for p in again.engines()] == [ready.pid]


def test_what_engines_write_cannot_take_over_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("m is loading: \x1b[2J\u202eready")
    assert capsys.readouterr().err == "m is loading: \\x1b[2J\\u202eready\n"


async def test_nodes_that_would_count_as_lost_between_two_heartbeats_are_refused(
    programs: Programs,
) -> None:
    data = programs.folder / "data"
    message = await refused(programs, 2, data=data, heartbeat_seconds=30)
    assert "node_lost_seconds is 15 and heartbeat_seconds is 30" in message
    assert not data.exists()
