"""Telemetry: what is said again and again, and never decided on: samples and heartbeats.

Samples are many and kept for a short while. Heartbeats are kept nowhere: they say that somebody is
there now. That of a node goes on when its driver hangs; when none comes, the controller notes
`node.lost`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from llmgw.core.values import Text, Token, Whole
from llmgw.hardware.types import Readings


class NodeSample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One measurement of a node. `readings` is absent when measuring failed; `error` says why.

    `progress` is the last line that engines printed which are coming up, by part: `r7/0`;
    `loaded_bytes` what their processes have read or mapped of files, at most the `weights_bytes`
    that their models' files have, where that is known.
    """

    wire: ClassVar[str] = "node.sample"
    version: ClassVar[int] = 1

    node: Token
    session: str
    number: Whole
    readings: Readings | None = None
    error: str | None = None
    progress: dict[str, str] = {}
    loaded_bytes: dict[str, Whole] = {}
    weights_bytes: dict[str, Whole] = {}


class NodeHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """An agent lives and reaches the server. In no stream: whoever listens now hears it.

    It says nothing of the hardware; `number` rises within a `session`, one life of the agent.
    """

    wire: ClassVar[str] = "node.heartbeat"
    version: ClassVar[int] = 1

    node: Token
    session: str
    number: Whole


class ControllerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The leading controller lives and reaches the server. In no stream, as a node's.

    Who waits for the lead hears by it that the leader is there while the log is not, and when it
    last renewed its lease: `lease_sequence` is the place of that record in the stream of leases.
    """

    wire: ClassVar[str] = "controller.heartbeat"
    version: ClassVar[int] = 1

    holder: Text
    term: Whole
    lease_sequence: Whole
    number: Whole
