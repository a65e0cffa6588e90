"""What every engine module provides, and the plain data that it works on.

An engine is data and pure functions: how to build its command line, how to read its health
answers, and which last words mean what. Starting, probing and stopping are the supervisor's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from llmgw.catalog.entries import Entry
from llmgw.errors import EngineUnavailable
from llmgw.hardware.types import Exact

Verdict = Literal["loading", "ready", "broken"]
"""What a health answer means. `loading`: keep waiting; `broken`: it answered, and wrongly."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A device that a replica was given. `card_index` is in PCI order; absent on the processor.

    `memory_total_bytes` lets an engine that sizes itself by a fraction of the device keep to
    what its entry asked for; absent, such an engine takes its own default.
    """

    uuid: str
    device_class: str
    card_index: Exact | None = None
    memory_total_bytes: Exact | None = None


class LaunchRequest(msgspec.Struct, frozen=True):
    """Everything that decides an engine's command line on one node.

    `program` is how this node runs the engine (usually one path; for an in-process server an
    interpreter and a module), found by the supervisor. Where a replica spans several nodes, `rank`
    is the number of this node's part and `leader` the `HOST:PORT` where all parts meet.
    """

    replica: str
    entry: Entry
    grants: tuple[Grant, ...]
    program: tuple[str, ...]
    host: str
    port: int
    rank: int = 0
    leader: str | None = None


class Launch(msgspec.Struct, frozen=True):
    """How to start an engine: an argument list (never a shell string) and what it needs set."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    health_path: str


class ProbeAnswer(msgspec.Struct, frozen=True):
    """One health probe: an HTTP status, or `None` when the connection was refused or timed out."""

    status: int | None


class KnownFailure(msgspec.Struct, frozen=True):
    """Last words of an engine and what they mean. `pattern` is a regular expression.

    `everywhere`: the same would happen on any other device, so that trying one is of no use.
    `starved`: the device had too little memory free, so that trying it again is of no use before
    it has more.
    """

    pattern: str
    meaning: str
    advice: str
    everywhere: bool = False
    starved: bool = False


class RequestCounts(msgspec.Struct, frozen=True):
    """Where an engine tells how many requests it has, and that it gets on with them.

    `metrics` are names to add up. With each step that the engine takes one of `moving` changes;
    numbers that requests change which wait or are given up are none of these.
    """

    path: str
    metrics: tuple[str, ...]
    moving: tuple[str, ...]

    def count(self, text: str) -> int | None:
        """Return the requests that an answer (Prometheus text) tells of; `None`: of none at all."""
        found = [float(value) for name in self.metrics for value in _values(name, text)]
        return round(sum(found)) if found else None

    def mark(self, text: str) -> tuple[str, ...]:
        """Return what is another tuple in every answer between which the engine took a step."""
        return tuple(value for name in self.moving for value in _values(name, text))


def _values(name: str, text: str) -> list[str]:
    return re.findall(rf"(?m)^{re.escape(name)}(?:\{{[^}}\n]*\}})?[ \t]+([0-9.eE+-]+)", text)


class InstanceSupport(msgspec.Struct, frozen=True):
    """Which versions of an engine open a MIG instance by its UUID, as far as that is known.

    `fails_through` is the newest version that was seen to fail, `why` what it does wrong. Without
    `always`, versions that were not seen to fail are not known to work either.
    """

    always: bool = False
    fails_through: tuple[int, ...] = ()
    why: str = ""

    def opens(self, version: tuple[int, ...] | None) -> bool | None:
        """Return whether `version` opens an instance, or `None` where that is not known."""
        if self.always:
            return True
        return False if version is not None and version <= self.fails_through else None


