"""A program of the operator's own, as an argument list with placeholders.

Pure. `{host}`, `{port}` and `{model}` (the entry's name) are replaced inside each element of
`command` and `args`; every other brace stays as written, so that JSON may be passed. No shell
ever sees the words. The same values are in LLMGW_HOST, LLMGW_PORT and LLMGW_MODEL. A replica
over several nodes also has `{part}`, `{parts}` and `{leader}`: which part this is, of how many, and
the `HOST:PORT` on which part 0 shall listen for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from llmgw.engines.base import (
    InstanceSupport,
    KnownFailure,
    Launch,
    LaunchRequest,
    ProbeAnswer,
    RequestCounts,
    Verdict,
    first_known,
    judge_status,
)
from llmgw.engines.devices import device_environment
from llmgw.engines.failures import CUDA_FAILURES, HOST_FAILURES

PORT_PLACEHOLDER = "{port}"

_LOADING_STATUSES = frozenset(range(500, 600))
"""An unknown program may answer any server error while it loads; 4xx is a wrong `health`."""


class Command:
    """See the module. One instance, `ENGINE`."""

    name = "command"
    programs: tuple[str, ...] = ()
    failures: tuple[KnownFailure, ...] = (*CUDA_FAILURES, *HOST_FAILURES)
    reserved_args: Mapping[str, str] = {}
    gpus_mean: Literal["tp", "pp"] = "tp"
    spans_nodes = True
    tp_divides_heads = False
    takes_fraction = False
    cache_dtypes: tuple[str, ...] = ()
    splits_cache = False
    cards_by: Literal["uuid", "index"] = "uuid"
    instances = InstanceSupport()
    names_model = False
    request_counts: RequestCounts | None = None

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the entry's own command with the placeholders filled in."""
        entry = request.entry
        values = {"host": request.host, "port": str(request.port), "model": entry.name}
        if request.leader is not None:
            parts = {"part": str(request.rank), "parts": str(entry.nodes)}
            values |= {**parts, "leader": request.leader}
        own = {f"LLMGW_{name.upper()}": value for name, value in values.items()}
        devices = device_environment(request.grants, by=self.cards_by, vulkan=True)
        return Launch(
            argv=tuple(_fill(word, values) for word in (*entry.command, *entry.args)),
            env=own | entry.env | devices,
            health_path=entry.health_path or "/health",
        )

    def judge(self, answer: ProbeAnswer, was_ready: bool) -> Verdict:
        """2xx is ready; refused or a server error is loading until it was ready once."""
        return judge_status(answer, was_ready, loading=_LOADING_STATUSES)

    def explain(self, tail: str) -> KnownFailure | None:
        """Match the last lines of output against what any engine may say."""
        return first_known(self.failures, tail)


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


ENGINE = Command()
