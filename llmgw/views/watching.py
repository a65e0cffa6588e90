"""A predicate asked again after every record of a log, at the cost of what the record touched.

Pure. What a path names is kept by the node, the replica or the model that it is of. After a record
only what that can have changed is looked at: what it names, the replicas on its node, and the nodes
and models of those. That this shows what the whole views show is tested on simulated histories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from llmgw.core.cluster import Cluster, Replica
from llmgw.core.events import CatalogApplied, CatalogRejected
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.views import VIEWS, paths
from llmgw.views.predicate import (
    Compared,
    Constant,
    Negated,
    Operand,
    Path,
    Predicate,
    Several,
    Test,
    compare,
)
from llmgw.views.status import class_rows, condition_counts, model_row, node_counts

Look = Callable[[Cluster, str], Iterable[Any]]
"""What one thing of a state shows under a path."""

Answer = Callable[[], bool]

_SHOWN_NOWHERE = (CatalogApplied, CatalogRejected, UnknownType, Unreadable, NewerVersion)
"""What changes no row, unless a node wrote it."""

_COUNTS = ("total", "free", "held", "excluded")


class Touched(NamedTuple):
    """What a record can have changed."""

    nodes: set[str]
    replicas: set[str]
    models: set[str]


class Neighbours:
    """Which replicas are on which nodes and of which models, as of the last record."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, frozenset[str]]] = {}
        self._on: dict[str, set[str]] = {}
        self._of: dict[str, set[str]] = {}
        self._models: set[str] = set()

    def everything(self, state: Cluster) -> Touched:
        """Return all that there is or was."""
        self._models.update(state.models)
        models = self._models | self._of.keys()
        found = Touched({*state.nodes, *self._on}, {*state.replicas, *self._places}, models)
        return self._noted(state, found)

    def touched(self, state: Cluster, record: Record) -> Touched:
        """Return what the record that was folded last can have changed."""
        body = record.body
        nodes, models, replicas = (
            {name} - {""}
            for name in (record.node, getattr(body, "model", ""), getattr(body, "replica", ""))
        )
        nodes |= {getattr(body, "node", "")} - {""}
        replicas |= {one.replica for one in getattr(body, "assignments", ())}
        if not (nodes or models or replicas):
            nothing = isinstance(body, _SHOWN_NOWHERE)
            return Touched(set(), set(), set()) if nothing else self.everything(state)
        replicas |= {one for name in nodes for one in self._on.get(name, ())}
        return self._noted(state, Touched(nodes, replicas, models))

    def of_model(self, state: Cluster, name: str) -> list[Replica]:
        """Return the replicas of a model, oldest first."""
        names = sorted(self._of.get(name, ()), key=lambda one: (len(one), one))
        return [state.replicas[one] for one in names if one in state.replicas]

    def _noted(self, state: Cluster, found: Touched) -> Touched:
        """Note where the replicas are now; add the nodes and models that they are or were of."""
        for name in found.replicas:
            self._add(found, name, self._places.pop(name, None), set.discard)
            replica = state.replicas.get(name)
            if replica is not None:
                nodes = frozenset(part.node for part in replica.parts)
                self._places[name] = (replica.model, nodes)
                self._add(found, name, self._places[name], set.add)
        return found

    def _add(
        self,
        found: Touched,
        name: str,
        place: tuple[str, frozenset[str]] | None,
        change: Callable[[set[str], str], None],
    ) -> None:
        model, nodes = place or ("", frozenset())
        if place is not None:
            change(self._of.setdefault(model, set()), name)
            found.models.add(model)
        for node in nodes:
            change(self._on.setdefault(node, set()), name)
        found.nodes.update(nodes)


Heard = Callable[[str, list[Any]], None]


class Kept:
    """What one path names now, by the name of the thing that each value is of."""

    def __init__(self, look: Look, names: Callable[[Touched], Iterable[str]]) -> None:
        self._look = look
        self._names = names
        self._heard: list[Heard] = []
        self.values: dict[str, list[Any]] = {}
        self.ever = False
        """Whether there ever was anything."""

    def tell(self, heard: Heard) -> None:
        """Have `heard` called with a thing's name and its values when these may be new ones."""
        self._heard.append(heard)

    def follow(self, state: Cluster, touched: Touched) -> None:
        """Look again at what was touched."""
        for name in self._names(touched):
            self._keep(name, [*self._look(state, name)])

    def _keep(self, name: str, values: list[Any]) -> None:
        if values:
            self.values[name] = values
            self.ever = True
        else:
            self.values.pop(name, None)
        for heard in self._heard:
            heard(name, values)


class Summed(Kept):
    """What the status counts over all nodes: each node's share is kept."""

    def __init__(self, field: str, names: tuple[str, ...]) -> None:
        super().__init__(lambda _state, _name: (), lambda touched: touched.nodes)
        self._field = field
        self._wanted = names
        self._shares: dict[str, Counter[tuple[str, ...]]] = {}
        self._total = _counted(Cluster(), field)

    def follow(self, state: Cluster, touched: Touched) -> None:
        """Count again what was touched."""
        for name in touched.nodes:
            self._total.subtract(self._shares.pop(name, Counter()))
            if name in state.nodes:
                alone = replace(state, nodes={name: state.nodes[name]}, replicas={}, models={})
                self._shares[name] = _counted(alone, self._field)
                self._total.update(self._shares[name])
        if touched.nodes or not self.values:
            self._keep("", [count for names, count in self._total.items() if self._is_there(names)])

    def _is_there(self, names: tuple[str, ...]) -> bool:
        wanted = zip(names, self._wanted, strict=True)
        if not all(want in (paths.EVERY, name) for name, want in wanted):
            return False
        if self._field == "devices":
            return self._total[names[0], "total"] > 0
        return self._field == "nodes" or self._total[names] > 0


