"""Asking for health, work and a token what may not be an HTTP server at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from llmgw.engines.registry import ENGINES
from llmgw.probing import Look, hangs, key_in, look, status_of, token_status

ANSWERS = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n": 200,
    b"HTTP/1.0 503 Loading\r\n\r\n{}": 503,
    b"HTTP/1.1 404\r\n\r\n": 404,
    b"HTTP/1.1 2000 OK\r\n\r\n": None,
    b"HTTP/2 200 OK\r\n\r\n": None,
    b"SSH-2.0-OpenSSH_9.2\r\n": None,
    b"x" * 200_000: None,
    b"\xff\n": None,
    b"": None,
}


async def probe(
    answer: bytes, *, closes: bool = True, path: str = "/health"
) -> tuple[int | None, str]:
    """Ask a server that gives this answer; return the status and what it was asked."""
    asked: list[bytes] = []
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        if not closes:
            await reader.read()  # until the other side has had enough
        writer.close()
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        status = await status_of("127.0.0.1", port, path, 1.0)
        await served.wait()
    return status, asked[0].decode()


@pytest.mark.parametrize(("answer", "status"), ANSWERS.items())
async def test_only_an_http_status_is_one(answer: bytes, status: int | None) -> None:
    assert await probe(answer) == (status, "GET /health HTTP/1.1\r\n")


async def test_a_connection_that_is_left_open_does_not_keep_the_answer_back() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n"
    assert await probe(answer, closes=False) == (200, "GET /health HTTP/1.1\r\n")


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    assert await probe(b"", closes=False) == (None, "GET /health HTTP/1.1\r\n")


async def test_a_path_cannot_smuggle_a_header_in() -> None:
    _, line = await probe(b"", path="/a b?x=1&y=ü\r\nX: 1")
    assert line == "GET /a%20b?x=1&y=%C3%BC%0D%0AX:%201 HTTP/1.1\r\n"


async def test_a_port_that_nobody_listens_on_has_no_status() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert await status_of("127.0.0.1", port, "/", 1.0) is None


METRICS = b"""vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:generation_tokens_total{engine="0"} 17.0
"""
ONE, TWO = frozenset({"0100007F:CFB0"}), frozenset({"0100007F:CFB2"})
IDLE = Look(0, ("17.0",), frozenset())
BUSY = Look(2, ("17.0",), frozenset())
SILENT = Look(0, None, frozenset())


@contextlib.asynccontextmanager
async def serving(answer: bytes, asked: list[bytes]) -> AsyncIterator[int]:
    """Answer every request so on the port that is given, and keep what was asked."""

    handlers = asyncio.TaskGroup()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.read(4096)).partition(b"\r\n\r\n")[0])
        writer.write(answer)
        if not answer:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.create_task(answer_one(reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, handlers:
        yield server.sockets[0].getsockname()[1]


async def look_at(answer: bytes, key: str | None = None) -> tuple[Look | None, str]:
    counts = ENGINES["vllm"].request_counts
    asked: list[bytes] = []
    assert counts is not None
    async with serving(answer, asked) as port:
        found = await look("127.0.0.1", port, counts, key, 1.0)
    return found, asked[0].decode()


async def test_a_look_tells_requests_and_steps() -> None:
    found, asked = await look_at(b"HTTP/1.1 200 OK\r\n\r\n" + METRICS)
    assert found is not None
    assert (found.requests, found.mark) == (3, ("17.0", "2.0"))
    assert asked.startswith("GET /metrics HTTP/1.1\r\n")
    assert "Authorization" not in asked


async def test_who_is_silent_has_no_mark() -> None:
    found, _ = await look_at(b"")
    assert found is not None
    assert found.mark is None


@pytest.mark.parametrize("answer", [b"HTTP/1.1 401 No\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nhello"])
async def test_who_does_not_tell_cannot_be_looked_at(answer: bytes) -> None:
    assert (await look_at(answer))[0] is None


async def test_clients_that_stay_connected_are_seen() -> None:
    counts = ENGINES["vllm"].request_counts
    assert counts is not None
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + METRICS, []) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        looks = [await look("127.0.0.1", port, counts, None, 1.0) for _ in range(2)]
        writer.close()
        await writer.wait_closed()
    first, second = looks
    assert first is not None
    assert second is not None
    assert len(first.clients & second.clients) == 1


@pytest.mark.parametrize(
    ("before", "now", "hung"),
    [
        (None, BUSY, False),
        (BUSY, BUSY, True),
        (BUSY, BUSY._replace(mark=("18.0",)), False),
        (IDLE, IDLE, False),
        (IDLE, BUSY, False),
        (BUSY, IDLE, False),
        (BUSY, SILENT, True),
        (SILENT, SILENT, True),
        (SILENT, BUSY, False),
        (IDLE._replace(clients=ONE), IDLE._replace(clients=ONE), True),
        (IDLE._replace(clients=ONE), IDLE._replace(clients=TWO), False),
    ],
)
def test_an_engine_hangs_if_somebody_waits_and_nothing_moves(
    before: Look | None, now: Look, hung: bool
) -> None:
    assert hangs(before, now) is hung


async def test_one_token_is_asked_for_as_any_client_does() -> None:
    asked: list[bytes] = []
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n{}", asked) as port:
        assert await token_status("127.0.0.1", port, 'my "model"', 1.0, "s3cret") == 200
    head = asked[0].decode().split("\r\n")
    assert head[0] == "POST /v1/completions HTTP/1.1"
    assert "Authorization: Bearer s3cret" in head
    assert "Content-Type: application/json" in head


async def test_a_token_that_does_not_come_is_waited_for_so_long() -> None:
    async with serving(b"", []) as port:
        assert await token_status("127.0.0.1", port, "m", 0.1) is None


async def test_a_key_cannot_smuggle_a_header_in() -> None:
    _, asked = await look_at(b"HTTP/1.1 200 OK\r\n\r\n" + METRICS, "a\r\nX: 1")
    assert "X: 1" not in asked
    _, asked = await look_at(b"HTTP/1.1 200 OK\r\n\r\n" + METRICS, "a")
    assert asked.endswith("Connection: close")
    assert "Authorization: Bearer a\r\n" in asked


def test_the_key_is_what_the_engine_was_given() -> None:
    assert key_in({"VLLM_API_KEY": "k", "PATH": "/bin"}) == "k"
    assert key_in({"PATH": "/bin"}) is None
