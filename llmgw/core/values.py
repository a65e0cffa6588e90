"""Small shared values of the core: names, numbers on the wire, and the life of a replica part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader (JavaScript, SQLite) keeps exactly."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""A count, size or sequence: never negative, never more than JSON readers keep exactly."""

Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,63}$")]
"""A name that becomes one token of a subject: a cluster or a node."""

Text = Annotated[str, msgspec.Meta(max_length=65_536)]

Phase = Literal["assigned", "starting", "ready", "failed", "stopping", "stopped", "lost"]

# The life of one part of a replica. An agent reports its own parts in order, so a move that is
# not listed means that a report was lost or forged: the fold follows the fact and counts it.
# `failed` leads back to `starting` (the next attempt); `lost` is the controller's word for a
# silent node and leads to whatever the node reports when it is heard again.
NEXT_PHASES: Mapping[Phase, frozenset[Phase]] = {
    "assigned": frozenset({"starting", "failed", "stopped", "lost"}),
    "starting": frozenset({"ready", "failed", "stopped", "lost"}),
    "ready": frozenset({"failed", "stopped", "lost", "starting"}),
    "failed": frozenset({"starting", "failed", "stopped", "lost"}),
    "stopping": frozenset({"stopped", "failed", "lost"}),
    "stopped": frozenset({"starting", "lost"}),
    "lost": frozenset({"starting", "ready", "failed", "stopped", "lost"}),
}

Origin = Literal["node", "controller", "operator", "command"]
"""Who wrote a record: the first token after `event` in its subject, or a command."""
