"""The index of placement: what is free where, kept so that asking costs little in any fleet.

Every node has a survey: its free devices by kind and NVLink domain, and how many failed which
test. A board sums surveys up: for each kind of device and each number of free ones together it
marks the nodes that have so many. Marks are bits by the node's place in the log's order, which
makes "the first node that has four together, is in rack b and does not run this model" a few
operations on integers, and the answer the same on every machine.

Pure. The index belongs to a state and is made when it is first asked for; from then on the fold
notes which nodes it touched, and only those are surveyed again. It is never stored: one built from
scratch is the same. `llmgw.core.placement` is the only reader.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from llmgw.core.cluster import Cluster, Node, is_shared, pool_of
from llmgw.core.conditions import AVOIDED
from llmgw.hardware.types import Inventory

MOST_REPLICAS_ON_A_NODE = 64
FULL = f"on a node with {MOST_REPLICAS_ON_A_NODE} replicas"
BLOCK_BITS = 1024

LOOSE, LINKED, TOTAL = 0, 1, 2
"""Free devices outside of any NVLink domain, of one domain, and of the whole node."""
WORSE = 3
"""Added to these: the same with those devices that are better avoided, where there are any."""
ALL = 6
"""All free devices of the node, whether they are better avoided or not."""
WHOLE = 8
"""Added to the first three: a domain, or a node, of which every device is free."""
FORMS = 16
MOST_TOGETHER = 1023
OF_NO_KIND = -1
"""In place of a kind: for nodes that have not told what they have."""

Key = int | tuple[str, str] | tuple[str, str, str] | tuple[str, str, int]
Form = int | tuple[str, str]
Holders = Mapping[str, Mapping[str, int]]


class Kind(NamedTuple):
    """Devices that are alike for placement: of one class and size."""

    device_class: str
    memory_bytes: int
    instance: bool
    shared: bool


class Slot(NamedTuple):
    """One device as placement sees it. `wear` orders cards of a domain: the least worn first."""

    device: int
    domain: str | None
    pool: str
    wear: int


Layout = tuple[tuple[int, tuple[Slot, ...], Mapping[str | None, int]], ...]
"""The devices of an inventory by the number of their kind, and how many each domain has."""


class Marks:
    """A set of small numbers that is searched in their order, with others as filters."""

    __slots__ = ("blocks", "count", "summary")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.summary = 0
        self.count = 0

    def add(self, number: int) -> None:
        """Mark a number that is not marked."""
        block, bit = divmod(number, BLOCK_BITS)
        self.blocks[block] = self.blocks.get(block, 0) | 1 << bit
        self.summary |= 1 << block
        self.count += 1

    def discard(self, number: int) -> None:
        """Take the mark of a number that is marked away."""
        block, bit = divmod(number, BLOCK_BITS)
        rest = self.blocks[block] & ~(1 << bit)
        self.count -= 1
        if rest:
            self.blocks[block] = rest
        else:
            del self.blocks[block]
            self.summary &= ~(1 << block)

    def __contains__(self, number: int) -> bool:
        block, bit = divmod(number, BLOCK_BITS)
        return self.blocks.get(block, 0) >> bit & 1 == 1

    def __iter__(self) -> Iterator[int]:
        for block in sorted(self.blocks):
            bits, base = self.blocks[block], block * BLOCK_BITS
            while bits:
                low = bits & -bits
                bits ^= low
                yield base + low.bit_length() - 1

    def first(self, within: Sequence[Marks], without: Sequence[Marks]) -> int | None:
        """Return the lowest number that is in all of `within` and in none of `without`."""
        rest = self.summary
        for other in within:
            rest &= other.summary
        blocks = self.blocks
        while rest:
            low = rest & -rest
            rest ^= low
            block = low.bit_length() - 1
            bits = blocks[block]
            for other in within:
                bits &= other.blocks[block]
            for other in without:
                bits &= ~other.blocks.get(block, 0)
            if bits:
                return block * BLOCK_BITS + (bits & -bits).bit_length() - 1
        return None

    def shared_with(self, within: Sequence[Marks], without: Sequence[Marks]) -> int:
        """Return how many numbers are in all of `within` and in none of `without`."""
        count = 0
        for block, bits in self.blocks.items():
            for other in within:
                bits &= other.blocks.get(block, 0)
            for other in without:
                bits &= ~other.blocks.get(block, 0)
            count += bits.bit_count()
        return count


def union(marks: Iterable[Marks]) -> Marks:
    """Return the numbers that any of `marks` has."""
    found = Marks()
    for one in marks:
        for block, bits in one.blocks.items():
            found.blocks[block] = found.blocks.get(block, 0) | bits
        found.summary |= one.summary
    found.count = sum(bits.bit_count() for bits in found.blocks.values())
    return found


Groups = dict[str | None, list[int]]
"""Free devices by domain; those of no domain under `None`."""


class Survey:
    """What one node offers, whoever asks.

    `clean` and `avoided` are free devices by kind and domain; `partial` those that replicas share,
    as (kind, free bytes, device). `refused` counts devices by kind and failed test. `keys` are the
    marks that the node has on a board, and `domains` which domain stands behind one.
    """

    __slots__ = ("avoided", "clean", "domains", "keys", "number", "partial", "refused")

    def __init__(self, number: int) -> None:
        self.number = number
        self.clean: dict[int, Groups] = {}
        self.avoided: dict[int, Groups] = {}
        self.partial: list[tuple[int, int, int]] = []
        self.refused: dict[tuple[int, str], int] = {}
        self.keys: frozenset[Key] = frozenset()
        self.domains: dict[int, str | None] = {}

    def groups(self, kind: int, form: int) -> Groups:
        """Return the free devices of a kind by domain; with `WORSE` also the avoided ones, last."""
        clean = self.clean.get(kind, {})
        if form & ~WHOLE < WORSE:
            return clean
        both = {domain: list(devices) for domain, devices in clean.items()}
        for domain, devices in self.avoided.get(kind, {}).items():
            both.setdefault(domain, []).extend(devices)
        return both


def key_of(kind: int, form: int, count: int) -> int:
    """Return the key of the nodes with exactly `count` free devices in such a form."""
    return (kind * FORMS + form) << 10 | min(count, MOST_TOGETHER)


class Board:
    """Surveys summed up: who has what (`marks`), and which counts there are (`sizes`).

    `partials` are shared devices by kind as (free bytes, node, device), in that order. `refused`
    counts devices by kind and failed test and `sharing` the shared ones; both may be below zero on
    a board that corrects another one.
    """

    def __init__(self) -> None:
        self.marks: dict[Key, Marks] = {}
        self.sizes: dict[Form, int] = {}
        self.partials: dict[int, list[tuple[int, int, int]]] = {}
        self.refused: dict[int, dict[str, int]] = {}
        self.sharing: dict[int, int] = {}

    def put(self, survey: Survey) -> None:
        """Take a node in."""
        self._mark(survey.number, survey.keys)
        self._insert(survey)
        self.count(survey, 1)

    def change(self, before: Survey, after: Survey) -> None:
        """Put `after` in the place of `before`: of the same node, so most marks stay."""
        self._unmark(before.number, before.keys - after.keys)
        self._mark(after.number, after.keys - before.keys)
        if before.refused != after.refused or before.partial != after.partial:
            self.count(before, -1)
            self.count(after, 1)
        if before.partial != after.partial:
            for kind, free_bytes, device in before.partial:
                row = self.partials[kind]
                del row[bisect_left(row, (free_bytes, before.number, device))]
            self._insert(after)

    def count(self, survey: Survey, sign: int) -> None:
        """Add a node's numbers, or subtract them."""
        for (kind, reason), count in survey.refused.items():
            counts = self.refused.setdefault(kind, {})
            counts[reason] = counts.get(reason, 0) + sign * count
            if not counts[reason]:
                del counts[reason]
        for kind, _, _ in survey.partial:
            self.sharing[kind] = self.sharing.get(kind, 0) + sign

    def _insert(self, survey: Survey) -> None:
        for kind, free_bytes, device in survey.partial:
            insort(self.partials.setdefault(kind, []), (free_bytes, survey.number, device))

    def _mark(self, number: int, keys: Iterable[Key]) -> None:
        for key in keys:
            marks = self.marks.get(key)
            if marks is None:
                marks = self.marks[key] = Marks()
                self._resize(key)
            marks.add(number)

    def _unmark(self, number: int, keys: Iterable[Key]) -> None:
        for key in keys:
            marks = self.marks[key]
            marks.discard(number)
            if not marks.count:
                del self.marks[key]
                self._resize(key)

    def _resize(self, key: Key) -> None:
        """Note that a form, or a model, has begun or ceased to be there in this number."""
        if isinstance(key, int):
            form: Form = key >> 10
            count = key & MOST_TOGETHER
        elif isinstance(key[-1], int):
            form, count = (key[0], key[1]), key[-1]
        else:
            return
        self.sizes[form] = self.sizes.get(form, 0) ^ 1 << count


