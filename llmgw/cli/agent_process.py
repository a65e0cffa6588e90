"""The agent as a process of its own, without the command line that started it.

What reads flags and prints tables is a third of an agent's memory, and is needed for a moment. So
`llmgw agent run` reads them and then becomes this program, which keeps its process id. Settings go
through a pipe: they may hold a password, which arguments would show and engines would inherit.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from llmgw.cli.words import run_in_words
from llmgw.settings import Settings
from llmgw.stopping import HEARD_SIGNALS


class Orders(msgspec.Struct, frozen=True):
    """What an agent is started with; see `run_agent`."""

    settings: Settings
    stop_engines: bool = False
    capture: Path | None = None


def become(orders: Orders) -> NoReturn:
    """Run the agent in place of this process. Signals wait until it can hear them."""
    reading, writing = os.pipe()
    os.write(writing, msgspec.json.encode(orders, enc_hook=str))
    os.set_inheritable(reading, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    # Modules come from where they came from here, and not from the working directory as well.
    paths = () if sys.path[0] in ("", str(Path.cwd())) else ("-P",)
    words = [sys.executable, *paths, "-m", __name__, str(reading), *sys.argv[1:]]
    os.execv(sys.executable, words)  # noqa: S606 - an argument list, no shell


def run(descriptor: int) -> None:
    """Run the agent with the orders that can be read from a descriptor, until it leaves."""
    with os.fdopen(descriptor, "rb") as file:
        orders = msgspec.json.decode(
            file.read(), type=Orders, dec_hook=lambda kind, text: kind(text)
        )
    # For errors in colour structlog loads it where it is there, and with it as much as the agent.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    import asyncio

    from llmgw import logs
    from llmgw.agent import run_agent

    logs.configure(orders.settings.log_level)
    asyncio.run(
        run_agent(orders.settings, stop_engines=orders.stop_engines, capture=orders.capture)
    )


if __name__ == "__main__":
    run_in_words(lambda: run(int(sys.argv[1])))
