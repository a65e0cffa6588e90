"""What a command needs before its work: the settings in force, and the log when it reads one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgw.log.jetstream import JetStreamLog
    from llmgw.settings import Resolved, Settings

CONNECT_SECONDS = 5.0


def resolved(config: Path | None = None, **flags: object) -> Resolved:
    """Return the settings in force, having said which variables name none."""
    from llmgw.settings import load

    found = load(flags, config=config)
    for remark in found.ignored:
        note(f"ignored: {remark}")
    return found


def service_settings(config: Path | None = None, **flags: object) -> Settings:
    """Return the settings of a command that stays, with its logs going to stderr."""
    from llmgw import logs

    settings = resolved(config, **flags).settings
    logs.configure(settings.log_level)
    return settings


@asynccontextmanager
async def open_log(settings: Settings, *, found: bool = True) -> AsyncIterator[JetStreamLog]:
    """Connect to the log, and let go of it at the end.

    Raises `LogUnreachable` when no server is known or none answers, and `LlmgwError` when the
    cluster is not there, unless it need not be `found`.
    """
    from llmgw import logs
    from llmgw.errors import LogUnreachable
    from llmgw.log.jetstream import connect
    from llmgw.settings import ENDPOINT_FILE, nats_url

    logs.configure("error", as_json=False)
    url = nats_url(settings)
    try:
        log = await connect(
            url,
            settings.cluster,
            name="llmgw ctl",
            deadline_seconds=CONNECT_SECONDS,
            replicas=settings.log_replicas,
            found=found,
        )
    except LogUnreachable as error:
        if settings.nats_url is not None:
            raise
        path = settings.data / ENDPOINT_FILE
        raise LogUnreachable(
            f"{error}\nThe address is from {path}; the `llmgw up` that wrote it no longer runs: "
            "start it again, or set LLMGW_NATS_URL"
        ) from error
    try:
        yield log
    finally:
        await log.close()


def note(text: str) -> None:
    """Say something that is no data: on stderr."""
    print(text, file=sys.stderr)
