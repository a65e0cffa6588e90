"""One entry's search over the boards: the best group of free devices, and who was refused why.

Pure; `placement.place` makes one for each replica. Nothing here looks at a node before it is
chosen: what is asked of all nodes is asked of the boards' marks and counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Cluster
from llmgw.core.demand import demand_bytes, taken_bytes, too_small, usable_bytes
from llmgw.core.held import Held
from llmgw.core.index import (
    ALL,
    FORMS,
    LINKED,
    LOOSE,
    MOST_TOGETHER,
    TOTAL,
    WHOLE,
    WORSE,
    Board,
    Key,
    Kind,
    Marks,
    index_of,
    key_of,
    union,
)
from llmgw.hardware.types import spans_nodes

PARTLY = 7
"""The form of devices that replicas share, beside those of the index."""


class Choice(NamedTuple):
    """A node's devices, and what they were chosen by; each number the lower the better."""

    number: int
    kind: int
    devices: tuple[int, ...]
    free: int
    avoided: int
    tier: int
    same_model: int
    apart: int
    domain: str | None


class Side(NamedTuple):
    """A board with the nodes that are looked at: in all of `within`, in none of `without`."""

    board: Board
    within: tuple[Marks, ...]
    without: tuple[Marks, ...]


class Search:
    """What one replica of an entry needs, and where it may be."""

    def __init__(self, state: Cluster, entry: Entry, held: Held) -> None:
        self.entry = entry
        self.held = held
        self.index = index_of(state)
        self.demand = demand_bytes(entry, state.models.get(entry.name))
        self.size = entry.gpus // entry.nodes
        self._used = Marks()
        used = (self._used,) if entry.nodes > 1 else ()
        gone = (held.gone,) if held.gone.count else ()
        self._sides = [Side(self.index.board, (), (*used, *gone))]
        if gone:
            self._sides.append(Side(held.board, (), used))

    def gang(self, kinds: tuple[int, ...]) -> list[Choice] | None:
        """Return the best groups on as many nodes as the entry has parts: all of one kind, or none.

        A tensor-parallel group over nodes needs a fabric: NVLink that reaches over them.
        """
        if self.entry.nodes == 1:
            choice = self.choose(kinds)
            return None if choice is None else [choice]
        spanning = self.entry.tp > self.size
        for kind in kinds:
            if self._why_not(self.index.kinds[kind]) is None:
                found = self._over_fabric(kind) if spanning else self._over_nodes(kind)
                if found is not None:
                    return found
        return None

    def _over_nodes(self, kind: int) -> list[Choice] | None:
        choices: list[Choice] = []
        while len(choices) < self.entry.nodes:
            choice = self.choose((kind,))
            if choice is None:
                break
            choices.append(choice)
            self._used.add(choice.number)
        for choice in choices:
            self._used.discard(choice.number)
        return choices if len(choices) == self.entry.nodes else None

    def _over_fabric(self, kind: int) -> list[Choice] | None:
        """Look at every node: fabrics are few, and so are those who ask for one."""
        board = self.index.board
        required = [_with_label(board, *pair) for pair in self.entry.labels.require.items()]
        fabrics: dict[str, list[Choice]] = {}
        for number in range(len(self.index.names)):
            if not all(number in marks for marks in required):
                continue
            groups = self.held.survey(self.index, number).clean.get(kind, {})
            for domain, devices in groups.items():
                free = len(devices)
                if domain is not None and spans_nodes(domain) and free >= self.size:
                    own = tuple(devices[: self.size])
                    choice = Choice(number, kind, own, free, 0, 0, 0, 0, domain)
                    fabrics.setdefault(domain, []).append(choice)
        wide = [choices for choices in fabrics.values() if len(choices) >= self.entry.nodes]
        if not wide:
            return None
        smallest: list[Choice] = min(wide, key=lambda choices: len(choices))
        return sorted(smallest, key=lambda choice: (choice.free, choice.number))[: self.entry.nodes]

    # --- the best group ----------------------------------------------------------------------

    def choose(self, kinds: tuple[int, ...]) -> Choice | None:
        """Return the best group of free devices of any of the kinds, the smallest kind first."""
        fitting = [kind for kind in kinds if self._why_not(self.index.kinds[kind]) is None]
        if not fitting:
            return None
        forms = self._forms(fitting)
        for worse in (LOOSE, WORSE):
            if worse and not self._any_worse(fitting):
                break
            for tier, sides in enumerate(self._tiers()):
                for same_model, narrowed in self._levels(sides):
                    for apart, form in forms:
                        found = self._smallest(narrowed, fitting, form, worse)
                        if found is not None:
                            kind, number, key = found
                            devices, domain = self._devices(kind, number, key)
                            return Choice(
                                number,
                                kind,
                                devices,
                                key & MOST_TOGETHER if key >= 0 else 1,
                                int(worse > 0),
                                tier,
                                same_model,
                                apart,
                                domain,
                            )
        return None

    def _forms(self, fitting: list[int]) -> list[tuple[int, int]]:
        """Return the forms of free devices in the order of liking, each with its score."""
        if self.size > 1:
            linked, total = (0, LINKED), (1, TOTAL)
            choices = {"require": [linked], "ignore": [total], "prefer": [linked, total]}
            return choices[self.entry.nvlink]
        singles = [(0, LOOSE), (1, LINKED)]  # domains are for groups
        if self.entry.share or any(self.index.kinds[kind].shared for kind in fitting):
            return [(0, PARTLY), *singles]
        return singles

    def _any_worse(self, fitting: list[int]) -> bool:
        return any(
            side.board.sizes.get(kind * FORMS + WORSE + TOTAL)
            for side in self._sides
            for kind in fitting
        )

    def _tiers(self) -> Iterator[list[Side]]:
        """Yield the nodes by their labels, those that the entry likes best first."""
        labels = self.entry.labels
        if not (labels.require or labels.prefer or labels.avoid):
            yield self._sides
            return
        liked = list(labels.prefer.items())
        for count in range(len(liked), -1, -1):
            wanted = [*labels.require.items(), *liked[:count]]
            yield [_labelled(side, wanted, labels.avoid) for side in self._sides]
        if labels.avoid:
            yield [_labelled(side, labels.require.items(), {}) for side in self._sides]

    def _levels(self, sides: list[Side]) -> Iterator[tuple[int, list[Side]]]:
        """Yield the nodes by how many replicas of the model they have, the fewest first."""
        name = self.entry.name
        if self.entry.policy == "pack":
            yield 0, sides
            return
        hosting = [side.board.marks.get(("model", name)) for side in sides]
        if not any(hosting):
            yield 0, sides
            return
        yield (
            0,
            [
                side if marks is None else side._replace(without=(*side.without, marks))
                for side, marks in zip(sides, hosting, strict=True)
            ],
        )
        counts = 0
        for side in sides:
            counts |= side.board.sizes.get(("model", name), 0)
        while counts:
            low = counts & -counts
            counts ^= low
            count = low.bit_length() - 1
            yield count, [_within(side, ("model", name, count)) for side in sides]

    def _smallest(
        self, sides: list[Side], fitting: list[int], form: int, worse: int
    ) -> tuple[int, int, int] | None:
        """Return (kind, node, key) of the smallest group; what is in use before what is whole."""
        for kind in fitting:
            if form == PARTLY:
                found = None if worse else self._find_partly(sides, kind)
                if found is not None:
                    return (kind, *found)
                continue
            if self.index.kinds[kind].shared:
                continue
            for whole in (0,) if worse else (0, WHOLE):
                found = self._find(sides, key_of(kind, form + whole + worse, 0))
                if found is not None:
                    return (kind, *found)
        return None

    def _find(self, sides: list[Side], base: int) -> tuple[int, int] | None:
        """Return (node, key) of the smallest group of a form that is large enough."""
        sizes = 0
        for side in sides:
            sizes |= side.board.sizes.get(base >> 10, 0)
        sizes = sizes >> self.size << self.size
        while sizes:
            low = sizes & -sizes
            sizes ^= low
            key = base | low.bit_length() - 1
            number = _first(sides, key)
            if number is not None:
                return number, key
        return None

    def _devices(self, kind: int, number: int, key: int) -> tuple[tuple[int, ...], str | None]:
        """Return the devices that a mark stands for, the best first, and their domain."""
        if key < 0:
            return (-key - 1,), None
        survey = self.held.survey(self.index, number)
        form = key >> 10 & FORMS - 1
        groups = survey.groups(kind, form)
        form = (form & ~WHOLE) % WORSE
        if form != TOTAL:
            domain = survey.domains[key]
            return tuple(groups[domain][: self.size]), domain
        loose = groups.get(None, [])
        linked = sorted((d for domain, d in groups.items() if domain is not None), key=len)
        together = (*loose, *(device for devices in linked for device in devices))
        return together[: self.size], None

    def _find_partly(self, sides: list[Side], kind: int) -> tuple[int, int] | None:
        """Return (node, the device as a key below zero) of the fullest shared one with room."""
        needed = taken_bytes(self.entry, self.demand, self.index.kinds[kind].memory_bytes)
        best: tuple[int, int, int] | None = None
        for board, within, without in sides:
            row = board.partials.get(kind, [])
            for at in range(bisect_left(row, (needed,)), len(row)):
                found = row[at]
                if best is not None and best < found:
                    break
                if _passes(found[1], within, without):
                    best = found
                    break
        return None if best is None else (best[1], -best[2] - 1)

    # --- who was refused ---------------------------------------------------------------------

    def _why_not(self, kind: Kind) -> str | None:
        """Return why not even a free device of the kind would do."""
        if kind.memory_bytes < 0:
            return "memory unknown"
        if kind.instance and self.size > 1:
            return "a MIG instance cannot be part of a group"
        short = self.demand - usable_bytes(self.entry, kind.memory_bytes)
        return too_small(short) if short > 0 else None

    def count_refusals(
        self, kinds: tuple[int, ...], refusals: dict[str, int], *, refused: bool
    ) -> None:
        """Add how many devices of the kinds failed which test; `refused`: none of them will do."""
        for kind in kinds:
            self.count_refused(kind, refusals)
            self._count_sharing(kind, refusals)
            self._count_free(kind, refusals, refused)
        for reason in [reason for reason, count in refusals.items() if not count]:
            del refusals[reason]

    def count_refused(self, kind: int, refusals: dict[str, int]) -> None:
        """Add how many devices of a kind nobody gets, or how many nodes have told of no device."""
        for side in self._sides:
            for reason, count in side.board.refused.get(kind, {}).items():
                refusals[reason] = refusals.get(reason, 0) + count

    def _count_sharing(self, kind: int, refusals: dict[str, int]) -> None:
        count = sum(side.board.sharing.get(kind, 0) for side in self._sides)
        if not count:
            return
        about = self.index.kinds[kind]
        if about.shared and self.size > 1:
            _add(refusals, "the processor cannot be part of a group", count)
            return
        if not about.shared and not (self.entry.share and self.size == 1):
            _add(refusals, "in use", count)
            return
        needed = taken_bytes(self.entry, self.demand, about.memory_bytes)
        for board, within, without in self._sides:
            row = board.partials.get(kind, [])
            enough = bisect_left(row, (needed,))
            for free_bytes, number, _ in row[:enough]:
                if _passes(number, within, without):
                    _add(refusals, too_small(needed - free_bytes), 1)
        self._count_sharing_elsewhere(kind, needed, refusals)

    def _count_sharing_elsewhere(self, kind: int, needed: int, refusals: dict[str, int]) -> None:
        """Count the shared devices with room on nodes that lack a label."""
        required = self.entry.labels.require
        if not required:
            return
        for board, within, without in self._sides:
            marked = [
                (without_label(*pair), _with_label(board, *pair)) for pair in required.items()
            ]
            row = board.partials.get(kind, [])
            for _, number, _ in row[bisect_left(row, (needed,)) :]:
                if _passes(number, within, without):
                    reason = next((r for r, marks in marked if number not in marks), None)
                    if reason is not None:
                        _add(refusals, reason, 1)

    def _count_free(self, kind: int, refusals: dict[str, int], refused: bool) -> None:
        """Count the free devices that will not do: too small, of a wrong node, or too few."""
        reason = self._why_not(self.index.kinds[kind])
        unlinked = ""
        if refused and self.size > 1 and self.entry.nvlink == "require":
            unlinked = f"fewer than {self.size} free in one NVLink domain"
        sizes = 0
        for side in self._sides:
            sizes |= side.board.sizes.get(kind * FORMS + ALL, 0)
        labels = self.entry.labels.require
        for free in _numbers(sizes):
            key = key_of(kind, ALL, free)
            if reason is not None:
                _add(refusals, reason, free * _count(self._sides, key))
                continue
            sides = self._sides
            for name, value in labels.items():
                rest = [_labelled(side, [(name, value)], {}) for side in sides]
                missing = _count(sides, key) - _count(rest, key)
                _add(refusals, without_label(name, value), free * missing)
                sides = rest
            if free < self.size and not unlinked:
                _add(refusals, f"fewer than {self.size} free together", free * _count(sides, key))
            elif unlinked or (refused and self.entry.nodes > 1):
                _add(refusals, unlinked or self._too_few_nodes(), free * _count(sides, key))

    def _too_few_nodes(self) -> str:
        entry = self.entry
        what = "of one NVLink fabric " if entry.tp > self.size else ""
        return f"on fewer than {entry.nodes} nodes {what}with {self.size} free together"


