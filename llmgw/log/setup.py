"""What llmgw keeps on a NATS server: stream names, their settings, and the JetStream API.

Design documents speak of LOG and TELEMETRY; on a server the names carry the cluster, since one
server can hold several: `LLMGW_<cluster>_LOG`, `LLMGW_<cluster>_TELEMETRY`, and the key-value
bucket `LLMGW_<cluster>` (stream `KV_LLMGW_<cluster>`) for leases.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from llmgw.errors import LlmgwError, UsageError
from llmgw.log.session import NoAnswer, NoResponders, Session

T = TypeVar("T")

API_TIMEOUT_SECONDS = 2.0
MAX_MESSAGE_BYTES = 1024 * 1024 + 64 * 1024
DUPLICATE_WINDOW_SECONDS = 120
TELEMETRY_AGE_SECONDS = 15 * 60
TELEMETRY_BYTES = 64 * 1024 * 1024

PARKED = "llmgw.parked"
"""Among a stream's metadata: somebody is letting go of its beginning (`llmgw.log.cutting`)."""

STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
_NAME_IN_USE = 10058
_NOT_ENABLED = {10039, 10076}
_QUESTIONS = ("STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.INFO.", "CONSUMER.CREATE.")
"""What may be asked twice, the making of a consumer too: the second finds the first one's."""
_SECOND_NS = 1_000_000_000
_LOG_NAME = re.compile(r"LLMGW_(.+)_LOG")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,63}")


class ApiError(NoAnswer):
    """JetStream answered with an error. `code` is its `err_code`."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} (JetStream error {code})")
        self.code = code


class _ErrorBody(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Reply(msgspec.Struct):
    error: _ErrorBody | None = None


class StreamConfig(msgspec.Struct):
    """The settings of an existing stream that llmgw depends on."""

    subjects: list[str] = []
    storage: str = ""
    max_age: int = 0
    max_msgs: int = -1
    deny_delete: bool = False
    deny_purge: bool = False
    allow_atomic: bool = False
    metadata: dict[str, str] = {}


class State(msgspec.Struct):
    """What a stream holds."""

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamInfo(msgspec.Struct):
    """A stream as the server describes it."""

    config: StreamConfig
    created: str
    state: State


class Names:
    """The names of one cluster's streams and subjects."""

    def __init__(self, cluster: str) -> None:
        if not _TOKEN.fullmatch(cluster):
            raise UsageError(
                f"cluster name {cluster!r} is not valid: use 1 to 63 letters, digits, '_' or '-'"
            )
        self.cluster = cluster
        self.prefix = f"llmgw.v1.{cluster}."
        self.log = f"LLMGW_{cluster}_LOG"
        self.telemetry = f"LLMGW_{cluster}_TELEMETRY"
        self.bucket = f"LLMGW_{cluster}"
        self.leases = f"KV_{self.bucket}"

    def stream_of(self, subject: str) -> str:
        """Return the stream that holds a subject or subject filter."""
        if subject.startswith("$KV."):
            return self.leases
        return self.telemetry if subject.startswith(f"{self.prefix}telemetry.") else self.log

    def configurations(self, replicas: int) -> list[dict[str, Any]]:
        """Return the settings of every stream, ready for `STREAM.CREATE`."""
        common = {"num_replicas": replicas, "allow_direct": True}
        return [
            {
                **common,
                "name": self.log,
                "description": "llmgw: every fact, decision and command; kept for ever",
                "subjects": [f"{self.prefix}event.>", f"{self.prefix}command.>"],
                "storage": "file",
                "retention": "limits",
                # Should an operator set a limit, new messages are refused, never old ones lost.
                "discard": "new",
                "deny_delete": True,
                "deny_purge": True,
                "duplicate_window": DUPLICATE_WINDOW_SECONDS * _SECOND_NS,
                "max_msg_size": MAX_MESSAGE_BYTES,
                "allow_atomic": True,
            },
            {
                **common,
                "name": self.telemetry,
                "description": "llmgw: samples, for display; nothing is decided on them",
                "subjects": [f"{self.prefix}telemetry.>"],
                # In memory: samples are worthless after a restart, and on disk each would be
                # flushed like a fact (`sync_interval` holds for the whole server).
                "storage": "memory",
                "discard": "old",
                "max_age": TELEMETRY_AGE_SECONDS * _SECOND_NS,
                "max_bytes": TELEMETRY_BYTES,
                "duplicate_window": _SECOND_NS,
            },
            {
                **common,
                "name": self.leases,
                "description": "llmgw: who leads",
                "subjects": [f"$KV.{self.bucket}.>"],
                "storage": "file",
                "discard": "new",
                "max_msgs_per_subject": 1,
                "deny_delete": True,
                "allow_rollup_hdrs": True,
                "duplicate_window": DUPLICATE_WINDOW_SECONDS * _SECOND_NS,
            },
        ]


