"""`${NAME}` and `${file:PATH}` in an entry's environment: values that only the node knows.

A catalog travels through the log, which is kept for ever, so a secret must not stand in it. An
entry names a variable or a file instead (`{from_env: NAME}` and `{from_file: PATH}` in YAML); the
supervisor calls `resolve` with what the node has when it starts the engine, and what it returns
is never logged. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from llmgw.errors import EngineUnavailable

REFERENCE = re.compile(
    r"\$\{(?:file:(?P<path>/[^${}\x00-\x1f]{0,1023})|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}"
)


def from_env(name: str) -> str:
    """Return the reference to the variable `name` of the agent."""
    return f"${{{name}}}"


def from_file(path: str) -> str:
    """Return the reference to the contents of the file at `path` on the node."""
    return f"${{file:{path}}}"


def resolve(
    env: Mapping[str, str], environ: Mapping[str, str], read: Callable[[str], str]
) -> dict[str, str]:
    """Return `env` with every reference replaced by its value; other `$` stay.

    `read` returns the contents of a file, or raises `EngineUnavailable`. That is raised, too, with
    the name of every variable that the node does not have.
    """
    references = [match for value in env.values() for match in REFERENCE.finditer(value)]
    names = {match["name"] for match in references if match["name"]}
    missing = sorted(names - environ.keys())
    if missing:
        raise EngineUnavailable(
            f"the catalog refers to {', '.join(missing)}, which the agent's environment does not "
            "hold; set it for the agent (in the unit's EnvironmentFile) and restart the agent"
        )
    files = {path: read(path) for path in sorted({m["path"] for m in references if m["path"]})}

    def value_of(match: re.Match[str]) -> str:
        return environ[match["name"]] if match["name"] else files[match["path"]]

    return {key: REFERENCE.sub(value_of, value) for key, value in env.items()}
