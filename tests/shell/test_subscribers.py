"""The programs that docs/subscribing.md shows, run as they stand against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.folding import fold
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.jetstream import JetStreamLog
from llmgw.service import serve_views
from llmgw.settings import Settings
from tests.cli.conftest import environment
from tests.core import golden
from tests.support.javascript import node
from tests.support.nats import Subjects, log_on, plain_server
from tests.support.wait import until

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "subscribing.md"
SHOWN = ROOT / "docs" / "subscribers"

Command = Callable[[str, Subjects, int], list[str]]


def in_python(url: str, at: Subjects, start: int) -> list[str]:
    return [sys.executable, str(SHOWN / "follow.py"), url, at.cluster, str(start)]


def in_javascript(url: str, at: Subjects, start: int) -> list[str]:
    return node(SHOWN / "follow.mjs", url, at.cluster, str(start))


def with_ctl(url: str, at: Subjects, start: int) -> list[str]:
    command = [sys.executable, "-m", "llmgw", "ctl", "events", "--follow", "-o", "json"]
    return [*command, "--nats-url", url, "--cluster", at.cluster, "--since", str(start)]


class Running:
    """A program whose output grows in a file."""

    def __init__(self, command: list[str], folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "output"
        self.errors = folder / "errors"
        with self.file.open("wb") as output, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=errors, env=environment(folder), cwd=folder
            )

    @property
    def lines(self) -> list[str]:
        """What it has printed so far, whole lines only."""
        return self.file.read_text(encoding="utf-8").split("\n")[:-1]

    @property
    def said(self) -> str:
        return self.errors.read_text(encoding="utf-8")

    async def until_printed(self, enough: Callable[[list[str]], bool], what: str) -> list[str]:
        def holds() -> bool:
            assert self._process.poll() is None, self.said
            return enough(self.lines)

        await until(holds, 30, what)
        return self.lines

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextlib.asynccontextmanager
async def running(command: list[str], folder: Path) -> AsyncIterator[Running]:
    program = await asyncio.to_thread(Running, command, folder)
    try:
        yield program
    finally:
        await asyncio.to_thread(program.end)


class Writer:
    """Writes events, one after another, as an agent does."""

    def __init__(self, log: JetStreamLog, at: Subjects) -> None:
        self._log = log
        self._at = at
        self._number = 0

    async def write(self, count: int) -> int:
        """Append so many; return the sequence of the last."""
        for _ in range(count):
            self._number += 1
            event = e.NodeHardwareUnreadable(reason=f"number {self._number}: ä \U0001f525")
            message = wire.encode_event(
                self._at.cluster,
                event,
                node="n1",
                session="s",
                number=self._number,
                time="2026-01-01T00:00:00Z",
            )
            last = await self._log.append(
                message.subject, message.payload, message_id=message.message_id
            )
        return last


def sequences(lines: list[str]) -> list[int]:
    return [json.loads(line)["sequence"] for line in lines]


def has(sequence: int) -> Callable[[list[str]], bool]:
    return lambda lines: bool(lines) and sequences(lines)[-1] >= sequence


async def kill(server: EmbeddedServer) -> None:
    """End the server as a power cut would, and start it again."""
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.restart()


@pytest.mark.parametrize("command", [in_python, in_javascript, with_ctl])
async def test_each_record_comes_once_and_in_order_over_restarts_of_the_server(
    command: Command, server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    async with log_on(server, at) as log:
        writer = Writer(log, at)
        last = await writer.write(5)
        async with running(command(server.url, at, 3), tmp_path / "program") as program:
            await program.until_printed(has(last), "what was there is printed")
            await writer.write(50)
            await kill(server)
            last = await writer.write(5)
            lines = await program.until_printed(has(last), "what came is printed")
        assert sequences(lines) == list(range(3, last + 1))
        assert "number 60: ä \U0001f525" in json.dumps(json.loads(lines[-1]), ensure_ascii=False)


async def test_a_shell_alone_can_watch(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    port = server.url.rpartition(":")[2]
    pattern = f"llmgw.v1.{at.cluster}.event.node.*.node.hardware_unreadable"
    command = ["bash", str(SHOWN / "watch.sh"), "127.0.0.1", port, pattern]
    async with log_on(server, at) as log, running(command, tmp_path / "program") as program:
        await until(lambda: "listening" in program.said, what="it listens")
        await Writer(log, at).write(20)
        await log.append(f"llmgw.v1.{at.cluster}.command.n1", b"{}", message_id="not this")
        lines = await program.until_printed(lambda lines: len(lines) == 20, "all are printed")
    subjects, payloads = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert set(subjects) == {pattern.replace("*", "n1")}
    reasons = [json.loads(payload)["data"]["reason"] for payload in payloads]
    assert reasons == [f"number {n}: ä \U0001f525" for n in range(1, 21)]


async def asked(server: EmbeddedServer, subject: str, question: str = "") -> Any:  # noqa: ANN401
    port = server.url.rpartition(":")[2]
    command = ["bash", str(SHOWN / "ask.sh"), "127.0.0.1", port, subject, question]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_a_shell_alone_can_ask(server: EmbeddedServer, at: Subjects, tmp_path: Path) -> None:
    async with log_on(server, at) as log:
        last = await Writer(log, at).write(3)
        state = Cluster()
        async for batch in log.follow(until=last):
            fold(state, batch)
        settings = Settings(node="k1", data=tmp_path, cluster=at.cluster)
        views = serve_views(log, settings, state, lambda _: asyncio.sleep(0))
        serving = asyncio.create_task(views)
        there: bool = await until(lambda: asked_at_all(server), 60, "somebody answers")
        assert there
        subject = f"llmgw.v1.{at.cluster}.api.views.status"
        assert (await asked(server, subject))["sequence"] == last
        assert (await asked(server, subject, json.dumps({"sequence": last})))["sequence"] == last
        message = await asked(
            server, f"$JS.API.STREAM.MSG.GET.LLMGW_{at.cluster}_LOG", '{"seq": 2}'
        )
        assert message["message"]["seq"] == 2
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def asked_at_all(server: EmbeddedServer) -> bool:
    with contextlib.suppress(AssertionError, json.JSONDecodeError):
        return bool(await asked(server, "$SRV.PING.llmgw-controller"))
    return False


async def test_every_pattern_of_the_document_finds_what_it_names(server: EmbeddedServer) -> None:
    patterns = re.findall(
        r"^\| `(llmgw\.v1\.[^`<]+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE
    )
    assert len(patterns) > 5
    subjects = {message.subject for message in golden.messages().values()}
    client = await nats.connect(server.url)
    try:
        subscriptions = {
            pattern: await client.subscribe(pattern.replace(".default.", ".main."))
            for pattern in patterns
        }
        for subject in sorted(subjects):
            await client.publish(subject, b"")
        for pattern, subscription in subscriptions.items():
            regex = re.escape(pattern.replace(".default.", ".main."))
            regex = regex.replace(r"\*", r"[^.]+").replace(">", ".+")
            expected = {subject for subject in subjects if re.fullmatch(regex, subject)}
            assert expected
            got = {(await subscription.next_msg(5)).subject for _ in expected}
            assert got == expected
            assert subscription.pending_msgs == 0
    finally:
        await client.close()


def test_the_message_that_the_document_shows_is_one() -> None:
    (shown,) = re.findall(r"```json\n(.+?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    subject = "llmgw.v1.default.event.node.gpu-1.replica.ready"
    assert isinstance(wire.decode(1, 1, subject, shown.encode()).body, e.ReplicaBecameReady)


@pytest.mark.parametrize("command", [in_python, in_javascript])
async def test_a_user_with_the_permissions_that_the_document_gives_can_read_and_no_more(
    command: Command, tmp_path: Path
) -> None:
    (users,) = re.findall(r"```\n(authorization .+?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    config = f'jetstream {{ store_dir: "{tmp_path}/store" }}\n{users}'
    at = Subjects("default")
    async with (
        plain_server(tmp_path, config) as address,
        log_on(f"nats://admin:admin@{address}", at) as log,
    ):
        last = await Writer(log, at).write(5)
        reader = f"nats://reader:reader@{address}"
        async with running(command(reader, at, 1), tmp_path / "program") as program:
            await program.until_printed(has(last), "the reader reads")
        client = await nats.connect(reader)
        try:
            for subject in (at.event(), at.command(), "$JS.API.STREAM.DELETE.LLMGW_default_LOG"):
                await client.publish(subject, b"{}")
            await client.flush()
        finally:
            await client.close()
        assert (await log.bounds()).last == last


@pytest.mark.parametrize("path", sorted(SHOWN.iterdir()), ids=lambda path: path.name)
def test_the_document_shows_the_very_program(path: Path) -> None:
    fences = {".py": "python", ".mjs": "javascript", ".sh": "bash"}
    block = f"```{fences[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n"
    assert block in DOCUMENT.read_text(encoding="utf-8")
