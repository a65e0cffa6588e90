"""How a changed entry replaces its replicas, and when that pauses: questions to the state.

Pure and without effects. `decide` asks before it retires what is outdated, and the views say what
a rollout waits for; both read it off the same facts, so neither keeps a note of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.core.cluster import Cluster, Model, Replica

FAILURES_THAT_PAUSE = 3


def is_ready(replica: Replica) -> bool:
    """Return whether all parts of a replica serve."""
    return all(part.phase == "ready" for part in replica.parts)


def paused(state: Cluster, model: Model, replicas: Iterable[Replica]) -> str | None:
    """Return why no more outdated replicas of a model are retired, or `None` if nothing holds it.

    `replicas` are those of the model. It goes on by itself once the failing one is ready, and is
    over once the operator applies an entry that works.
    """
    outdated, failing = 0, None
    for replica in replicas:
        if replica.retired is not None:
            continue
        if replica.entry != model.one:
            outdated += 1
        elif failing is None and _keeps_failing(state, replica):
            failing = replica
    if failing is None or not outdated:
        return None
    worst = max(failing.parts, key=lambda part: part.failures)
    return (
        f"rollout paused: {failing.name} of the changed entry failed {worst.failures} times"
        f" ({worst.reason or 'no reason given'}); {outdated} of the earlier entry left as they are"
    )


def _keeps_failing(state: Cluster, replica: Replica) -> bool:
    if is_ready(replica) or any(state.nodes[part.node].lost for part in replica.parts):
        return False
    return any(part.failures >= FAILURES_THAT_PAUSE for part in replica.parts)
