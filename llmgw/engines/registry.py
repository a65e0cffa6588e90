"""Every engine by its name. A new engine is one module and one line here.

Pure. The catalog's validation, the agent's brain and the supervisor look engines up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llmgw.engines import command, llama_cpp, sglang, vllm
from llmgw.engines.base import Engine
from llmgw.errors import EngineUnavailable

_ALL: tuple[Engine, ...] = (llama_cpp.ENGINE, vllm.ENGINE, sglang.ENGINE, command.ENGINE)

ENGINES: Mapping[str, Engine] = MappingProxyType({engine.name: engine for engine in _ALL})


def engine(name: str) -> Engine:
    """Return the engine called `name`.

    Raises `EngineUnavailable` for a name that this version does not know, as in a log that a
    newer llmgw wrote.
    """
    try:
        return ENGINES[name]
    except KeyError:
        known = ", ".join(ENGINES)
        raise EngineUnavailable(
            f"no engine {name!r} in this version of llmgw, which knows {known}; "
            "upgrade llmgw on this node"
        ) from None
