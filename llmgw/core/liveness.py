"""Whether an engine that was ready still serves: it answers for its health, and gets on with work.

One whose health fails for as long as it is allowed is killed. One may also answer well and hang:
requests wait, and no token comes. So its own numbers are looked at every now and then
(`EngineAnswered.hangs`). If somebody waits for it and nothing moves for half of what it is allowed,
it is asked for one token, since numbers can be stale; who is well answers. It is killed only if
nothing moves and no answer comes until all of that time is over. Pure; `core.node` calls these.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.core import stimuli as s
from llmgw.core import stopping
from llmgw.core.memory import EnginePart, Policy
from llmgw.core.reporting import start_of
from llmgw.core.stimuli import Effect, Key

_LOOKS = 6
"""How often an engine is looked at in the time that it is allowed."""
_LEAST_LOOKS = 3
"""So many in a row must have shown that it hangs: the agent itself may have slept meanwhile."""


def missed(policy: Policy, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
    """Restart an engine whose health has failed for as long as its entry allows."""
    part.misses += 1
    part.missing_since = now if part.missing_since is None else part.missing_since
    allowed = part.assignment.entry.liveness_seconds if part.assignment else None
    if allowed is None:
        is_silent = part.misses >= policy.liveness_failures
    else:  # one failure alone may be the agent's own, which slept meanwhile
        is_silent = part.misses > 1 and now - part.missing_since >= allowed
    if is_silent:
        reason = f"its health endpoint failed {part.misses} times in a row"
        yield from stopping.kill(key, part, now, reason)


def pause_seconds(policy: Policy, part: EnginePart) -> float:
    """Return how long until an engine is asked again: several times in what it is allowed."""
    if part.phase != "ready" or part.assignment is None:
        return policy.probe_seconds
    allowed, usual = part.assignment.entry.liveness_seconds, policy.liveness_seconds
    return usual if allowed is None else max(policy.probe_seconds, min(usual, allowed / 4))


def is_look_due(policy: Policy, part: EnginePart, now: float) -> bool:
    """Return whether a ready engine's numbers are to be looked at with its next question."""
    if part.phase != "ready" or now < part.look_at:
        return False
    part.look_at = now + _allowed_seconds(policy, part) / _LOOKS
    return True


def looked(
    policy: Policy, key: Key, part: EnginePart, hangs: bool | None, now: float
) -> Iterator[Effect]:
    """Take what a look showed; `None`: there was none, or the engine does not tell."""
    if hangs is None or part.assignment is None:
        return
    if not hangs:
        _forget(part)
        return
    part.hung_since = now if part.hung_since is None else part.hung_since
    part.hung_looks += 1
    allowed, waited = _allowed_seconds(policy, part), now - part.hung_since
    if part.last_call is None and waited >= allowed / 2:
        part.last_call = "made"
        yield s.AskForToken(start_of(key, part), part.assignment, part.port, allowed)
    elif part.last_call == "made" and waited >= allowed and part.hung_looks >= _LEAST_LOOKS:
        reason = f"it hung: its health endpoint answered, and no token came for {waited:.0f} s"
        yield from stopping.kill(key, part, now, reason)


def token_answered(part: EnginePart, status: int | None) -> None:
    """Take the answer to the question for one token: none, the token, or a refusal.

    Who refuses it (without a key, or because the model writes no text) is never found to hang.
    """
    if status is not None and 200 <= status < 300:
        _forget(part)
    elif status is not None:
        part.last_call = "refused"


def begin(part: EnginePart, now: float) -> None:
    """Look anew: the engine is another one, or another agent looked at it."""
    part.look_at = now
    _forget(part)


def _forget(part: EnginePart) -> None:
    part.hung_since, part.hung_looks, part.last_call = None, 0, None


def _allowed_seconds(policy: Policy, part: EnginePart) -> float:
    asked = part.assignment.entry.liveness_seconds if part.assignment is not None else None
    return policy.hung_seconds if asked is None else asked
