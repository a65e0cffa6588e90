"""The supervisor and an engine that answers for its health and gets on with nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmgw.core import stimuli as s
from tests.shell.test_supervise import Watched, assignment, programs
from tests.shell.test_supervise_engines import serving, supervising_vllm
from tests.support.cluster import Programs
from tests.support.wait import until

__all__ = ["programs"]

PROGRAM = f"""#!{sys.executable} -IS
# Takes vLLM's arguments: is well, has a request, and answers for one token with what it finds.
import http.server, os, pathlib, sys
port, folder = int(sys.argv[sys.argv.index("--port") + 1]), pathlib.Path(__file__).parent
key = os.environ.get("VLLM_API_KEY")

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        tokens = len(list(folder.glob("token-*")))
        told = f"vllm:num_requests_running 1.0\\nvllm:generation_tokens_total {{tokens}}\\n"
        self.wfile.write(told.encode())

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        allowed = key is None or self.headers["Authorization"] == f"Bearer {{key}}"
        (folder / "asked").write_text(asked)
        self.send_response(200 if allowed else 401)
        self.end_headers()

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    path = tmp_path / "vllm"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


async def look(watched: Watched, start: s.Start) -> bool | None:
    del watched.reports[:]
    probe = s.ProbeEngine(start, assignment(serving()), watched.port, look=True)
    await watched.supervisor.carry_out(probe)
    answer = await watched.report(s.EngineAnswered, start)
    assert answer.status == 200
    return answer.hangs


async def test_one_that_has_a_request_and_takes_no_step_is_seen_to_hang(
    programs: Programs, vllm: Path
) -> None:
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(serving())
        await watched.health(start, serving(), 200)
        assert [await look(watched, start) for _ in range(3)] == [False, True, True]
        vllm.with_name("token-1").touch()
        assert [await look(watched, start) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("key", ["", "s3cret"])
async def test_it_is_asked_for_one_token_with_the_key_that_it_was_given(
    programs: Programs, vllm: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    entry = serving(env={"VLLM_API_KEY": "${MY_KEY}"} if key else None)
    async with supervising_vllm(programs, vllm) as watched:
        start = await watched.spawn(entry)
        await watched.health(start, entry, 200)
        ask = s.AskForToken(start, assignment(entry), watched.port, 5.0)
        await watched.supervisor.carry_out(ask)
        assert (await watched.report(s.TokenAnswered, start)).status == 200
    asked = vllm.with_name("asked")
    await until(asked.exists, what="it was asked")
    assert asked.read_text() == '{"model": "m", "prompt": "1", "max_tokens": 1}'


async def test_the_next_supervisor_knows_the_key_of_an_engine_that_it_adopts(
    programs: Programs, vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    entry = serving(env={"VLLM_API_KEY": "${MY_KEY}"})
    async with supervising_vllm(programs, vllm) as first:
        start = await first.spawn(entry)
        await first.health(start, entry, 200)
    async with supervising_vllm(programs, vllm) as second:
        await second.supervisor.find({})
        ask = s.AskForToken(start, assignment(entry), second.port, 5.0)
        await second.supervisor.carry_out(ask)
        assert (await second.report(s.TokenAnswered, start)).status == 200