def _counted(state: Cluster, field: str) -> Counter[tuple[str, ...]]:
    """Return the numbers of one part of the status by their names."""
    if field == "devices":
        rows = class_rows(state)
        counts = {(str(r.device_class), name): getattr(r, name) for r in rows for name in _COUNTS}
        return Counter(counts)
    found = paths.plain(node_counts(state) if field == "nodes" else condition_counts(state))
    return Counter({(name,): count for name, count in found.items()})


def _kept(segments: tuple[str, ...], neighbours: Neighbours) -> Kept:
    """Return what keeps a path, by the smallest things that it can be told apart by."""
    view, *rest = segments
    named = rest[0].partition("/")[0] if rest else ""

    def small(narrow: Callable[[Cluster, str], Cluster]) -> Look:
        return lambda state, name: paths.walk(VIEWS[view](narrow(state, name)), rest)

    if rest and view in ("nodes", "devices"):
        return Kept(small(paths.only_node), lambda touched: _only(touched.nodes, named))
    if rest and view == "replicas":
        return Kept(small(_only_replica), lambda touched: _only(touched.replicas, named))
    if view == "status" and len(rest) > 1:
        field, name, *inner = rest
        if field == "models":
            return Kept(_model_look(neighbours, inner), lambda touched: _only(touched.models, name))
        in_all = field == "devices" and len(inner) == 1 and inner[0] in _COUNTS
        if in_all or (field in ("nodes", "conditions") and not inner):
            return Summed(field, (name, *inner))
    return Kept(lambda state, _: paths.values(state, segments), lambda _: ("",))


def _model_look(neighbours: Neighbours, fields: Sequence[str]) -> Look:
    def look(state: Cluster, name: str) -> Iterable[Any]:
        replicas = neighbours.of_model(state, name)
        if not replicas and name not in state.models:
            return ()
        return paths.walk(model_row(state, name, replicas), fields)

    return look


def _only(names: set[str], wanted: str) -> Iterable[str]:
    return names if wanted == paths.EVERY else names & {wanted}


def _only_replica(state: Cluster, name: str) -> Cluster:
    replica = state.replicas.get(name)
    return paths.only_replicas(state, [replica] if replica is not None else [])


class Watching:
    """One predicate along one log. `begin` with a state, then tell `after` of each record."""

    def __init__(self, predicate: Predicate) -> None:
        self._neighbours = Neighbours()
        self._kept: dict[tuple[str, ...], Kept] = {}
        self._answer = self._built(predicate.test)

    def begin(self, state: Cluster) -> bool:
        """Return the answer for a state, having looked at all of it."""
        return self._after(state, self._neighbours.everything(state))

    def after(self, state: Cluster, record: Record) -> bool:
        """Return the answer for a state after the record that was folded into it last."""
        return self._after(state, self._neighbours.touched(state, record))

    @property
    def never_there(self) -> list[str]:
        """The paths under which there never was anything."""
        return [paths.joined(segments) for segments, kept in self._kept.items() if not kept.ever]

    def _after(self, state: Cluster, touched: Touched) -> bool:
        for kept in self._kept.values():
            kept.follow(state, touched)
        return self._answer()

    def _built(self, test: Test) -> Answer:
        if isinstance(test, Several):
            answers = [self._built(one) for one in test.tests]
            together = all if test.all else any
            return lambda: together(answer() for answer in answers)
        if isinstance(test, Negated):
            inner = self._built(test.test)
            return lambda: not inner()
        return self._compared(test)

    def _compared(self, test: Compared) -> Answer:
        left, sign, right = test.left, test.sign, test.right
        if not sign:
            return self._any_of(left, any)
        if isinstance(right, Constant) and right.value is not None:
            return self._any_of(left, lambda ours: compare(ours, sign, [right.value]))
        if isinstance(left, Constant) and left.value is not None:
            return self._any_of(right, lambda theirs: compare([left.value], sign, theirs))
        ours, theirs = self._all_of(left), self._all_of(right)
        return lambda: compare(ours(), sign, theirs())

    def _any_of(self, operand: Operand, holds: Callable[[list[Any]], bool]) -> Answer:
        """Return whether something holds for any value: which of them is kept, not asked again."""
        if isinstance(operand, Constant) or operand.counted:
            all_of_it = self._all_of(operand)
            return lambda: holds(all_of_it())
        so: set[str] = set()

        def heard(name: str, values: list[Any]) -> None:
            (so.add if holds(values) else so.discard)(name)

        self._kept_of(operand).tell(heard)
        return lambda: bool(so)

    def _all_of(self, operand: Operand) -> Callable[[], list[Any]]:
        if isinstance(operand, Constant):
            return lambda: [operand.value]
        kept = self._kept_of(operand)
        if operand.counted:
            return lambda: [sum(map(len, kept.values.values()))]
        return lambda: [*chain.from_iterable(kept.values.values())]

    def _kept_of(self, path: Path) -> Kept:
        found = self._kept.get(path.segments)
        if found is None:
            found = self._kept[path.segments] = _kept(path.segments, self._neighbours)
        return found
