"""What a request of the operator's would lead to: the controller's own fold and decide, on a copy.

Nothing is written anywhere. Deciding goes on until nothing more is decided, on the assumption that
every agent does what it is told and every engine that is started becomes ready; how long that
takes is not known here. `ctl apply --dry-run`, its sisters and `llmgw plan FILE` print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Node, Part, Replica
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.records import Body, Record
from llmgw.core.values import Origin
from llmgw.views.shared import Row, labels
from llmgw.views.summaries import counted

Action = Literal["keep", "start", "stop", "move", "restart", "cannot"]
"""`move` and `restart` end one replica, or one life of it, for another: elsewhere, or where it
was. `cannot`: replicas that find no place."""

_COMING = frozenset({"assigned", "starting", "stopped", "lost"})
"""Phases of a part that an agent, told of it, makes ready. One that failed may fail again."""

MOST_ROUNDS = 2_000
"""Of deciding and carrying out. A forecast that needs more says that it has not settled."""


class Place(Row, frozen=True, kw_only=True):
    """Devices of one node, as people see them."""

    node: str
    devices: tuple[str, ...]


class Step(Row, frozen=True, kw_only=True):
    """What becomes of one replica, or of all that find no place (`count` of them).

    `replica` is the one that runs in the end, or the one that stops; `instead_of` the one that it
    follows. `before` and `after` are where. `good` is false where a replica finds no place that
    is missing because of what was asked, and not since before.
    """

    action: Action
    model: str
    replica: str | None = None
    instead_of: str | None = None
    count: int = 1
    before: tuple[Place, ...] = ()
    after: tuple[Place, ...] = ()
    reasons: tuple[str, ...] = ()
    good: bool = True


class Forecast(Row, frozen=True, kw_only=True):
    """All steps, by model. `rejected` says why a catalog would not be accepted; then none."""

    steps: tuple[Step, ...] = ()
    rejected: tuple[str, ...] = ()
    settled: bool = True

    @property
    def changes(self) -> tuple[Step, ...]:
        """The steps that change something."""
        return tuple(step for step in self.steps if step.action != "keep")


def forecast(state: Cluster, *asked: e.Event) -> Forecast:
    """Return what would come of an operator's requests, were they made one after another now.

    A catalog that is waiting for an answer already is passed over.
    """
    copy = _copy(state)
    before = _Picture(copy)
    _take(copy, "controller", e.ControllerElected(term=copy.term + 1, holder="forecast"))
    for body in asked:
        _take(copy, "operator", body)
    retired: dict[str, str] = {}
    for _ in range(MOST_ROUNDS):
        decided = decide(copy)
        for intention in decided:
            if isinstance(intention, e.CatalogRejected):
                return Forecast(rejected=intention.reasons)
            if isinstance(intention, e.ReplicaRetired):
                retired[intention.replica] = intention.reason
            _follow(copy, intention)
        if not _carry_out(copy) and not decided:
            return Forecast(steps=tuple(_steps(before, _Picture(copy), retired)))
    return Forecast(steps=tuple(_steps(before, _Picture(copy), retired)), settled=False)


# --- the copy and who acts on it ---------------------------------------------------------------


def _copy(state: Cluster) -> Cluster:
    return msgspec.json.decode(msgspec.json.encode(state), type=Cluster)


def _take(state: Cluster, origin: Origin, body: Body, node: str = "") -> None:
    number = state.sequence + 1
    apply(state, Record(number, state.time_ns, origin, node, "forecast", number, body))


def _follow(state: Cluster, intention: e.Decision | SetAssignments) -> None:
    if isinstance(intention, SetAssignments):
        _take(state, "command", intention, intention.node)
    else:
        _take(state, "controller", intention)


def _carry_out(state: Cluster) -> int:
    """Have all agents do what they were told, and return how many events they wrote."""
    coming: dict[str, list[tuple[Replica, int, Part]]] = {}
    for replica in state.replicas.values():
        for number, part in enumerate(replica.parts):
            if replica.retired is None and part.phase in _COMING:
                coming.setdefault(part.node, []).append((replica, number, part))
    written = 0
    for node in state.nodes.values():
        if node.started and not node.lost and node.session:
            for event in [*_events(node, coming.get(node.name, ()))]:
                _write(state, node, event)
                written += 1
    return written


def _write(state: Cluster, node: Node, event: e.Event) -> None:
    number = node.sessions[node.session] + 1
    sequence = state.sequence + 1
    apply(state, Record(sequence, state.time_ns, "node", node.name, node.session, number, event))


def _events(node: Node, coming: Iterable[tuple[Replica, int, Part]]) -> Iterator[e.Event]:
    """Yield what an agent writes of the parts that it was told of, and that it is done."""
    if node.commanded == node.revision:
        for replica, number, part in coming:
            yield from _start(replica, number, part, node.address)
    if node.ended < node.commanded:
        yield e.CommandCompleted(revision=node.commanded, term=node.commanded_term)


def _start(replica: Replica, number: int, part: Part, address: str) -> Iterator[e.PartEvent]:
    if part.phase != "starting":
        yield e.ReplicaStarting(
            replica=replica.name,
            part=number,
            generation=replica.generation,
            port=part.port or 1,
            devices=part.devices,
        )
    yield e.ReplicaBecameReady(
        replica=replica.name,
        part=number,
        generation=replica.generation,
        address=address,
        port=part.port or 1,
        pid=1,
        seconds=0,
    )


# --- from two states to steps ------------------------------------------------------------------


class _Picture:
    """The replicas of a state that are wanted, by name, and what is missing of each model."""

    def __init__(self, state: Cluster) -> None:
        wanted = {name: r for name, r in state.replicas.items() if r.retired is None}
        self.places = {name: _places(replica) for name, replica in wanted.items()}
        self.model = {name: replica.model for name, replica in wanted.items()}
        self.generation = {name: replica.generation for name, replica in wanted.items()}
        self.reasons = {name: replica.reasons for name, replica in wanted.items()}
        self.missing = {name: model.missing for name, model in state.models.items()}
        self.refusals = {name: dict(model.refusals) for name, model in state.models.items()}


def _places(replica: Replica) -> tuple[Place, ...]:
    return tuple(Place(node=p.node, devices=labels(p.devices)) for p in replica.parts)


def _steps(before: _Picture, after: _Picture, retired: dict[str, str]) -> Iterator[Step]:
    was, now = _by_model(before), _by_model(after)
    for model in dict.fromkeys([*after.missing, *was, *now]):
        names = was.get(model, []), now.get(model, [])
        yield from _of_model(model, *names, before, after, retired)
        if after.missing.get(model):
            yield Step(
                action="cannot",
                model=model,
                count=after.missing[model],
                reasons=(counted(after.refusals[model]) or "no reason recorded",),
                good=after.missing[model] <= before.missing.get(model, 0),
            )


def _by_model(picture: _Picture) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, model in picture.model.items():
        found.setdefault(model, []).append(name)
    return found


def _of_model(
    model: str,
    was: list[str],
    now: list[str],
    before: _Picture,
    after: _Picture,
    retired: dict[str, str],
) -> Iterator[Step]:
    stopping = [name for name in was if name not in after.model]
    for name in now:
        stays = name in before.model
        follows = name if stays else _predecessor(after.places[name], stopping, before)
        if follows is not None and not stays:
            stopping.remove(follows)
        gone = before.places.get(follows, ()) if follows else ()
        yield Step(
            action=_action(name, follows, before, after),
            model=model,
            replica=name,
            instead_of=follows if follows != name else None,
            before=gone,
            after=after.places[name],
            reasons=_why(name, follows, before, after, retired),
        )
    for name in stopping:
        said = retired.get(name)
        where = before.places[name]
        reasons = (said,) if said else ()
        yield Step(action="stop", model=model, replica=name, before=where, reasons=reasons)


def _predecessor(
    places: tuple[Place, ...], stopping: Iterable[str], before: _Picture
) -> str | None:
    """Return the replica that another follows: rather one from the same place."""
    return min(stopping, key=lambda name: before.places[name] != places, default=None)


def _action(name: str, follows: str | None, before: _Picture, after: _Picture) -> Action:
    if follows is None:
        return "start"
    if before.places[follows] != after.places[name]:
        return "move"
    again = follows != name or before.generation[name] != after.generation[name]
    return "restart" if again else "keep"


def _why(
    name: str, follows: str | None, before: _Picture, after: _Picture, retired: dict[str, str]
) -> tuple[str, ...]:
    if follows == name and before.places[name] == after.places[name]:
        return ()
    left = retired.get(follows or "")
    return (*((f"{follows}: {left}",) if left else ()), *after.reasons[name])
