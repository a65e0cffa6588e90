"""The replicas: where each part of each is, how it fares, and what to do when it does not."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.core.cluster import Cluster, Part, Replica
from llmgw.core.telemetry import NodeSample
from llmgw.core.values import Phase
from llmgw.views.shared import Row, as_time, labels, part_phase

_GIB = 1 << 30
_MIB = 1 << 20


class ReplicaRow(Row, frozen=True, kw_only=True):
    """One part of one replica.

    `address` is where it answers, as `host:port`, while it is believed to run. `since` is when it
    came into its phase, by the log's clock. `reason`, `meaning`, `advice` and `output` are of
    its last failure or stop; `retired` says why it is not wanted any more. Of an engine that is
    coming up `progress` is what it printed last, and `loaded_bytes` what it has read of files, at
    most the `weights_bytes` of its model where that is known: all only with a sample of its node.
    """

    replica: str
    part: int
    model: str
    generation: int
    node: str
    devices: tuple[str, ...]
    memory_bytes: int
    phase: Phase
    address: str | None = None
    pid: int | None = None
    attempts: int
    failures: int
    since: str | None = None
    retired: str | None = None
    reason: str | None = None
    meaning: str | None = None
    advice: str | None = None
    output: str | None = None
    progress: str | None = None
    loaded_bytes: int | None = None
    weights_bytes: int | None = None
    placed_because: tuple[str, ...] = ()


def replicas(state: Cluster, samples: Mapping[str, NodeSample] | None = None) -> list[ReplicaRow]:
    """Return every part of every replica, oldest first; `samples` maps nodes to their newest."""
    return [
        _row(state, replica, number, part, (samples or {}).get(part.node))
        for replica in sorted(state.replicas.values(), key=_age)
        for number, part in enumerate(replica.parts)
    ]


def how_far(line: str | None, loaded_bytes: int | None, weights_bytes: int | None) -> str | None:
    """Return in words how far an engine is with coming up; `None` where nothing is told of it."""
    if loaded_bytes is None:
        return line
    sizes = [size for size in (loaded_bytes, weights_bytes) if size is not None]
    unit, unit_bytes = ("GiB", _GIB) if sizes[-1] >= _GIB else ("MiB", _MIB)
    digits = 1 if unit_bytes == _GIB else 0
    read = f"read {' of '.join(f'{size / unit_bytes:.{digits}f}' for size in sizes)} {unit}"
    return f"{read}: {line}" if line else read


def _age(replica: Replica) -> tuple[int, str]:
    digits = replica.name[1:]
    return (int(digits) if digits.isdecimal() else 0, replica.name)


def _row(
    state: Cluster, replica: Replica, number: int, part: Part, sample: NodeSample | None
) -> ReplicaRow:
    phase = part_phase(state, part)
    line = loaded = weights = None
    if sample is not None and phase == "starting":
        name = f"{replica.name}/{number}"
        line, loaded = sample.progress.get(name), sample.loaded_bytes.get(name)
        weights = sample.weights_bytes.get(name)
    return ReplicaRow(
        replica=replica.name,
        part=number,
        model=replica.model,
        generation=replica.generation,
        node=part.node,
        devices=labels(part.devices),
        memory_bytes=part.memory_bytes,
        phase=phase,
        address=_address(part, phase),
        pid=part.pid,
        attempts=part.attempt,
        failures=part.failures,
        since=as_time(part.since_ns),
        retired=replica.retired,
        reason=part.reason,
        meaning=part.meaning,
        advice=part.advice,
        output=part.output or None,
        progress=line,
        loaded_bytes=loaded,
        weights_bytes=weights,
        placed_because=replica.reasons,
    )


def _address(part: Part, phase: Phase) -> str | None:
    if phase not in ("ready", "stopping", "lost") or part.address is None or part.port is None:
        return None
    host = f"[{part.address}]" if ":" in part.address else part.address
    return f"{host}:{part.port}"
