"""`llmgw ctl archive` and `snapshot`: old records out of the log, and what stands for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.context import note, open_log, resolved
from llmgw.cli.ctl_source import ArchiveFile, Live, Where, opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import LlmgwError, UsageError

if TYPE_CHECKING:
    from llmgw.log.retention import Moved
    from llmgw.settings import Settings


def archive(
    file: Annotated[Path, typer.Argument(help="The archive to write.")],
    before: Annotated[
        str,
        typer.Option(metavar="TIME", help="What was stored before: a time, or '30 days ago'."),
    ],
    older: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="The archive that an earlier move wrote; the new one holds it, too.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it is there.")
    ] = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Move old records of the log into an archive, once a snapshot stands for them.

    Logs are kept for ever unless this is asked for. Replay goes through both with
    `--archive FILE --live`. Keep the file: a version of llmgw that cannot use the snapshots of
    this one needs it (see `ctl snapshot`). The user must be allowed to change the stream.
    """
    import asyncio

    from llmgw.cli.output import emit

    before_ns = _time(before)
    settings = resolved(nats_url=nats_url, cluster=cluster, data=data).settings
    moved = asyncio.run(_move(settings, file, before_ns, older, force))
    emit(_report(file, moved), output, lambda _, __: [_sentence(file, moved)])
    note(f"replay all of it: llmgw ctl replay --archive {file} --live")


def _time(text: str) -> int:
    from datetime import UTC, datetime

    from llmgw.cli.moments import parse_point

    found = parse_point(text, datetime.now(UTC), "--before")
    if isinstance(found, int):
        raise UsageError(f"--before {text!r:.60} is a sequence: a log is cut by time only")
    return int(found.timestamp() * 1_000_000) * 1000


async def _move(
    settings: Settings, file: Path, before_ns: int, older: Path | None, force: bool
) -> Moved:
    import time
    from contextlib import AsyncExitStack

    from llmgw.log.archive import check_free, open_archive
    from llmgw.log.retention import move

    check_free(file, force)
    async with AsyncExitStack() as stack:
        held = await stack.enter_async_context(open_archive(older)) if older is not None else None
        log = await stack.enter_async_context(open_log(settings))
        return await move(
            log,
            file,
            cluster=settings.cluster,
            before_ns=before_ns,
            now_ns=time.time_ns(),
            older=held,
            force=force,
        )


def _report(file: Path, moved: Moved) -> dict[str, Any]:
    return {
        "file": str(file),
        "records": moved.contents.records,
        "last": moved.contents.last,
        "snapshot": moved.snapshot,
        "log_first": moved.log_first,
    }


def _sentence(file: Path, moved: Moved) -> str:
    held = moved.contents
    return (
        f"{file} holds the records {held.first} to {held.last}; the log begins at sequence "
        f"{moved.log_first} now, and the snapshot of {moved.snapshot} stands for what was before"
    )


def snapshot(
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Fold the log here and keep the state on its server, for controllers to begin with.

    Leaders do so by themselves. It is needed after an upgrade that cannot use older snapshots,
    for a log that lost its beginning to an archive: then with `--archive FILE --live`.
    """
    import asyncio

    from llmgw.cli.output import emit

    asked = where(archive, nats_url, cluster, data, live=live)
    if asked.settings is None:
        raise UsageError("a snapshot is kept on the log's server: add --live")
    sequence = asyncio.run(_snapshot(asked))
    said = f"the server holds a snapshot of sequence {sequence} now"
    emit({"snapshot": sequence}, output, lambda _, __: [said])


async def _snapshot(asked: Where) -> int:
    from llmgw.log.snapshots import encode
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        bounds = await source.log.bounds()
        state = await fold_log(source.log, bounds.last)
        if state.needs_upgrade is not None:
            raise LlmgwError(f"the log holds {state.needs_upgrade}: upgrade llmgw first")
        if source.live is None or not state.sequence:
            raise LlmgwError(f"the log of cluster {source.cluster} holds nothing yet")
        await source.live.snapshots.save(state.sequence, encode(state, bounds.created_ns))
        return state.sequence