async def api(
    session: Session,
    subject: str,
    body: object,
    reply: type[T],
    patience_seconds: float = API_TIMEOUT_SECONDS,
) -> T:
    """Ask the JetStream API under `$JS.API.` and return the decoded reply, or raise `ApiError`."""
    payload = b"" if body is None else msgspec.json.encode(body)
    again = subject.startswith(_QUESTIONS)
    message = await session.request(f"$JS.API.{subject}", payload, patience_seconds, again=again)
    try:
        if error := msgspec.json.decode(message.data, type=_Reply).error:
            raise ApiError(error.err_code, error.description)
        return msgspec.json.decode(message.data, type=reply)
    except msgspec.DecodeError as failure:
        raise NoAnswer(f"the answer on $JS.API.{subject} is not understood") from failure


async def stream_info(session: Session, stream: str) -> StreamInfo:
    """Return what the server says of a stream. A missing one is `NoResponders`."""
    try:
        return await api(session, f"STREAM.INFO.{stream}", None, StreamInfo)
    except ApiError as failure:
        if failure.code == STREAM_NOT_FOUND:
            raise NoResponders(f"there is no stream {stream}") from failure
        raise


class _StreamNames(msgspec.Struct):
    streams: list[str] | None = None


async def set_up(session: Session, names: Names, replicas: int, *, found: bool = False) -> None:
    """Create what is missing and check what is there. Doing it again changes nothing.

    With `found` the cluster must be there: nobody makes one by looking at it under a wrong name.
    Raises `LlmgwError` when it is not, when the server has no JetStream, or when a stream is not
    as llmgw needs it.
    """
    for configuration in names.configurations(replicas):
        stream = configuration["name"]
        try:
            info = await _find(session, stream)
            if info is None:
                if found and stream == names.log:
                    raise await _no_cluster(session, names)
                info = await _create(session, stream, configuration)
        except ApiError as failure:
            if failure.code in _NOT_ENABLED:
                raise _no_jetstream(session) from failure
            raise
        except NoResponders as failure:
            # A server that is just starting would also answer so; but it does not listen yet.
            raise _no_jetstream(session) from failure
        if PARKED in info.config.metadata:
            from llmgw.log import cutting  # it asks through this module

            await cutting.mend(session, stream)
        else:
            _check(stream, info.config, configuration, session)


async def _find(session: Session, stream: str) -> StreamInfo | None:
    """Look before anything is made: a client that may only read must be able to connect."""
    try:
        return await api(session, f"STREAM.INFO.{stream}", None, StreamInfo)
    except ApiError as failure:
        if failure.code != STREAM_NOT_FOUND:
            raise
    return None


async def _create(session: Session, stream: str, configuration: dict[str, Any]) -> StreamInfo:
    try:
        return await api(session, f"STREAM.CREATE.{stream}", configuration, StreamInfo)
    except ApiError as failure:
        if failure.code != _NAME_IN_USE:
            raise
        return await stream_info(session, stream)  # Another client was faster, and configured more.


async def _no_cluster(session: Session, names: Names) -> LlmgwError:
    others: list[str] = []
    with suppress(LlmgwError):  # not everybody may ask for that
        there = (await api(session, "STREAM.NAMES", None, _StreamNames)).streams or ()
        others = [m[1] for m in map(_LOG_NAME.fullmatch, there) if m is not None]
    return LlmgwError(
        f"there is no cluster {names.cluster} at {session.url}: "
        + (
            f"it has {', '.join(sorted(others))}. Name one with --cluster or LLMGW_CLUSTER"
            if others
            else "its first controller (`llmgw controller run`) or agent makes its log"
        )
    )


def _no_jetstream(session: Session) -> LlmgwError:
    return LlmgwError(
        f"the nats-server at {session.url} does not offer JetStream to this account: "
        "start it with -js and a store folder (-sd DIR), or enable it for the account"
    )


def _check(stream: str, has: StreamConfig, wants: dict[str, Any], session: Session) -> None:
    """Refuse a stream that would lose facts, or that belongs to something else."""
    wrong = []
    if sorted(has.subjects) != sorted(wants["subjects"]):
        wrong.append(f"holds {', '.join(has.subjects)} instead of {', '.join(wants['subjects'])}")
    if wants["storage"] == "file" and has.storage != "file":
        wrong.append(f"is stored in {has.storage} instead of a file")
    if wants.get("deny_purge") and (has.max_age or has.max_msgs > 0):
        wrong.append("drops old messages by age or number")
    if wants.get("deny_purge") and not (has.deny_delete and has.deny_purge):
        wrong.append("allows deleting or purging")
    if wrong:
        raise LlmgwError(
            f"the stream {stream} at {session.url} {'; '.join(wrong)}: "
            "correct it with the nats tool, or use another cluster name"
        )


def nanoseconds(timestamp: str) -> int:
    """Return an RFC 3339 time in UTC, as JetStream writes it, as nanoseconds since 1970."""
    whole, _, fraction = timestamp.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * _SECOND_NS + int(fraction.ljust(9, "0")[:9] or 0)
