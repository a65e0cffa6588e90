"""Asks the log server, without creating anything on it. `checks` calls it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from llmgw.errors import LlmgwError, LogUnreachable, UsageError
from llmgw.log import setup
from llmgw.log.session import NoResponders, Session, check_url, masked
from llmgw.log.setup import Names
from llmgw.settings import ENDPOINT_FILE, Settings, nats_url
from llmgw.views.findings import Finding
from llmgw.views.surroundings import clock_finding

CONNECT_SECONDS = 5.0


class _Timed(msgspec.Struct):
    ts: str | None = None


async def look(settings: Settings) -> list[Finding]:
    """Return whether the log can be reached and is as llmgw needs it, and how the clocks differ."""
    try:
        url = nats_url(settings)
    except LogUnreachable as error:
        if (settings.data / ENDPOINT_FILE).exists():
            return [Finding("NATS", "fault", str(error), "start `llmgw up` again")]
        do = "llmgw up starts a server of its own; for a cluster set LLMGW_NATS_URL"
        return [Finding("NATS", "unknown", "no server is configured on this machine", do)]
    try:
        check_url(url)
    except UsageError as error:
        return [_unreachable(settings, url, error)]
    session = Session(CONNECT_SECONDS)
    try:
        await session.open(url, "llmgw doctor", CONNECT_SECONDS)
        version = ".".join(map(str, session.version))
        reached = Finding("NATS", "ok", f"nats-server {version} at {session.url}")
        return [reached, *await _streams(session, Names(settings.cluster))]
    except LlmgwError as error:
        return [_unreachable(settings, url, error)]
    finally:
        await session.close()


def _unreachable(settings: Settings, url: str, error: LlmgwError) -> Finding:
    detail = f"{masked(url)} cannot be used: {error}"
    if settings.nats_url is None:
        return Finding("NATS", "warning", f"{detail}; `llmgw up` no longer runs", "llmgw up")
    do = "start nats-server there with JetStream (-js), or correct LLMGW_NATS_URL"
    return Finding("NATS", "fault", detail, do)


async def _streams(session: Session, names: Names) -> list[Finding]:
    try:
        await setup.api(session, "INFO", None, dict[str, Any])
    except LlmgwError as error:
        do = "start nats-server with -js and a store folder (-sd DIR), or enable it for the account"
        return [Finding("JetStream", "fault", f"it is not offered to this account: {error}", do)]
    wanted = [configuration["name"] for configuration in names.configurations(1)]
    there = [name for name in wanted if await _exists(session, name)]
    missing = sorted({*wanted} - {*there})
    if missing:
        detail = f"on; not there yet: {', '.join(missing)}, which the first agent makes"
        return [Finding("JetStream", "ok", detail), await _clock(session, there)]
    try:
        # With every stream there it makes none, and only compares.
        await setup.set_up(session, names, 1)
    except LlmgwError as error:
        do = f"nats stream info {names.log}, then nats stream edit; or another LLMGW_CLUSTER"
        return [Finding("JetStream", "fault", str(error), do), await _clock(session, there)]
    detail = f"on; the {len(wanted)} streams are as llmgw needs them"
    return [Finding("JetStream", "ok", detail), await _clock(session, there)]


async def _exists(session: Session, stream: str) -> bool:
    try:
        await setup.stream_info(session, stream)
    except NoResponders:
        return False
    return True


async def _clock(session: Session, streams: list[str]) -> Finding:
    """The difference to the server's clock: it says its time when asked about a stream."""
    if not streams:
        return clock_finding(None, 0)
    began, asked_ns = time.monotonic(), time.time_ns()
    answer = await setup.api(session, f"STREAM.INFO.{streams[0]}", None, _Timed)
    took = time.monotonic() - began
    if answer.ts is None:
        return clock_finding(None, 0)
    middle = asked_ns / 1e9 + took / 2
    return clock_finding(middle - setup.nanoseconds(answer.ts) / 1e9, took / 2)
