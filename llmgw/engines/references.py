"""`${NAME}` in an entry's environment: a value that only the node knows.

A catalog travels through the log, which is kept for ever, so a secret must not stand in it. An
entry names a variable instead; the supervisor calls `resolve` with the agent's environment when
it starts the engine, and what it returns is never logged. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmgw.errors import EngineUnavailable

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def resolve(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with every `${NAME}` replaced by `environ[NAME]`; other `$` stay.

    Raises `EngineUnavailable` naming every variable that the node does not have.
    """
    names = {name for value in env.values() for name in REFERENCE.findall(value)}
    missing = sorted(names - environ.keys())
    if missing:
        raise EngineUnavailable(
            f"the catalog refers to {', '.join(missing)}, which the agent's environment does not "
            "hold; set it for the agent (in the unit's EnvironmentFile) and restart the agent"
        )
    return {
        key: REFERENCE.sub(lambda match: environ[match[1]], value) for key, value in env.items()
    }
