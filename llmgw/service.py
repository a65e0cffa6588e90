"""The views as questions and answers over NATS: what `ctl VIEW -o json` prints, without folding.

A controller folds the log anyway, leading or standing by; this lets a tool ask it. Every answer
names the sequence that it was folded up to, and a question may demand one. Making views takes at
most half of the controller's time, however much is asked. Nothing is decided or written here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from llmgw import __version__, views, wire
from llmgw.core.cluster import Cluster
from llmgw.core.telemetry import NodeSample
from llmgw.core.values import Token, Whole
from llmgw.log.endpoints import (
    BAD_REQUEST,
    TOO_LATE,
    Answer,
    Endpoint,
    Handler,
    Refusal,
    Service,
)
from llmgw.log.jetstream import JetStreamLog
from llmgw.replay import live_samples
from llmgw.settings import Settings

NAME = "llmgw-controller"
PATIENCE_SECONDS = 5.0
SAMPLES_SECONDS = 1.0

OF_NODES = {"nodes": "name", "devices": "node", "replicas": "node"}
"""Views that are lists, and which field of a row names its node."""

Folded = Callable[[int], Awaitable[None]]
"""Waits until the log has been folded up to a sequence."""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be asked with a view: how new it must be, and only what is on one node."""

    sequence: Whole = 0
    node: Token | None = None


class _Rendered(msgspec.Struct, frozen=True):
    sequence: int
    samples_at: float
    payload: bytes


async def serve_views(
    log: JetStreamLog, settings: Settings, state: Cluster, until_folded: Folded
) -> None:
    """Answer with views of `state`, which somebody else folds, until cancelled."""
    await log.serve(_Desk(log, settings, state, until_folded).service())


class _Desk:
    """Answers questions about one state, one view at a time."""

    def __init__(
        self, log: JetStreamLog, settings: Settings, state: Cluster, until_folded: Folded
    ) -> None:
        self._log = log
        self._settings = settings
        self._state = state
        self._until_folded = until_folded
        self._one_view = asyncio.Lock()
        self._rendered: dict[str, _Rendered] = {}
        self._samples: dict[str, NodeSample] = {}
        self._samples_at = 0.0

    def service(self) -> Service:
        """Return the description of what is answered here."""
        cluster = self._settings.cluster
        endpoints = [
            Endpoint(
                view,
                wire.view_subject(cluster, view),
                self._handler(view),
                {"schema": f"urn:llmgw:schema:view.{view}:1"},
            )
            for view in views.VIEWS
        ]
        return Service(
            NAME,
            __version__,
            "Views of an llmgw cluster, as `llmgw ctl` prints them with -o json",
            tuple(endpoints),
            {"cluster": cluster, "node": self._settings.node},
        )

    def _handler(self, view: str) -> Handler:
        async def answer(payload: bytes) -> Answer | Refusal:
            return await self._answer(view, payload)

        return answer

    async def _answer(self, view: str, payload: bytes) -> Answer | Refusal:
        question = _read(payload)
        if isinstance(question, Refusal):
            return question
        if question.node is not None and view not in OF_NODES:
            return Refusal(BAD_REQUEST, f"{view} is not of one node; {', '.join(OF_NODES)} are")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._until_folded(question.sequence)
        except TimeoutError:
            return Refusal(
                TOO_LATE,
                f"the log is folded up to sequence {self._state.sequence}, and {question.sequence}"
                f" did not come within {PATIENCE_SECONDS:g} s: ask again, or for less",
            )
        async with self._one_view:
            rendered = await self._render(view, question.node)
        return Answer(rendered.payload, {wire.SEQUENCE_HEADER: str(rendered.sequence)})

    async def _render(self, view: str, node: str | None) -> _Rendered:
        """Return the view as of now: as it was made before where nothing has changed since."""
        if view == "devices":
            await self._measure()
        sequence = self._state.sequence
        known = self._rendered.get(view) if node is None else None
        if known and (known.sequence, known.samples_at) == (sequence, self._samples_at):
            return known
        begun = time.perf_counter()
        shown = views.shown(view, self._state, self._settings.cluster, self._samples)
        if node is not None:
            shown = [row for row in shown if getattr(row, OF_NODES[view]) == node]
        made = _Rendered(sequence, self._samples_at, msgspec.json.encode(shown))
        if node is None:
            self._rendered[view] = made
        await asyncio.sleep(time.perf_counter() - begun)  # as much for folding and deciding
        return made

    async def _measure(self) -> None:
        """Read the newest samples, unless that was just done."""
        if time.monotonic() - self._samples_at > SAMPLES_SECONDS:
            seconds = self._settings.sample_seconds
            cluster = self._settings.cluster
            self._samples = await live_samples(self._log, cluster, self._state, seconds)
            self._samples_at = time.monotonic()


def _read(payload: bytes) -> Question | Refusal:
    if len(payload) > wire.SHALLOW_BYTES:
        return Refusal(BAD_REQUEST, f"a question has {wire.SHALLOW_BYTES} bytes at most")
    try:
        return msgspec.json.decode(payload or b"{}", type=Question)
    except (msgspec.MsgspecError, ValueError) as error:
        return Refusal(
            BAD_REQUEST, f'{error}: ask with nothing, or with {{"sequence": 1234, "node": "n1"}}'
        )
