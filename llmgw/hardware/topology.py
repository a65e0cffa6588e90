"""Reads `nvidia-smi topo -m`: which cards share NVLink, and what part of the machine each is near.

Pure. A tensor-parallel group needs every pair linked, so a domain is a clique of the link graph,
not a connected part of it: the eight V100 of a hybrid mesh are two domains of four.
"""

from __future__ import annotations

import re

import msgspec

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CARD = re.compile(r"GPU([0-9]{1,3})", re.ASCII)
_COLUMN = re.compile(r"(?:CPU|NUMA) Affinity|GPU NUMA ID|\S+")
_LINK = re.compile(r"NV[0-9L]+", re.ASCII)
_NODE = re.compile(r"[0-9]{1,4}", re.ASCII)
_PROCESSORS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*", re.ASCII)
_MOST_CARDS = 256


class Topology(msgspec.Struct, frozen=True):
    """What is known of each card, by its index.

    `peers` are the cards that it has NVLink to, `numa` is the memory node that it is near, `cpus`
    the processors (`0-23,48-71`), `down` the links of it that are not active, which NVML alone
    tells.
    """

    peers: dict[int, frozenset[int]] = {}
    numa: dict[int, int] = {}
    cpus: dict[int, str] = {}
    down: dict[int, tuple[int, ...]] = {}


def parse_topology(text: str) -> Topology | None:
    """The matrix in a text, or `None` where there is none (an error message, one garbled)."""
    lines = [line.rstrip("\n") for line in _ESCAPE.sub("", text).splitlines()]
    start = next((n for n, line in enumerate(lines) if _CARD.match(line.strip())), None)
    if start is None:
        return None
    columns = _COLUMN.findall(lines[start])
    rows = [_cells(line, columns) for line in lines[start + 1 :] if _CARD.match(line.strip())]
    cards = {i: row for name, row in rows[:_MOST_CARDS] if (i := _card(name)) is not None}
    if not cards:
        return None
    numa = {i: row.get("NUMA Affinity", "") for i, row in cards.items()}
    cpus = {i: row.get("CPU Affinity", "") for i, row in cards.items()}
    return Topology(
        peers=_both_ends({i: _linked(row) for i, row in cards.items()}),
        numa={i: int(node) for i, node in numa.items() if _NODE.fullmatch(node)},
        cpus={i: near for i, near in cpus.items() if _PROCESSORS.fullmatch(near)},
    )


def cliques(peers: dict[int, frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    """The cards in groups of which every pair is linked: the largest first, then what is left.

    Groups of one are left out. Equal sizes go by the lowest index, so the answer is stable.
    """
    left = set(peers)
    groups = []
    while left:
        group = _largest_clique({card: peers[card] & left for card in left})
        if len(group) < 2:
            break
        groups.append(group)
        left -= set(group)
    return tuple(sorted(groups))


def _largest_clique(peers: dict[int, frozenset[int]]) -> tuple[int, ...]:
    """One of the largest cliques, grown from each card over its peers in order."""
    best: tuple[int, ...] = ()
    most = 1 + max(len(found) for found in peers.values())
    for first in sorted(peers):
        for second in sorted(peers[first]):
            group = [first, second]
            common = peers[first] & peers[second]
            while common:
                nearest = min(common, key=lambda card: (-len(peers[card] & common), card))
                group.append(nearest)
                common &= peers[nearest]
            if len(group) > len(best):
                best = tuple(sorted(group))
            if len(best) == most:
                return best
    return best


def _both_ends(links: dict[int, set[int]]) -> dict[int, frozenset[int]]:
    return {
        card: frozenset(p for p in found if p != card and card in links.get(p, ()))
        for card, found in links.items()
    }


def _linked(row: dict[str, str]) -> set[int]:
    return {
        peer
        for column, cell in row.items()
        if (peer := _card(column)) is not None and _LINK.fullmatch(cell)
    }


def _cells(line: str, columns: list[str]) -> tuple[str, dict[str, str]]:
    """A row's name, and its cells by column.

    Without tabs an empty cell (an affinity, in a container) shifts those behind it: then only the
    columns of cards and of other devices, which are never empty, are what they seem to be.
    """
    tabbed = "\t" in line
    name, *cells = line.split("\t") if tabbed else line.split()
    if not tabbed and len(cells) != len(columns):
        columns = [column for column in columns if " " not in column]
    return name, dict(zip(columns, (cell.strip() for cell in cells), strict=False))


def _card(text: str) -> int | None:
    match = _CARD.fullmatch(text.strip())
    return int(match[1]) if match else None