class Index:
    """The board of a whole state, and what is needed to keep it true.

    `stale` are the nodes that the fold has touched since. `kinds` are numbered in the order of
    their first appearance.
    """

    def __init__(self) -> None:
        self.board = Board()
        self.surveys: list[Survey] = []
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.stale: dict[str, None] = {}
        self.kinds: list[Kind] = []
        self._kind_numbers: dict[Kind, int] = {}
        self._layouts: list[tuple[Inventory | None, Layout]] = []
        self._matching: dict[str, tuple[int, ...]] = {}

    def matching(self, pattern: str) -> tuple[int, ...]:
        """Return the kinds whose class matches, the smallest first."""
        found = self._matching.get(pattern)
        if found is None:
            kinds = enumerate(self.kinds)
            fitting = [
                (kind.memory_bytes, kind, number)
                for number, kind in kinds
                if fnmatchcase(kind.device_class, pattern)
            ]
            found = self._matching[pattern] = tuple(number for _, _, number in sorted(fitting))
        return found

    def refresh(self, state: Cluster) -> None:
        """Survey again what the fold has touched."""
        if not self.stale:
            return
        for name in self.stale:
            node = state.nodes[name]
            number = self.numbers.get(name)
            if number is None:
                number = self.numbers[name] = len(self.names)
                self.names.append(name)
                self._layouts.append((None, ()))
                found = self.survey(state, node, number, node.held)
                self.surveys.append(found)
                self.board.put(found)
            else:
                found = self.survey(state, node, number, node.held)
                self.board.change(self.surveys[number], found)
                self.surveys[number] = found
        self.stale = {}

    def _layout(self, node: Node, number: int) -> Layout:
        inventory, layout = self._layouts[number]
        if inventory is not node.inventory:
            layout = self._laid_out(node)
            self._layouts[number] = (node.inventory, layout)
        return layout

    def _laid_out(self, node: Node) -> Layout:
        cards = {card.index: card for card in node.inventory.cards} if node.inventory else {}
        rows: dict[int, list[Slot]] = {}
        for device in node.devices.values():
            card = cards.get(device.card) if device.card is not None else None
            kind = Kind(
                device.device_class,
                -1 if device.memory_total_bytes is None else device.memory_total_bytes,
                device.profile is not None,
                is_shared(device),
            )
            wear = 0
            if card is not None:
                wear = (card.wear.remapped_rows or 0) + (card.wear.retired_pages or 0)
            domain = card.nvlink_domain if card is not None and device.profile is None else None
            slot = Slot(device.id, domain, pool_of(device), wear)
            rows.setdefault(self._kind(kind), []).append(slot)
        return tuple(
            (
                kind,
                tuple(sorted(slots, key=lambda slot: (slot.wear, slot.device))),
                Counter(slot.domain for slot in slots),
            )
            for kind, slots in rows.items()
        )

    def _kind(self, kind: Kind) -> int:
        number = self._kind_numbers.get(kind)
        if number is None:
            number = self._kind_numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
            self._matching.clear()
        return number

    def survey(
        self,
        state: Cluster,
        node: Node,
        number: int,
        held: Holders,
        models: Mapping[str, str] | None = None,
        sharing: frozenset[str] = frozenset(),
    ) -> Survey:
        """Return what the node offers while its memory is held like that.

        `models` names the model of replicas that the state does not know yet, and `sharing` are
        those of them that share their devices.
        """
        found = Survey(number)
        layout = self._layout(node, number)
        names = {name for holders in held.values() for name in holders}
        out = node_refuses(node)
        if out is None and len(names) >= MOST_REPLICAS_ON_A_NODE:
            out = FULL
        if node.inventory is None and out is not None:
            found.refused[OF_NO_KIND, out] = 1
        judged = _judged(node)
        keys, sharers = self._hosted(state, names, models or {}, sharing)
        keys += [("label", name, value) for name, value in node.labels.items()]
        for kind, slots, sizes in layout:
            if self.kinds[kind].memory_bytes < 0:
                found.refused[kind, out or "memory unknown"] = len(slots)
            elif out is not None:
                found.refused[kind, out] = len(slots)
            else:
                self._sort(found, kind, slots, held, judged, sharers)
                _count_free(found, kind, sizes, keys)
        found.keys = frozenset(keys)
        return found

    def _hosted(
        self,
        state: Cluster,
        names: Iterable[str],
        models: Mapping[str, str],
        sharing: frozenset[str],
    ) -> tuple[list[Key], set[str]]:
        """Return the keys of the models whose replicas these are, and which of these share."""
        hosted: dict[str, int] = {}
        sharers = set()
        for name in names:
            replica = state.replicas.get(name)
            if replica is None:
                model = models.get(name)
                shares = name in sharing
            else:
                model = replica.model if replica.retired is None else None
                shares = replica.entry.share
            if shares:
                sharers.add(name)
            if model is not None:
                hosted[model] = hosted.get(model, 0) + 1
        keys: list[Key] = []
        for model, count in hosted.items():
            keys += [("model", model), ("model", model, count)]
        return keys, sharers

    def _sort(
        self,
        found: Survey,
        kind: int,
        slots: tuple[Slot, ...],
        held: Holders,
        judged: tuple[Mapping[int, str], frozenset[int]],
        sharers: set[str],
    ) -> None:
        """Tell the free devices of a kind from the others."""
        blocked, avoided = judged
        _, total_bytes, _, shared = self.kinds[kind]
        clean: Groups = {}
        for device, domain, pool, _ in slots:
            reason = blocked.get(device) if blocked else None
            if reason is None:
                holders = held.get(pool)
                if shared or (holders and sharers and sharers.issuperset(holders)):
                    free_bytes = total_bytes - (sum(holders.values()) if holders else 0)
                    found.partial.append((kind, free_bytes, device))
                    continue
                if not holders:
                    groups = clean
                    if avoided and device in avoided:
                        groups = found.avoided.setdefault(kind, {})
                    own = groups.get(domain)
                    if own is None:
                        groups[domain] = [device]
                    else:
                        own.append(device)
                    continue
                reason = "in use"
            key = (kind, reason)
            found.refused[key] = found.refused.get(key, 0) + 1
        if clean:
            found.clean[kind] = clean


