"""Giving NVML up for a while: what `llmgw agent release` and an agent say to each other.

Each writes one file in the agent's folder, whole or not at all: the request and the answer. SIGHUP
tells the agent that there may be a request; without one it just looks at the hardware again. A
request outlives an agent that is killed meanwhile: the next one on the folder heeds it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from llmgw.errors import AgentUnreachable, DataFolderError, LlmgwError
from llmgw.folder import holder, unusable

REQUEST_FILE = "release.json"
ANSWER_FILE = "released.json"
ANSWER_SECONDS = 120.0
_PAUSE_SECONDS = 0.05

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True):
    """To hold no NVML session `until` a time, in seconds since 1970; one that is over ends it."""

    id: str
    until: float


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request with this id is heeded; `trouble` says what stands in its way all the same."""

    id: str
    trouble: str | None = None


def requested(folder: Path) -> Request | None:
    """Return the request in an agent's folder, if there is one that can be read."""
    return _read(folder / REQUEST_FILE, Request)


def answer(folder: Path, request: Request, trouble: str | None) -> None:
    """Say that a request is heeded. Raises `DataFolderError`."""
    _write(folder / ANSWER_FILE, Answer(request.id, trouble))


def ask(folder: Path, until: float) -> Answer:
    """Ask the agent on a folder to give NVML up until a time, and wait until it has.

    Raises `AgentUnreachable` when no agent runs there or it ends meanwhile, `DataFolderError` when
    this user may not write there, and `LlmgwError` when the agent does not answer.
    """
    pid = _agent(folder)
    request = Request(secrets.token_hex(8), until)
    _write(folder / REQUEST_FILE, request)
    tell(folder, pid, signal.SIGHUP)
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        found = _read(folder / ANSWER_FILE, Answer)
        if found is not None and found.id == request.id:
            return found
        _agent(folder)
        time.sleep(_PAUSE_SECONDS)
    raise LlmgwError(
        f"the agent (pid {pid}) did not answer within {ANSWER_SECONDS:g} s and may still hold NVML:"
        " look at its log, and stop it if need be"
    )


def _agent(folder: Path) -> int:
    pid = holder(folder)
    if pid is None:
        raise AgentUnreachable(
            f"no agent runs on {folder}, so none holds NVML. If one runs on another data folder,"
            " name that with --data or LLMGW_DATA"
        )
    return pid


def tell(folder: Path, pid: int, number: signal.Signals) -> None:
    """Signal the agent on a folder, which has this process id. Raises `DataFolderError`.

    While it is held open its number is not given to another process.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # which the caller notices
    try:
        if holder(folder) == pid:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise DataFolderError(
            f"the agent (pid {pid}) is another user's: run this as that user, or as root"
        ) from error
    finally:
        os.close(descriptor)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, content: msgspec.Struct) -> None:
    part = path.with_suffix(".new")
    try:
        part.write_bytes(msgspec.json.encode(content))
        part.replace(path)
    except OSError as error:
        raise unusable(path.parent, error) from error
