"""How a log lets go of its beginning, though its server denies deleting and purging.

What a server still does is to keep no more records than a limit on their number. But with such a
limit in force each record that is appended pushes one out. So it is set only while nothing can be
appended: the stream is *parked* on a subject that nobody writes to, until what was under way is
stored and what is too old is gone.

Whoever does this may be killed between any two steps, and nothing is lost by it. A parked log takes
no records: their writers keep them and try again, and each attempt looks whether whoever parked it
is still connected (`mend`, called by `setup`). If not, it gets its subjects and limits back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import structlog
from nats.aio.msg import Msg

from llmgw.errors import LlmgwError, LogUnreachable
from llmgw.log import setup
from llmgw.log.connection import Connection
from llmgw.log.session import NoAnswer, NoResponders, Session

_ALONE_SECONDS = 2.0
"""So old is a mark before anybody is asked for: word of who is connected has to get around."""

_STEP_SECONDS = 5.0
_DROP_SECONDS = 120.0
_UNPARK_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_NEVER = 2**53

_log = structlog.get_logger(__name__)


class NotCut(LlmgwError):
    """Nothing was let go of; the message says why."""


class _Mark(msgspec.Struct, frozen=True):
    """Who parked a stream, and how it was before. `since` is of the server's clock, RFC 3339."""

    inbox: str
    since: str
    subjects: list[str]
    discard: str
    max_msgs: int


class _Replica(msgspec.Struct):
    current: bool = False
    lag: int = 0


class _Group(msgspec.Struct):
    replicas: list[_Replica] | None = None


class _Found(msgspec.Struct):
    """A stream as the server describes it, with all of its settings."""

    config: dict[str, Any]
    state: setup.State
    ts: str = ""
    cluster: _Group = msgspec.field(default_factory=_Group)


class _Refusal(msgspec.Struct):
    error: dict[str, Any] = {}


async def cut(connection: Connection, stream: str, last: int, deadline_seconds: float) -> None:
    """Have a stream let go of all records up to `last`. Some must be after it.

    All is asked on one connection: what was asked before that was lost can then not come late.
    Raises `NotCut` when nothing was let go of, and `LogUnreachable` when that is not known.
    """

    async def look(session: Session) -> tuple[Session, _Found]:
        return session, await _look(session, stream)

    session, found = await connection.until_answered(look, deadline_seconds)
    if setup.PARKED in found.config.get("metadata", {}):
        raise NotCut(f"the stream {stream} is being cut by somebody else: try again later")
    if not all(one.current for one in found.cluster.replicas or ()):
        raise NotCut(f"not all servers of the stream {stream} are there, or they are behind")
    async with _reachable(session) as inbox:
        try:
            parked = await _park(session, stream, found, inbox)
            await _settled(session, stream)
            await _drop(session, stream, parked, last)
        finally:
            await _unpark(connection, session, stream, inbox)


@asynccontextmanager
async def _reachable(session: Session) -> AsyncIterator[str]:
    """Answer on a subject of our own for as long as this connection lives, and no longer."""

    async def answer(message: Msg) -> None:
        with suppress(NoAnswer):
            await session.send(message.reply, b"")

    inbox = session.new_inbox()
    subscription = await session.subscribe(inbox, answer)
    try:
        yield inbox
    finally:
        await session.unsubscribe(subscription)


async def _park(session: Session, stream: str, found: _Found, inbox: str) -> dict[str, Any]:
    """Take the stream's subjects away, and return its settings."""
    was = found.config
    mark = _Mark(inbox, found.ts, was["subjects"], was["discard"], was["max_msgs"])
    about = {**was.get("metadata", {}), setup.PARKED: msgspec.json.encode(mark).decode()}
    parked = {**was, "subjects": [_parking(was["subjects"])], "metadata": about}
    try:
        await _update(session, stream, parked, _STEP_SECONDS)
    except LlmgwError as error:
        raise NotCut(f"the stream {stream} cannot be changed: {error}") from error
    return parked


def _parking(subjects: list[str]) -> str:
    """Return a subject within those of a log, that nothing is ever written to."""
    within = next(one for one in subjects if one.endswith(".event.>"))
    return f"{within.removesuffix('>')}operator.log.parked"


async def _settled(session: Session, stream: str) -> None:
    """Wait until everything is stored, on all servers, that was on its way before the parking."""
    try:
        async with asyncio.timeout(_STEP_SECONDS):
            for at_rest in (_is_drained, _is_current):
                await _until(partial(at_rest, session, stream))
    except (TimeoutError, LlmgwError) as error:
        why = str(error) or "not all of its servers are there, or they are behind"
        raise NotCut(f"the stream {stream} did not come to rest: {why}. Try again") from error