def node_refuses(node: Node) -> str | None:
    """Return why nothing can be placed on the node at all, or `None`."""
    if node.lost:
        return "node lost"
    if not node.started:
        return "node stopped"
    if node.draining:
        return "node being drained"
    if node.cordoned:
        return "node cordoned"
    if node.rivals:
        return "node name used by two agents"
    if node.inventory is None:
        return (
            "node without inventory" if node.unreadable is None else "node of unreadable hardware"
        )
    return None


def full(node: Node) -> str | None:
    """Return why no further replica can be placed on the node, or `None`.

    A command lists all that runs on a node in one message, which must not grow without end.
    """
    held = node.held
    if sum(map(len, held.values())) < MOST_REPLICAS_ON_A_NODE:
        return None
    names = {name for holders in held.values() for name in holders}
    return FULL if len(names) >= MOST_REPLICAS_ON_A_NODE else None


def _judged(node: Node) -> tuple[Mapping[int, str], frozenset[int]]:
    """Return why devices are kept out, and which are better avoided."""
    if not (node.excluded or node.conditions or node.strays):
        return {}, frozenset()
    strays = (device for devices in node.strays.values() for device in devices)
    blocked = dict.fromkeys(strays, "occupied by an engine that is being stopped")
    avoided = set()
    for condition in reversed(node.conditions):
        if condition.device is not None:
            if condition.name in AVOIDED:
                avoided.add(condition.device)
            else:
                blocked[condition.device] = condition.name
    return blocked | node.excluded, frozenset(avoided)


