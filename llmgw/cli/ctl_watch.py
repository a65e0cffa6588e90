"""`llmgw ctl replay --watch`: a view of the log at any sequence, stepped through with the keyboard.

`Player` is what is looked at and what a key does to it; `Screen` the terminal. Neither writes
anything to the log. Stepping back is quick, because the timeline keeps checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from llmgw.cli.ctl_source import Span, Where, opened
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.records import Record
    from llmgw.log.timeline import Timeline

PLAY_SECONDS = 0.2
FAR = 100
HELP = (
    "n → next   p ← previous   N P a hundred   space plays   g G first, last   "
    "NUMBER⏎ goes there   v next view   q quits"
)

_KEYS = {
    "\x1b[C": "n",
    "\x1bOC": "n",
    "l": "n",
    "j": "n",
    "\x1b[B": "n",
    "\x1b[D": "p",
    "\x1bOD": "p",
    "h": "p",
    "k": "p",
    "\x1b[A": "p",
    "\x1b[6~": "N",
    "\x1b[5~": "P",
    "\x1b[H": "g",
    "\x1b[F": "G",
    "\t": "v",
    "\x03": "q",
    "\x1b": "q",
    "\x04": "q",
    "\n": "\r",
    "\b": "\x7f",
}
_LONGEST_NUMBER = 18


def watch(asked: Where, view: str, span: Span) -> None:
    """Show a view in the terminal until the user leaves.

    Raises `UsageError` where there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "--watch needs a terminal for its keys and its screen: without one, use --to SEQ, or "
            "--diff A B"
        )
    asyncio.run(_watch(asked, view, span))


async def _watch(asked: Where, view: str, span: Span) -> None:
    from llmgw.log.timeline import open_timeline
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        line = await open_timeline(source.log)
        start = line.last
        if span != Span():
            start = (await fold_log(source.log, span.until, until_ns=span.until_ns)).sequence
        player = Player(line, source.cluster, view, start)
        with Screen() as screen:
            await player.run(screen)


class Player:
    """Where in the log one is, and what is shown of it."""

    def __init__(self, line: Timeline, cluster: str, view: str, at: int) -> None:
        self._line = line
        self._cluster = cluster
        self._view = view
        self._typed = ""
        self._playing = False
        self._left = False
        self.at = at

    async def run(self, screen: Screen) -> None:
        """Show and obey until the user leaves."""
        while not self._left:
            screen.show(await self._header(), await self._rows(), self._footer())
            key = await screen.key(PLAY_SECONDS if self._playing else None)
            if key is None:
                await self._step(1)
                self._playing = self._playing and self.at < self._line.last
            else:
                await self.press(key)

    async def press(self, key: str) -> None:
        """Do what a key says."""
        key = _KEYS.get(key, key)
        steps = {"n": 1, "p": -1, "N": FAR, "P": -FAR}
        if key.isdecimal() and key.isascii():
            self._typed = (self._typed + key)[:_LONGEST_NUMBER]
            return
        typed, self._typed = self._typed, self._typed[:-1] if key == "\x7f" else ""
        if key == "\r" and typed:
            await self._go(int(typed))
        elif key in steps:
            self._playing = False
            await self._step(steps[key])
        elif key in ("g", "G"):
            await self._go(self._line.first if key == "g" else None)
        elif key == " ":
            self._playing = not self._playing
        elif key == "v":
            self._view = _after(self._view)
        elif key == "q":
            self._left = True

    async def _step(self, by: int) -> None:
        await self._go(self.at + by)

    async def _go(self, sequence: int | None) -> None:
        """Go to a sequence, or as near as the log has it; `None` is its end."""
        if sequence is None or sequence > self._line.last:
            await self._line.refresh()
        last = self._line.last
        self.at = last if sequence is None else min(max(sequence, self._line.first), last)

    async def _header(self) -> list[str]:
        record = await self._line.record(self.at)
        state = "playing" if self._playing else "paused"
        where = f"{self._view} after sequence {self.at} of {self._line.last} ({state})"
        return [where, _told(record) if record is not None else "before the first record"]

    async def _rows(self) -> list[str]:
        from llmgw.cli.tables import view_lines
        from llmgw.views import shown

        state = await self._line.at(self.at)
        found: Any = shown(self._view, state, self._cluster)
        return [*view_lines(found, False)] or [f"no {self._view} then"]

    def _footer(self) -> str:
        return f"go to {self._typed}_   ⏎ goes there" if self._typed else HELP


def _after(view: str) -> str:
    from llmgw.views import VIEWS

    names = [*VIEWS]
    return names[(names.index(view) + 1) % len(names)]


def _told(record: Record) -> str:
    from llmgw.views import events

    (row,) = events([record])
    who = f"to {row.node}" if row.origin == "command" else row.node or row.origin
    return f"{row.time or ''}  {who}  {row.type}: {row.summary}"


class Screen:
    """The terminal while it is watched: its other page, keys as they are pressed."""

    def __init__(self) -> None:
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._before: list[Any] = []
        self._colours = "NO_COLOR" not in os.environ

    def __enter__(self) -> Self:
        import termios

        descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)
        self._write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        self._write("\x1b[?25h\x1b[?1049l")
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)

    async def key(self, patience_seconds: float | None) -> str | None:
        """Return the next key, or `None` when none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                return await self._keys.get()
        return None

    def show(self, header: Sequence[str], rows: Sequence[str], footer: str) -> None:
        """Draw everything anew, cut to the size of the terminal."""
        from llmgw.masking import visible

        width, height = shutil.get_terminal_size()
        room = max(height - len(header) - 2, 1)
        hidden = len(rows) - room
        body = [*rows] if hidden <= 0 else [*rows[: room - 1], f"… {hidden + 1} lines more"]
        body += [""] * (room - len(body))
        top = [self._marked(_cut(visible(line), width), n == 0) for n, line in enumerate(header)]
        lines = [*top, "", *(_cut(line, width) for line in body)]
        bottom = self._marked(_cut(footer, width - 1), True)
        self._write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + bottom + "\x1b[J")

    def _marked(self, text: str, marked: bool) -> str:
        return f"\x1b[7m{text}\x1b[0m" if marked and self._colours else text

    def _read(self, descriptor: int) -> None:
        pressed = os.read(descriptor, 1024)
        if not pressed:
            pressed = b"q"  # the terminal went away
        for key in _keys(pressed.decode(errors="ignore")):
            self._keys.put_nowait(key)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _keys(pressed: str) -> Iterator[str]:
    """Yield keys one by one; a key that sends several characters is one."""
    several = sorted((key for key in _KEYS if len(key) > 1), key=len, reverse=True)
    while pressed:
        key = next((key for key in several if pressed.startswith(key)), pressed[0])
        pressed = pressed[len(key) :]
        yield key


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
