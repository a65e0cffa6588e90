"""What earlier placements of one decision took, on top of a state that is only read.

Pure; `decide` makes one for each answer, and `placement` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Cluster, Node, pool_of
from llmgw.core.events import PartPlacement
from llmgw.core.index import Board, Index, Marks, Survey, index_of


class Held:
    """Memory in use beyond what the state says: what earlier placements of one decision took.

    Of the nodes where something was taken or released it keeps surveys of its own; the state and
    its index are only read. It is of use until the state changes. `takes` is what was taken, in
    its order, `retired` what the same decision retires, and `ending` whether the state has
    retired replicas that are not gone.
    """

    def __init__(self) -> None:
        self.board = Board()
        self.gone = Marks()
        self.takes: list[tuple[str, tuple[PartPlacement, ...], Entry | None]] = []
        self.retired: dict[str, None] = {}
        self.ending = False
        self._surveys: dict[int, Survey] = {}
        self._taken: dict[str, dict[str, dict[str, int]]] = {}
        self._released: set[str] = set()
        self._models: dict[str, str] = {}
        self._sharing: frozenset[str] = frozenset()

    def holders(self, node: Node, pool: str) -> Mapping[str, int]:
        """Return which replica holds how many bytes of the pool."""
        return self._holders(node).get(pool, {})

    def survey(self, index: Index, number: int) -> Survey:
        """Return what a node offers."""
        return self._surveys.get(number) or index.surveys[number]

    def release(self, state: Cluster, replica: str) -> None:
        """Look at the cluster as if the replica were gone."""
        self._released.add(replica)
        found = state.replicas.get(replica)
        for part in found.parts if found is not None else ():
            self._look_again(state, part.node)

    def take(
        self,
        state: Cluster,
        replica: str,
        parts: Iterable[PartPlacement],
        entry: Entry | None = None,
    ) -> None:
        """Count a placement that is not in the state yet."""
        parts = tuple(parts)
        self.takes.append((replica, parts, entry))
        if entry is not None:
            self._models[replica] = entry.name
            if entry.share:
                self._sharing |= {replica}
        for part in parts:
            node = state.nodes[part.node]
            taken = self._taken.setdefault(part.node, {})
            for number in part.devices:
                holders = taken.setdefault(pool_of(node.devices[number]), {})
                holders[replica] = holders.get(replica, 0) + part.memory_bytes
            self._look_again(state, part.node)

    def _holders(self, node: Node) -> Mapping[str, Mapping[str, int]]:
        gone = self._released
        held: dict[str, Mapping[str, int]] = dict(node.held)
        for pool, holders in node.held.items():
            if not gone.isdisjoint(holders):
                held[pool] = {who: size for who, size in holders.items() if who not in gone}
        for pool, more in self._taken.get(node.name, {}).items():
            held[pool] = {**held.get(pool, {}), **more}
        return {pool: holders for pool, holders in held.items() if holders}

    def _look_again(self, state: Cluster, name: str) -> None:
        index = index_of(state)
        number, node = index.numbers[name], state.nodes[name]
        found = index.survey(state, node, number, self._holders(node), self._models, self._sharing)
        before = self._surveys.get(number)
        if before is None:
            self.gone.add(number)
            self.board.count(index.surveys[number], -1)
            self.board.put(found)
        else:
            self.board.change(before, found)
        self._surveys[number] = found
