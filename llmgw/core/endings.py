"""How an engine ended, in words, and how long to wait before it is started again."""

from __future__ import annotations

from zlib import crc32

from llmgw.core import stimuli as s
from llmgw.core.memory import EnginePart, Policy, name_of
from llmgw.core.stimuli import Key
from llmgw.engines.base import KnownFailure
from llmgw.engines.registry import ENGINES


def explain(part: EnginePart, ended: s.EngineExited | None) -> KnownFailure | None:
    """Return the failure that the engine's last output speaks of, if its engine knows it."""
    chosen = ENGINES.get(part.assignment.entry.engine) if part.assignment else None
    return chosen.explain(ended.output) if chosen is not None and ended is not None else None


_SIGNALS = {
    4: " (SIGILL: it was built for another processor)",
    6: " (SIGABRT: it gave up by itself)",
    7: " (SIGBUS: memory or a mapped file went away)",
    9: " (SIGKILL: by somebody, or by the kernel when memory ran out)",
    11: " (SIGSEGV: it crashed)",
    15: " (SIGTERM: somebody asked it to end)",
}
"""What a signal says about an engine that nobody here stopped; numbers of Linux."""


def how_it_ended(fact: s.EngineExited) -> str:
    """Return the one line that says how the engine ended."""
    if fact.signal is not None:
        name = _SIGNALS.get(fact.signal, "")
        return f"the engine was ended by signal {fact.signal}{name}"
    if fact.exit_code is not None:
        return f"the engine exited with code {fact.exit_code}"
    return "the engine exited (its exit code went to an earlier agent)"


def backoff_seconds(policy: Policy, key: Key, part: EnginePart) -> float:
    """Return the pause before the next start: doubling up to the cap, and up to a tenth more.

    The jitter follows from the start itself, so that replay gives the same.
    """
    pause = policy.backoff_first_seconds * 2.0 ** min(part.failures - 1, 30)
    spread = crc32(f"{name_of(key)}/{part.generation}/{part.attempt}".encode()) % 1000 / 10_000
    return min(pause, policy.backoff_cap_seconds) * (1.0 + spread)