def _count_free(found: Survey, kind: int, sizes: Mapping[str | None, int], keys: list[Key]) -> None:
    """Add the keys that say how many devices of a kind are free together."""
    clean = found.clean.get(kind)
    avoided = kind in found.avoided
    if clean is not None:
        total = _count_groups(found, kind, clean, LOOSE, sizes, keys)
        if not avoided:
            keys.append(key_of(kind, ALL, total))
    if avoided:
        total = _count_groups(found, kind, found.groups(kind, WORSE), WORSE, {}, keys)
        keys.append(key_of(kind, ALL, total))


def _count_groups(
    found: Survey,
    kind: int,
    groups: Groups,
    base: int,
    sizes: Mapping[str | None, int],
    keys: list[Key],
) -> int:
    total = 0
    for domain, devices in groups.items():
        free = len(devices)
        form = base + (LOOSE if domain is None else LINKED)
        key = key_of(kind, form + WHOLE if free == sizes.get(domain) else form, free)
        keys.append(key)
        found.domains.setdefault(key, domain)
        total += free
    whole = sizes and total == sum(sizes.values())
    keys.append(key_of(kind, base + TOTAL + (WHOLE if whole else 0), total))
    return total


def index_of(state: Cluster) -> Index:
    """Return the state's index, brought up to date."""
    index: Index | None = state.placement_index
    if index is None:
        index = vars(state)["placement_index"] = Index()
        index.stale = dict.fromkeys(state.nodes)
    index.refresh(state)
    return index


def touch(state: Cluster, node: Node) -> None:
    """Note that what the node offers has changed. Cheap where nobody ever asked."""
    index: Index | None = state.placement_index
    if index is not None:
        index.stale[node.name] = None
