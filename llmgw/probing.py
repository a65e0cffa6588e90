"""Asks an engine for its health, or for its metrics: one request over a connection of its own.

`supervise` calls it. It is no HTTP client: an agent asks its engines every few seconds for as long
as they run, and a library for that takes more memory than the rest of the agent's work.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from urllib.parse import quote

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r\n]")
_REST_SECONDS = 0.5
_REST_BYTES = 2**16
_MOST_BYTES = 2**22


async def status_of(host: str, port: int, path: str, timeout_seconds: float) -> int | None:
    """Return the HTTP status of `path`; `None` for refused, no answer in time, or no HTTP.

    The rest of the answer is read and dropped, so that the engine does not see a broken pipe.
    """
    status, _ = await _ask(host, port, path, timeout_seconds, _REST_SECONDS)
    return status


async def answer_of(host: str, port: int, path: str, timeout_seconds: float) -> str | None:
    """Return what is at `path`, headers and all; `None` unless it came whole, with status 200."""
    status, answer = await _ask(host, port, path, timeout_seconds, timeout_seconds)
    if status != 200 or answer is None:
        return None
    return answer.decode(errors="replace")


async def _ask(
    host: str, port: int, path: str, status_seconds: float, rest_seconds: float
) -> tuple[int | None, bytes | None]:
    """Return the status and the rest of the answer, each where it came in time."""
    name = f"[{host}]" if ":" in host else host
    request = (
        f"GET {quote(path, safe='/?&=%:+,;@~')} HTTP/1.1\r\nHost: {name}:{port}\r\n"
        "User-Agent: llmgw\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    writer, rest = None, None
    try:
        async with asyncio.timeout(status_seconds):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request.encode("ascii"))
            line = await reader.readline()
        with suppress(TimeoutError):
            async with asyncio.timeout(rest_seconds):
                rest = await _read_all(reader)
    except (OSError, ValueError):  # the latter: a line without end
        return None, None
    finally:
        if writer is not None:
            writer.close()
    match = _STATUS.match(line)
    return (int(match[1]) if match else None), rest


async def _read_all(reader: asyncio.StreamReader) -> bytes | None:
    """Read to the end; return what was read, unless it was more than an answer may be."""
    found = b""
    while more := await reader.read(_REST_BYTES):
        found = found + more if len(found) <= _MOST_BYTES else found
    return found if len(found) <= _MOST_BYTES else None
