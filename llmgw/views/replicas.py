"""The replicas: where each part of each is, how it fares, and what to do when it does not."""

from __future__ import annotations

from llmgw.core.cluster import Cluster, Part, Replica
from llmgw.core.values import Phase
from llmgw.views.shared import Row, as_time, labels, part_phase


class ReplicaRow(Row, frozen=True, kw_only=True):
    """One part of one replica.

    `address` is where it answers, as `host:port`, while it is believed to run. `since` is when it
    came into its phase, by the log's clock. `reason`, `meaning`, `advice` and `output` are of
    its last failure or stop; `retired` says why it is not wanted any more.
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
    placed_because: tuple[str, ...] = ()


def replicas(state: Cluster) -> list[ReplicaRow]:
    """Return every part of every replica, oldest replica first."""
    return [
        _row(state, replica, number, part)
        for replica in sorted(state.replicas.values(), key=_age)
        for number, part in enumerate(replica.parts)
    ]


def _age(replica: Replica) -> tuple[int, str]:
    digits = replica.name[1:]
    return (int(digits) if digits.isdecimal() else 0, replica.name)


def _row(state: Cluster, replica: Replica, number: int, part: Part) -> ReplicaRow:
    phase = part_phase(state, part)
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
        placed_because=replica.reasons,
    )


def _address(part: Part, phase: Phase) -> str | None:
    if phase not in ("ready", "stopping", "lost") or part.address is None or part.port is None:
        return None
    host = f"[{part.address}]" if ":" in part.address else part.address
    return f"{host}:{part.port}"
