"""`llmgw ctl export` and `import`: a log into one file, and back into an empty log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.context import note, open_log, resolved
from llmgw.cli.ctl_source import ArchiveFile, Live, Span, Where, opened, parse_span, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.log.archive import Contents
    from llmgw.log.base import Message
    from llmgw.log.restore import Imported
    from llmgw.replay import Readable
    from llmgw.settings import Settings


def export(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEQ|TIME",
            help="The first record: a sequence or a time. The state before it goes along, so that "
            "states still follow; with --scrub it does not, and the file is for reading.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME", help="The last record: a sequence or a time.", show_default=False
        ),
    ] = None,
    scrub: Annotated[
        bool,
        typer.Option(
            "--scrub",
            help="Replace names, addresses and arguments, and remove free text, so that the file "
            "can be attached to a bug report.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it is there.")
    ] = False,
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Write the log to one file, with checksums, that `replay --archive` reads without a server.

    It is a SQLite file. It appears whole or not at all. It holds everything that the records hold:
    names, addresses, arguments of engines and the last output of those that failed. With --scrub
    it holds pseudonyms instead, the same for the same thing throughout, and still folds and
    verifies. With --archive another archive is copied.
    """
    import asyncio

    from llmgw.cli.output import emit

    span = parse_span(from_, to)
    asked = where(archive, nats_url, cluster, data, live=live)
    held = asyncio.run(_export(asked, file, span, scrub, force))
    emit(_report(file, held), output, lambda _, __: [_sentence(file, held)])


async def _export(asked: Where, file: Path, span: Span, scrub: bool, force: bool) -> Contents:
    import time

    from msgspec.structs import replace

    from llmgw import replay
    from llmgw.errors import LlmgwError
    from llmgw.log.archive import check_free, write_archive

    check_free(file, force)
    async with opened(asked, whole=False) as source:
        bounds = await source.log.bounds()
        if bounds.last == 0:
            raise LlmgwError(
                f"the log of cluster {source.cluster} holds nothing to export: "
                "name another cluster with --cluster"
            )
        if span.until is None and span.until_ns is None:
            span = span._replace(until=bounds.last)  # what is read twice shall be the same
        batches: AsyncIterator[Sequence[Message]] = replay.span(source.log, **span._asdict())
        state = await _state_before(source.log, span, scrub)
        begin = state.sequence if state is not None else 0
        if scrub:
            from llmgw.log.scrub import CLUSTER, scrubbed

            batches = scrubbed(batches, lambda: replay.span(source.log, **span._asdict()))
        held = source.held
        written = await write_archive(
            file,
            batches,
            cluster=CLUSTER if scrub else source.cluster,
            log=bounds if held is None else replace(bounds, first=held.log_first),
            now_ns=time.time_ns(),
            force=force,
            scrubbed=scrub or (held is not None and held.scrubbed),
            state=state,
        )
    if state is None or begin > written.last:
        note("no state of before goes along, so the file is for reading: nothing can be folded")
    elif begin >= written.first:
        note(f"the log lost its beginning: states follow from sequence {begin} on")
    return written


async def _state_before(log: Readable, span: Span, scrub: bool) -> Cluster | None:
    """Return the state before the first record of a span, or the first later one that there is.

    There is none for a scrubbed file, since the names in it are not replaced, nor where the log
    lost its beginning or is damaged there, nor where this version cannot read all of it.
    """
    from llmgw import replay
    from llmgw.core.cluster import Cluster
    from llmgw.errors import UsageError

    bounds = await log.bounds()
    first = max(bounds.first, span.start or 1)
    if span.start_ns is not None:
        first = await replay.first_stored(log, span.start_ns, first)
    if first == 1 or first > bounds.last:
        return Cluster()  # in the second case there is nothing to export
    if scrub:
        return None
    state = None
    try:
        state = await replay.fold_log(log, first - 1)
    except UsageError:
        with suppress(UsageError):
            if bounds.first > 1:
                state = await replay.foundation(log, bounds)
    return state if state is not None and state.needs_upgrade is None else None


def _report(file: Path, held: Contents) -> dict[str, Any]:
    import msgspec

    from llmgw.log.archive import FORMAT
    from llmgw.views.shared import as_time

    return {
        "file": str(file),
        "format": FORMAT,
        "size_bytes": file.stat().st_size,
        **{
            name.removesuffix("_ns"): as_time(value) if name.endswith("_ns") else value
            for name, value in msgspec.structs.asdict(held).items()
            if name not in ("first_ns", "last_ns")
        },
        "first_time": as_time(held.first_ns),
        "last_time": as_time(held.last_ns),
    }


def _sentence(file: Path, held: Contents) -> str:
    from llmgw.views.shared import as_time

    return (
        f"{file} holds the records {held.first} to {held.last} of cluster {held.cluster}, "
        f"{as_time(held.first_ns)} to {as_time(held.last_ns)} "
        f"({file.stat().st_size / 1024:,.0f} KiB)"
    )


def import_(
    file: Annotated[Path, typer.Argument(help="An archive that `ctl export` wrote.")],
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Put an archive into the empty log of a cluster of the same name.

    Sequences, order and payloads stay as they were, so views show the same and --verify decides
    the same. Times do not: the log stores each record anew, so what a view or `--to TIME` says
    about when is the time of the import. Keep the archive for that. An import that was interrupted
    goes on when it is repeated; a log that holds anything else is refused. Stop controllers and
    agents first. Where no server is known, one runs on the data folder for as long as it takes:
    `llmgw up` goes on from there.
    """
    import asyncio

    from llmgw.cli.output import emit

    settings = resolved(nats_url=nats_url, cluster=cluster, data=data).settings
    done = asyncio.run(_import(settings, file))
    report = {"file": str(file), "cluster": settings.cluster, **done._asdict()}
    emit(report, output, lambda _, __: [_imported(file, settings.cluster, done)])
    if done.records > done.already:
        note("their times are now those of this import")


async def _import(settings: Settings, file: Path) -> Imported:
    from llmgw.log.archive import open_archive
    from llmgw.log.restore import import_archive

    async with (
        open_archive(file) as archive,
        _server_for(settings) as reached,
        open_log(reached, found=False) as log,
    ):
        return await import_archive(archive, log, settings.cluster)


@asynccontextmanager
async def _server_for(settings: Settings) -> AsyncIterator[Settings]:
    """Give settings with a server: the one that is known, or one on the data folder meanwhile."""
    from msgspec.structs import replace

    from llmgw import logs
    from llmgw.log.embedded import embedded_server
    from llmgw.settings import ENDPOINT_FILE

    if settings.nats_url is not None or (settings.data / ENDPOINT_FILE).exists():
        yield settings
        return
    logs.configure("error", as_json=False)
    async with embedded_server(settings.data) as server:
        note(f"a log server runs on {settings.data} meanwhile")
        yield replace(settings, nats_url=server.url)


def _imported(file: Path, cluster: str, done: Imported) -> str:
    if done.records == done.already:
        return f"the log of cluster {cluster} holds all {done.records} records of {file} already"
    before = f"; {done.already} of them were there before" if done.already else ""
    return f"the log of cluster {cluster} now holds the {done.records} records of {file}{before}"
