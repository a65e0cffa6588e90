"""Asking for the health of what may not be an HTTP server at all."""

from __future__ import annotations

import asyncio

import pytest

from llmgw.probing import status_of

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
