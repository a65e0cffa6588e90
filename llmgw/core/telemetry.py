"""Telemetry: what an agent measures again and again. High volume, short retention, no decisions.

A sample is also the node's sign of life: its absence is what the controller notes as `node.lost`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from llmgw.core.values import Token, Whole
from llmgw.hardware.types import Readings


class NodeSample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One measurement of a node. `readings` is absent when measuring failed; `error` says why.

    `progress` is the last line that engines printed which are coming up, by part: `r7/0`.
    """

    wire: ClassVar[str] = "node.sample"
    version: ClassVar[int] = 1

    node: Token
    session: str
    number: Whole
    readings: Readings | None = None
    error: str | None = None
    progress: dict[str, str] = {}
