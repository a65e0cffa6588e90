"""Ties a child process to its parent's life, even if the parent dies by SIGKILL.

`tethered` builds the command line; run as a script this module asks the kernel for a signal at
the parent's death, checks that the parent is still there, and becomes the program. Who starts a
server or another llmgw process that must not outlive it uses this. It is not for engines, which
outlive their agent on purpose. It imports nothing of llmgw, so that it starts in milliseconds.

The kernel sends the signal when the *thread* that started the child ends, not the process: start
tethered children from the main thread, as asyncio does, never from a worker thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_ABANDONED = 125


def tethered(program: Sequence[str], *, signal_name: str = "TERM") -> list[str]:
    """Return the argument list that runs `program` tethered to the calling process.

    `signal_name` (`TERM`, `KILL`, …) is what the program gets when its parent dies. The process
    id stays the same through the final exec, so it is the program's own.
    """
    script = os.path.abspath(__file__)  # noqa: PTH100 - pathlib would cost more than all the rest
    # Isolated and without site-packages: nothing on the way to the program can be slow or differ.
    python = [sys.executable, "-I", "-S", script]
    return [*python, str(os.getpid()), signal_name, "--", *program]


def _become(parent_pid: int, signal_name: str, program: Sequence[str]) -> None:
    """Ask for the signal and replace this process by the program."""
    library = ctypes.CDLL(None, use_errno=True)
    number = signal.Signals[f"SIG{signal_name}"]
    if library.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent_pid:  # It died before the request: no signal would ever come.
        sys.exit(_ABANDONED)
    os.execvp(program[0], list(program))  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2], sys.argv[4:])
