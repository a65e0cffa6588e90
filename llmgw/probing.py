"""Asks an engine for its health, its work or one token: one request over a connection of its own.

`supervise` calls it. It is no HTTP client: an agent asks its engines every few seconds for as long
as they run, and a library for that takes more memory than the rest of the agent's work.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from llmgw.engines.base import RequestCounts

_KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY")
"""Where engines are given the key that they ask for."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r\n]")
_REST_SECONDS = 0.5
_REST_BYTES = 2**16
_MOST_BYTES = 2**22
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


class Look(NamedTuple):
    """What an engine told of its work at one moment, and who was connected to it then.

    `mark` is another one after each step that the engine took; absent when it was silent.
    """

    requests: int
    mark: tuple[str, ...] | None
    clients: frozenset[str]


def hangs(before: Look | None, now: Look) -> bool:
    """Return whether somebody waited for an engine that took no step between two looks.

    An engine that hangs may not know of its newest requests: whoever stayed connected counts, too.
    """
    if before is None:
        return False
    if now.mark is None or before.mark is None:
        return now.mark is None
    waiting = before.requests and now.requests
    return now.mark == before.mark and bool(waiting or before.clients & now.clients)


def key_in(environment: Mapping[str, str]) -> str | None:
    """Return the key that an engine with this environment asks for, if it asks for one."""
    return next((environment[name] for name in _KEY_VARIABLES if name in environment), None)


async def look(
    host: str, port: int, counts: RequestCounts, key: str | None, timeout_seconds: float
) -> Look | None:
    """Return what the engine tells of its work now; `None` where it tells nothing of it."""
    status, answer = await _ask(
        host, port, _get(counts.path, key), timeout_seconds, timeout_seconds
    )
    clients = await asyncio.to_thread(_clients, port)
    if status is None or answer is None:
        return Look(0, None, clients)
    text = answer.decode(errors="replace")
    requests = counts.count(text) if status == 200 else None
    return None if requests is None else Look(requests, counts.mark(text), clients)


async def status_of(host: str, port: int, path: str, timeout_seconds: float) -> int | None:
    """Return the HTTP status of `path`; `None` for refused, no answer in time, or no HTTP.

    The rest of the answer is read and dropped, so that the engine does not see a broken pipe.
    """
    status, _ = await _ask(host, port, _get(path), timeout_seconds, _REST_SECONDS)
    return status


async def answer_of(
    host: str, port: int, path: str, timeout_seconds: float, key: str | None = None
) -> str | None:
    """Return what is at `path`, headers and all; `None` unless it came whole, with status 200."""
    status, answer = await _ask(host, port, _get(path, key), timeout_seconds, timeout_seconds)
    if status != 200 or answer is None:
        return None
    return answer.decode(errors="replace")


async def served_models(
    host: str, port: int, timeout_seconds: float, key: str | None = None
) -> tuple[str, ...] | None:
    """Return the ids of the models that are served; `None` where OpenAI's list of them is not."""
    answer = await answer_of(host, port, "/v1/models", timeout_seconds, key)
    try:
        listed = json.loads((answer or "").partition("\r\n\r\n")[2])["data"]
        return tuple(str(model["id"]) for model in listed)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


async def token_status(
    host: str, port: int, model: str, timeout_seconds: float, key: str | None = None
) -> int | None:
    """Ask for one token as any client does, and return the HTTP status; `None`: no answer."""
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
    about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    request = _Request("POST", "/v1/completions", about + _key_header(key), body)
    status, _ = await _ask(host, port, request, timeout_seconds, _REST_SECONDS)
    return status


class _Request(NamedTuple):
    method: str
    path: str
    headers: str = ""
    body: bytes = b""


def _get(path: str, key: str | None = None) -> _Request:
    return _Request("GET", path, _key_header(key))


def _key_header(key: str | None) -> str:
    """Return the header that says the key; one that could be more than a header is left out."""
    return f"Authorization: Bearer {key}\r\n" if key and key.isascii() and key.isprintable() else ""


async def _ask(
    host: str, port: int, asked: _Request, status_seconds: float, rest_seconds: float
) -> tuple[int | None, bytes | None]:
    """Return the status and the rest of the answer, each where it came in time."""
    name = f"[{host}]" if ":" in host else host
    path = quote(asked.path, safe="/?&=%:+,;@~")
    request = (
        f"{asked.method} {path} HTTP/1.1\r\nHost: {name}:{port}\r\n"
        f"User-Agent: llmgw\r\nAccept: */*\r\n{asked.headers}Connection: close\r\n\r\n"
    )
    writer, rest = None, None
    try:
        async with asyncio.timeout(status_seconds):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request.encode("ascii") + asked.body)
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


def _clients(port: int) -> frozenset[str]:
    """Return the far ends of the connections to a port here, as the kernel names them."""
    found = set()
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _ESTABLISHED and words[1].endswith(f":{port:04X}"):
                    found.add(words[2])
    return frozenset(found)
