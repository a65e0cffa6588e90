"""How an engine ended, in words, and how long to wait before it is started again."""

from __future__ import annotations

from zlib import crc32

from llmgw.core import stimuli as s
from llmgw.core.memory import EnginePart, Policy, name_of
from llmgw.core.stimuli import Key
from llmgw.engines.base import KnownFailure, first_known
from llmgw.engines.registry import ENGINES

VERDICTS = (
    KnownFailure(
        r"is on device .*, which it was not given",
        "the engine uses a device that belongs to somebody else",
        "see whether its arguments or environment choose devices: llmgw does that by itself",
    ),
    KnownFailure(
        r"^Xid \d+ of its card, where nothing else is",
        "an error of the card's memory ended the engine's work, and the card goes on",
        "nothing if it is rare; if it comes again and again, have the card replaced",
    ),
    KnownFailure(
        r"^Xid \d+ of its card: |^its card is lost|^nothing starts on card ",
        "the card failed: nothing is started on it before it has been reset",
        "llmgw agent release, then nvidia-smi --gpu-reset, or reboot the machine",
    ),
    KnownFailure(
        r"^nothing starts while the hardware cannot be read",
        "the driver does not answer, and an engine would not find its device",
        "llmgw doctor says why; it is started once the driver answers again",
    ),
    KnownFailure(
        r"listens on port \d+, and not the engine",
        "another program took the port while the engine was starting",
        "stop that program, or give llmgw a range of ports that nobody else uses: LLMGW_PORT_RANGE",
    ),
)
"""What the agent found wrong with an engine, and ended it for; its own words say which."""

SILENCES = (
    KnownFailure(
        r"^not ready after ",
        "the engine did not come up in the time that its entry allows",
        "see its output; raise `start_seconds` in the catalog if the model is large or the disk "
        "slow",
    ),
    KnownFailure(
        r"^its health endpoint failed \d+ times in a row",
        "the engine hung: it ran and did not answer",
        "see its output; raise `liveness_seconds` in the catalog if it may be silent for longer",
    ),
    KnownFailure(
        r"^it hung: ",
        "the engine hung: requests waited, and it worked on none of them",
        "see its output; raise `liveness_seconds` in the catalog if one step of the model, or a "
        "long prompt, may take longer",
    ),
)
"""The same where the engine's last words, if they are known, say more."""


def explain(part: EnginePart, ended: s.EngineExited | None) -> KnownFailure | None:
    """Return what is known of the failure: by the agent's verdict, or by the last output."""
    verdict = part.fail_reason or ""
    chosen = ENGINES.get(part.assignment.entry.engine) if part.assignment else None
    said = chosen.explain(ended.output) if chosen is not None and ended is not None else None
    return first_known(VERDICTS, verdict) or said or first_known(SILENCES, verdict)


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
