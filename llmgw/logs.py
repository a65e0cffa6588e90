"""How llmgw's programs log: an event name with key-values, on stderr, never a secret.

Called once at the start of a command, before anything logs. Everything else says
`structlog.get_logger()` and knows nothing of levels, streams or renderers. The log that is the
truth (llmgw.log) has nothing to do with this one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from llmgw.masking import mask_value


def configure(
    level: str = "info", *, stream: TextIO | None = None, as_json: bool | None = None
) -> None:
    """Send structlog's and the standard library's logs to `stream`, `sys.stderr` unless told.

    Lines are JSON when the stream is not a terminal, or as `as_json` says. Libraries are heard from
    `warning` on, whatever the level, because some log each message that they carry.
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    out = cast("TextIO", _Unfailing(out))
    renderer = _renderer(as_json=not terminal if as_json is None else as_json, colors=terminal)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *_common_processors(), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(out, renderer)


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask secrets in every value of an event; a structlog processor."""
    return {name: mask_value(name, value) for name, value in event.items()}


class _Unfailing:
    """A stream to which writing does not fail: what cannot be written is lost.

    A full disk or a reader that went away is no reason to end: whoever logs is in the middle of
    keeping engines alive, and there is nobody left to tell.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _common_processors() -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # As text without local variables, which hold prompts and keys.
        structlog.processors.format_exc_info,
        mask_secrets,
    ]


def _renderer(*, as_json: bool, colors: bool) -> Processor:
    if as_json:
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors=colors and not os.environ.get("NO_COLOR"),
        exception_formatter=structlog.dev.plain_traceback,
    )


def _configure_libraries(out: TextIO, renderer: Processor) -> None:
    handler = logging.StreamHandler(out)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *_common_processors()],
            processors=[remove_meta, mask_secrets, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
