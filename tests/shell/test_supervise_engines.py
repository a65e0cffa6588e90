"""The supervisor and engines that tell: who listens, how many requests there are, how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import stimuli as s
from llmgw.loading import Loaded
from llmgw.settings import Settings
from llmgw.supervise import Supervisor
from tests.shell.test_supervise import Watched, assignment, programs, supervising
from tests.support.cluster import Programs
from tests.support.wait import until

__all__ = ["programs"]

PROGRAM = f"""#!{sys.executable} -IS
# Takes vLLM's arguments: says what it does, and serves two requests unless it is told to sulk.
import http.server, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
print("Loading weights took 3.14 seconds", flush=True)

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/v1/models":
            name = sys.argv[sys.argv.index("--served-model-name") + 1]
            self.wfile.write(b'{{"data": [{{"id": "%s"}}]}}' % name.encode())
        else:
            self.wfile.write(b'vllm:num_requests_running{{engine="0"}} 2.0\\n')

    def log_message(self, *words):
        pass

if "--sulk" in sys.argv:
    import signal; signal.pause()
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    path = tmp_path / "vllm"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


@contextlib.asynccontextmanager
async def supervising_vllm(programs: Programs, vllm: Path) -> AsyncIterator[Watched]:
    settings = Settings(node="n1", data=programs.folder, vllm=str(vllm))
    async with supervising(programs) as watched, anyio.create_task_group() as tasks:
        folder, report = programs.folder / "engines", watched.reports.append
        watched.supervisor = Supervisor("cafe0002", folder, "127.0.0.1", settings, tasks, report)
        try:
            yield watched
        finally:
            tasks.cancel_scope.cancel()
            await watched.supervisor.close()


def serving(*args: str, env: dict[str, str] | None = None) -> Entry:
    return Entry(
        name="m",
        engine="vllm",
        classes=("cpu",),
        memory_bytes=1,
        source="/m",
        args=args,
        env=env or {},
    )


@contextlib.asynccontextmanager
async def answering_here(port: int) -> AsyncIterator[None]:
    """Have this process answer on a port, as another program would."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield


async def test_a_foreign_listener_on_its_port_does_not_answer_for_an_engine(
    programs: Programs, vllm: Path
) -> None:
    entry = serving("--sulk")
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(entry)
        await watched.report(s.EngineSpawned, start)
        async with answering_here(watched.port):
            await watched.health(start, entry, 200)
            answer = await watched.report(s.EngineAnswered, start)
        assert str(answer.stranger).startswith(f"pid {os.getpid()} (")


async def test_it_is_known_how_far_an_engine_is(programs: Programs, vllm: Path) -> None:
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(serving("--sulk"))
        await watched.report(s.EngineSpawned, start)

        async def said() -> dict[str, str]:
            return await watched.supervisor.progress({"r1/0": start})

        line = "Loading weights took 3.14 seconds"
        found: dict[str, str] = await until(said, 15, "the engine says something")
        assert found == {"r1/0": line}


async def test_an_engine_answers_for_itself_and_tells_its_requests(
    programs: Programs, vllm: Path
) -> None:
    entry = serving()
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(entry)
        await watched.health(start, entry, 200)
        assert (await watched.report(s.EngineAnswered, start)).stranger is None
        count = s.CountRequests(start, assignment(entry), watched.port)
        await watched.supervisor.carry_out(count)
        assert (await watched.report(s.EngineCounted, start)).requests == 2


async def test_an_engine_of_another_model_on_its_port_does_not_answer_for_an_engine(
    programs: Programs, vllm: Path
) -> None:
    """Where nobody may see who listens, as on a port that a container forwards."""
    entry = serving()
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(entry)
        await watched.health(start, entry, 200)
        renamed = msgspec.structs.replace(entry, name="other")
        again = s.Start(start.key, 1, 2)
        probe = s.ProbeEngine(again, assignment(renamed), watched.port)
        await watched.supervisor.carry_out(probe)
        answer = await watched.report(s.EngineAnswered, again)
        assert (answer.status, answer.stranger) == (200, "an engine that serves m")


async def test_it_is_known_how_much_of_its_weights_an_engine_has_read(
    programs: Programs, vllm: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"\0" * 1000)
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(serving("--sulk"))
        await watched.report(s.EngineSpawned, start)

        async def told(source: str) -> Loaded | None:
            found = await watched.supervisor.loaded({"r1/0": start}, {"r1/0": source})
            return found.get("r1/0")

        # A Python interpreter has read more than that of its own files.
        assert await told(str(tmp_path)) == Loaded(1000, 1000)
        unknown = await told("org/model")
        assert unknown is not None
        assert unknown.read_bytes > 1000
        assert unknown.weights_bytes is None
        gone = s.Start(start.key, 1, 9)
        assert await watched.supervisor.loaded({"r1/0": gone}, {"r1/0": "org/model"}) == {}
        assert await watched.supervisor.loaded({"r1/0": start}, {}) == {}, "it loads no model"
