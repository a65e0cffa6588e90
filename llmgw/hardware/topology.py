"""Reads `nvidia-smi topo -m`: which cards share NVLink, and the memory node that a card is near.

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
_MOST_CARDS = 256


class Topology(msgspec.Struct, frozen=True):
    """`peers` maps a card's index to the cards it has NVLink to; `numa` to its memory node."""

    peers: dict[int, frozenset[int]] = {}
    numa: dict[int, int] = {}


def parse_topology(text: str) -> Topology | None:
    """The matrix in a text, or `None` where there is none (an error message, one garbled)."""
    lines = [line.rstrip("\n") for line in _ESCAPE.sub("", text).splitlines()]
    start = next((n for n, line in enumerate(lines) if _CARD.match(line.strip())), None)
    if start is None:
        return None
    columns = _COLUMN.findall(lines[start])
    rows = [_cells(line) for line in lines[start + 1 :] if _CARD.match(line.strip())]
    links: dict[int, set[int]] = {}
    numa: dict[int, int] = {}
    for name, *cells in rows[:_MOST_CARDS]:
        index = _card(name)
        if index is None:
            continue
        named = dict(zip(columns, (cell.strip() for cell in cells), strict=False))
        links[index] = {
            peer
            for column, cell in named.items()
            if (peer := _card(column)) is not None and _LINK.fullmatch(cell)
        }
        near = named.get("NUMA Affinity", "")
        if re.fullmatch(r"[0-9]{1,4}", near):
            numa[index] = int(near)
    return Topology(_both_ends(links), numa) if links else None


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


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def _card(text: str) -> int | None:
    match = _CARD.fullmatch(text.strip())
    return int(match[1]) if match else None