def without_label(name: str, value: str) -> str:
    """Return the words for a node that lacks a label."""
    return f"without the label {name}={value}"


def _add(refusals: dict[str, int], reason: str, count: int) -> None:
    if count:
        refusals[reason] = refusals.get(reason, 0) + count


def _numbers(sizes: int) -> Iterator[int]:
    while sizes:
        low = sizes & -sizes
        sizes ^= low
        yield low.bit_length() - 1


def _first(sides: list[Side], key: int) -> int | None:
    best: int | None = None
    for board, within, without in sides:
        marks = board.marks.get(key)
        if marks is not None:
            number = marks.first(within, without)
            if number is not None and (best is None or number < best):
                best = number
    return best


def _count(sides: list[Side], key: int) -> int:
    count = 0
    for board, within, without in sides:
        marks = board.marks.get(key)
        if marks is not None:
            filtered = within or without
            count += marks.shared_with(within, without) if filtered else marks.count
    return count


def _passes(number: int, within: tuple[Marks, ...], without: tuple[Marks, ...]) -> bool:
    return all(number in marks for marks in within) and not any(
        number in marks for marks in without
    )


def _within(side: Side, key: Key) -> Side:
    return side._replace(within=(*side.within, side.board.marks.get(key, _NOWHERE)))


def _labelled(side: Side, wanted: Iterable[tuple[str, str]], avoided: Mapping[str, str]) -> Side:
    within = [_with_label(side.board, *pair) for pair in wanted]
    without = [_with_label(side.board, *pair) for pair in avoided.items()]
    return side._replace(within=(*side.within, *within), without=(*side.without, *without))


def _with_label(board: Board, name: str, value: str) -> Marks:
    if not any(character in value for character in "*?["):
        return board.marks.get(("label", name, value), _NOWHERE)
    return union(
        marks
        for key, marks in board.marks.items()
        if isinstance(key, tuple)
        and key[:2] == ("label", name)
        and fnmatchcase(str(key[-1]), value)
    )


_NOWHERE = Marks()
