"""The signals that ask a process of llmgw to end, and how none is missed while it starts."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import anyio

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def hearing_signals() -> Iterator[AsyncIterator[signal.Signals]]:
    """Receive SIGTERM and SIGINT in the block, those included that came before it."""
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        yield signals
