"""Commands that are imported when they are run: `llmgw --help` and `llmgw version` start at once.

Building every command for a list of names took as long as all the rest of a start. The list
below says what there is; a test holds it to what the commands say of themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command


class Lazy(NamedTuple):
    """Where a command, or a group of them, is found, and its line in the list."""

    module: str
    attribute: str
    summary: str


def _lazy(name: str, summary: str, attribute: str = "app") -> Lazy:
    return Lazy(f"llmgw.cli.{name}", attribute, summary)


COMMANDS = {
    "up": _lazy("up", "Run NATS, a controller and an agent on this machine until Ctrl-C.", "up"),
    "doctor": _lazy(
        "doctor", "Check driver, cards, MIG, NVLink, engines, NATS, clock and disk.", "doctor"
    ),
    "plan": _lazy("plan", "Show how models could run on what there is.", "plan"),
    "agent": _lazy("agent", "Run engines on this machine. Without a command: run."),
    "controller": _lazy("controller", "Decide what runs where. Without a command: run."),
    "ctl": _lazy("ctl", "Ask the log, and ask for things through it."),
    "catalog": _lazy("catalog", "Validate catalogs."),
    "schemas": _lazy("schemas", "Describe what the log holds, as JSON Schema and AsyncAPI."),
    "config": _lazy("config", "Look at the settings."),
}


class _Commands(MutableMapping[str, Any]):
    """Those that are there already, and those that are imported when one is asked for."""

    def __init__(self, there: MutableMapping[str, Any]) -> None:
        self._there = there

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - click's commands have no type here
        if name not in self._there:
            self._there[name] = _built(name, COMMANDS[name])
        return self._there[name]

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401
        self._there[name] = command

    def __delitem__(self, name: str) -> None:
        del self._there[name]

    def __iter__(self) -> Iterator[str]:
        yield from COMMANDS
        yield from (name for name in self._there if name not in COMMANDS)

    def __len__(self) -> int:
        return sum(1 for _ in self)  # making a list would ask for the length


def _built(name: str, lazy: Lazy) -> Any:  # noqa: ANN401
    found = getattr(import_module(lazy.module), lazy.attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(found)
        found = alone
    command = get_command(found)
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """The program itself: its commands are listed without being imported."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - passed on as they come
        super().__init__(**settings)
        self.commands = _Commands(self.commands)

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """Return the names alone."""
        return [*self.commands]

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ANN401
        """Write the list of commands from what is known without them."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name, limit)) for name in names])

    def _summary(self, ctx: typer.Context, name: str, limit: int) -> str:
        lazy = COMMANDS.get(name)
        if lazy is not None:
            return lazy.summary
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit)
