"""The signals that a process of llmgw hears, and how none is missed while it starts.

Whoever starts such a process blocks them in it (`blocked`); they wait until they can be heard.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import anyio

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEARD_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Have what is started in the block begin with the signals blocked that llmgw hears."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD_SIGNALS)


@contextlib.contextmanager
def hearing_signals() -> Iterator[AsyncIterator[signal.Signals]]:
    """Receive SIGTERM and SIGINT in the block, those included that came before it."""
    with _hearing(*STOP_SIGNALS) as signals:
        yield signals


@contextlib.contextmanager
def hearing_hangups() -> Iterator[AsyncIterator[signal.Signals]]:
    """Receive SIGHUP in the block, one included that came before it."""
    with _hearing(signal.SIGHUP) as hangups:
        yield hangups


@contextlib.contextmanager
def _hearing(*numbers: signal.Signals) -> Iterator[AsyncIterator[signal.Signals]]:
    with anyio.open_signal_receiver(*numbers) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        yield signals