async def _is_drained(session: Session, stream: str) -> bool:
    """Ask for an append that is refused: that answer comes after all that was appended before."""
    found = await _look(session, stream)
    (subject,) = found.config["subjects"]
    never = {"Nats-Expected-Last-Sequence": str(_NEVER)}
    try:
        message = await session.request(subject, b"", _STEP_SECONDS, never)
    except NoResponders:
        return False  # word of the new subject has not got here
    return bool(msgspec.json.decode(message.data, type=_Refusal).error)


async def _is_current(session: Session, stream: str) -> bool:
    found = await _look(session, stream)
    return all(one.current and not one.lag for one in found.cluster.replicas or ())


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await true():
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _drop(session: Session, stream: str, parked: dict[str, Any], last: int) -> None:
    """Have the server keep the records after `last` alone."""
    try:
        state = (await _look(session, stream)).state
    except NoAnswer as error:
        raise NotCut(str(error)) from error
    kept = state.last_seq - last
    if kept < 1 or state.messages != state.last_seq - state.first_seq + 1:
        raise NotCut(
            f"the stream {stream} holds {state.messages} records from {state.first_seq} to "
            f"{state.last_seq}: some are missing, or none would be left after {last}"
        )
    limited = {**parked, "discard": "old", "max_msgs": kept}
    try:
        await _update(session, stream, limited, _DROP_SECONDS)
    except setup.ApiError as error:
        raise NotCut(f"the stream {stream} cannot be limited: {error}") from error
    first = (await _look(session, stream)).state.first_seq
    if first != last + 1:
        raise LlmgwError(f"the stream {stream} begins at {first} now, and not at {last + 1}")


async def _unpark(connection: Connection, first: Session, stream: str, inbox: str) -> None:
    """Give the stream back what was taken, whatever else happens.

    If the connection was lost, then not before the server knows: what was asked on it could come.
    """

    async def restore(session: Session) -> None:
        found = await _look(session, stream)
        mark = _mark(found)
        if mark is None or mark.inbox != inbox:
            return
        if session is not first and await _is_at_work(session, mark, found.ts):
            raise NoAnswer("its server holds a lost connection for alive")
        await _update(session, stream, _restored(found.config, mark), _STEP_SECONDS)

    restoring = asyncio.ensure_future(connection.until_answered(restore, _UNPARK_SECONDS))
    try:
        await asyncio.shield(restoring)
    except asyncio.CancelledError:
        await restoring
        raise
    except LlmgwError as error:
        raise LogUnreachable(
            f"the stream {stream} could not be given its subjects back ({error}). Until it is, "
            "nothing can be appended to it, and nothing is lost: whoever writes next mends it"
        ) from error


async def mend(session: Session, stream: str) -> None:
    """Give a parked stream back what was taken, if whoever parked it is gone.

    Never fails: who may not change a stream leaves that to others.
    """
    with suppress(LlmgwError):
        found = await _look(session, stream)
        mark = _mark(found)
        if mark is not None and not await _is_at_work(session, mark, found.ts):
            await _update(session, stream, _restored(found.config, mark), _STEP_SECONDS)
            _log.warning("log_mended", stream=stream, why="who was cutting it is gone")


async def _is_at_work(session: Session, mark: _Mark, now: str) -> bool:
    """Return whether whoever left this mark may still ask for something.

    A program that stands still counts as there until the server has closed its connection: only
    then nothing can come of it any more.
    """
    age_ns = setup.nanoseconds(now) - setup.nanoseconds(mark.since)
    if age_ns < _ALONE_SECONDS * 1_000_000_000:
        return True
    try:
        await session.request(mark.inbox, b"", _STEP_SECONDS)
    except NoResponders:
        return False
    return True


def _mark(found: _Found) -> _Mark | None:
    text = found.config.get("metadata", {}).get(setup.PARKED)
    try:
        return msgspec.json.decode(text, type=_Mark) if text is not None else None
    except msgspec.MsgspecError:
        return None


def _restored(config: dict[str, Any], mark: _Mark) -> dict[str, Any]:
    about = {name: value for name, value in config["metadata"].items() if name != setup.PARKED}
    was = {"subjects": mark.subjects, "discard": mark.discard, "max_msgs": mark.max_msgs}
    return {**config, **was, "metadata": about}


async def _look(session: Session, stream: str) -> _Found:
    return await setup.api(session, f"STREAM.INFO.{stream}", None, _Found)


async def _update(
    session: Session, stream: str, config: dict[str, Any], patience_seconds: float
) -> None:
    await setup.api(session, f"STREAM.UPDATE.{stream}", config, _Found, patience_seconds)
