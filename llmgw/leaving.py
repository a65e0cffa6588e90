"""Having an agent stop its engines and leave: what `llmgw agent drain --stop` says to it.

SIGTERM alone lets the engines run on. A file in the agent's folder, which names the process that it
is for, makes it mean that they are stopped first; another agent that comes later pays no heed.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgspec

from llmgw.errors import AgentUnreachable, LlmgwError
from llmgw.folder import holder, unusable
from llmgw.releasing import tell

REQUEST_FILE = "leave.json"
_PAUSE_SECONDS = 0.05


class Request(msgspec.Struct, frozen=True):
    """That the agent with this process id stops its engines before it leaves."""

    pid: int


def asked(folder: Path, pid: int) -> bool:
    """Return whether the agent with this process id shall stop its engines before it leaves."""
    try:
        return msgspec.json.decode((folder / REQUEST_FILE).read_bytes(), type=Request).pid == pid
    except (OSError, msgspec.MsgspecError):
        return False


def ask(folder: Path, patience_seconds: float) -> int:
    """Have the agent on a folder stop its engines and leave; return its process id once it has.

    Raises `AgentUnreachable` when no agent runs there, `DataFolderError` when this user may not
    write there or signal it, and `LlmgwError` when it has not left in time: it goes on leaving.
    """
    pid = holder(folder)
    if pid is None:
        raise AgentUnreachable(
            f"no agent runs on {folder}. If one runs on another data folder, name that with --data"
            " or LLMGW_DATA"
        )
    path = folder / REQUEST_FILE
    try:
        path.write_bytes(msgspec.json.encode(Request(pid)))
    except OSError as error:
        raise unusable(folder, error) from error
    tell(folder, pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_seconds
    while holder(folder) == pid:
        if time.monotonic() > deadline:
            raise LlmgwError(
                f"the agent (pid {pid}) is still stopping its engines after {patience_seconds:g} s:"
                " its log says which. It goes on"
            )
        time.sleep(_PAUSE_SECONDS)
    path.unlink(missing_ok=True)
    return pid