class Engine(Protocol):
    """One engine. Modules of this package hold exactly one instance each, named `ENGINE`."""

    name: str
    programs: tuple[str, ...]
    """Names to look for on PATH, in order. Empty: the entry brings its own command."""
    failures: tuple[KnownFailure, ...]
    reserved_args: Mapping[str, str]
    """Arguments that a catalog may not give, and why or what to write instead."""
    gpus_mean: Literal["tp", "pp"]
    """How the engine splits a model over several devices when an entry says only `gpus`."""
    spans_nodes: bool
    """Whether one replica can reach over several nodes."""
    tp_divides_heads: bool
    """Whether the model's attention heads must be shared evenly by `tp` devices."""
    takes_fraction: bool
    """Whether it takes a fraction of a device's memory as a setting of its own."""
    cache_dtypes: tuple[str, ...]
    """The types that its KV cache may have, in its own words; empty: it has no such setting."""
    splits_cache: bool
    """Whether keys and values of the KV cache may have different types."""
    cards_by: Literal["uuid", "index"]
    """How it reads whole cards from CUDA_VISIBLE_DEVICES (see `devices`)."""
    instances: InstanceSupport
    """Which of its versions open a MIG instance, which has no index."""
    names_model: bool
    """Whether /v1/models tells which model it serves: the entry's name, if it is the engine."""
    request_counts: RequestCounts | None
    """Where it tells how many requests it has, so that it can be stopped when it has none, and
    found out when it hangs. Who tells has `/v1/completions`, and takes its key as OpenAI does."""

    def launch(self, request: LaunchRequest) -> Launch:
        """Return the command line for `request`."""
        ...

    def judge(self, answer: ProbeAnswer, was_ready: bool) -> Verdict:
        """Return what a health answer means for an engine that was, or was not, ready before."""
        ...

    def explain(self, tail: str) -> KnownFailure | None:
        """Return the failure that the engine's last lines of output speak of, if it is known."""
        ...


def judge_status(
    answer: ProbeAnswer, was_ready: bool, loading: frozenset[int] = frozenset()
) -> Verdict:
    """Judge by status alone: 2xx is ready; silence is loading until it was ready once.

    `loading` are the statuses with which an engine says that it is not ready yet. After it was
    ready they mean that it broke, as does every other status at any time.
    """
    if answer.status is not None and 200 <= answer.status < 300:
        return "ready"
    if not was_ready and (answer.status is None or answer.status in loading):
        return "loading"
    return "broken"


def first_known(failures: Sequence[KnownFailure], tail: str) -> KnownFailure | None:
    """Return the first of `failures` whose pattern `tail` holds: put the telling ones first."""
    return next((known for known in failures if re.search(known.pattern, tail)), None)


def on_local_files(entry: Entry) -> bool:
    """Return whether the source is a path on the node rather than a repository's id."""
    return entry.source is not None and entry.source.startswith("/")


def hub_environment(entry: Entry) -> dict[str, str]:
    """Return variables that keep Hugging Face's libraries off the network for local files."""
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if on_local_files(entry) else {}


def memory_share(request: LaunchRequest) -> float | None:
    """Return the entry's memory as a share of the smallest device that was given, if known."""
    totals = [grant.memory_total_bytes for grant in request.grants]
    smallest = min((total for total in totals if total), default=None)
    return None if smallest is None else request.entry.memory_bytes / smallest


def flag_words(wanted: Mapping[str, str | int | None]) -> tuple[str, ...]:
    """Return `--flag value` pairs as one list of words, without the flags that have no value."""
    given = ((flag, str(value)) for flag, value in wanted.items() if value is not None)
    return tuple(word for pair in given for word in pair)


def meeting_point(request: LaunchRequest) -> tuple[str, str]:
    """Return host and port where the parts of a replica over several nodes meet.

    Raises `EngineUnavailable` when nobody said where that is.
    """
    host, colon, port = (request.leader or "").rpartition(":")
    if not colon:
        raise EngineUnavailable(
            f"{request.replica} spans {request.entry.nodes} nodes, and nobody told this one where "
            "its first part is: update llmgw on the controller"
        )
    return host, port


def secret_in_env(variable: str) -> str:
    """Return why a secret may not be an argument, and how to give it instead."""
    return (
        "a command line can be read by everybody on the node; "
        f"write `env: {{{variable}: {{from_env: {variable}}}}}` and set it for the agent"
    )
