"""Following the telemetry stream: the newest of each subject, then what comes, losses allowed.

Unlike `reader.follow` this promises nothing about completeness: samples are for display.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog

from llmgw.log.base import Message
from llmgw.log.connection import Connection
from llmgw.log.reader import pulling
from llmgw.log.session import NoAnswer

_PATIENCE_SECONDS = 10.0
_REOPEN_PAUSE_SECONDS = 0.1

_log = structlog.get_logger(__name__)


async def follow(
    connection: Connection, stream: str, subjects: list[str]
) -> AsyncIterator[list[Message]]:
    """Yield batches of samples under the subject filters, for ever."""
    config = {"deliver_policy": "last_per_subject", "filter_subjects": subjects}
    while True:
        session = await connection.session()
        try:
            async with pulling(session, stream, config, strict_from=None) as pull:
                while True:
                    if batch := await pull.take(_PATIENCE_SECONDS):
                        yield batch
        except NoAnswer as failure:
            _log.debug("sample reader opens again", reason=str(failure))
        await asyncio.sleep(_REOPEN_PAUSE_SECONDS)
