"""The one place where errors become words, for every program of llmgw.

An error that a person can cause is one message on stderr and an exit code, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper

from llmgw.errors import LlmgwError


def run_in_words(program: Callable[[], object]) -> None:
    """Run a program; end the process with the exit code of an error that is meant to be read."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        program()
    except (LlmgwError, BaseExceptionGroup) as error:
        known = [*_known(error)]
        if not known:
            raise
        for one in known:
            print(one, file=sys.stderr)
        sys.exit(known[0].exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _known(error: BaseException) -> Iterator[LlmgwError]:
    """Yield the errors that are meant to be read; none at all if any other is among them."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    if isinstance(error, BaseExceptionGroup) and error.split(LlmgwError)[1] is not None:
        return
    for one in inner:
        if isinstance(one, LlmgwError):
            yield one
        else:
            yield from _known(one)
