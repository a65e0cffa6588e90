"""NVLink domains: which cards are a group in which every pair is linked at full speed.

Pure; `assemble` calls it. A fabric with a cluster's UUID is a domain across nodes, named
`<cluster uuid>/<clique>`. A domain inside a node is named `node:<node>/<lowest card>`, from the
topology where it is known, else from a completed fabric, which links all of its cards.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from llmgw.hardware.reports import ReportedCard
from llmgw.hardware.topology import Topology, cliques
from llmgw.hardware.types import Card, local_domain, spans_nodes

_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def with_domains(
    node: str, reported: Sequence[ReportedCard], topology: Topology | None
) -> tuple[list[Card], list[str]]:
    """The cards with domain, peers and what they are near where known, and warnings.

    A lost card and a card in MIG mode have no domain: the one is not there, and instances of the
    other cannot use NVLink.
    """
    warnings = [
        f"the NVLink fabric of card {entry.card.index} is completed with the status"
        f" {entry.fabric_status}: it is not used as a domain"
        for entry in reported
        if _completed(entry) and not _succeeded(entry)
    ]
    usable = [r for r in reported if r.trouble != "lost" and r.card.mig_mode != "enabled"]
    domains = _fabric_domains(node, usable)
    if topology is not None:
        topology = _among(topology, {entry.card.index for entry in usable})
        domains = {index: name for index, name in domains.items() if spans_nodes(name)}
        domains = _topology_domains(node, topology) | domains
    return [_placed(entry.card, domains, topology) for entry in reported], warnings


def _placed(card: Card, domains: dict[int, str], topology: Topology | None) -> Card:
    card = replace(card, nvlink_domain=domains.get(card.index))
    if topology is None:
        return card
    peers = topology.peers.get(card.index)
    return replace(
        card,
        nvlink_peers=None if peers is None else tuple(sorted(peers)),
        nvlink_links_down=topology.down.get(card.index),
        numa_node=topology.numa.get(card.index),
        cpu_affinity=topology.cpus.get(card.index),
    )


def _completed(reported: ReportedCard) -> bool:
    fabric = reported.card.fabric
    return fabric is not None and (fabric.state or "").lower() == "completed"


def _succeeded(reported: ReportedCard) -> bool:
    return (reported.fabric_status or "success").lower() == "success"


def _fabric_domains(node: str, reported: Sequence[ReportedCard]) -> dict[int, str]:
    """Domains by fabric. One card of a fabric without cluster is alone, and so in no domain."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    for entry in reported:
        fabric = entry.card.fabric
        if fabric and fabric.cluster_uuid and _completed(entry) and _succeeded(entry):
            key = (fabric.cluster_uuid.lower(), fabric.clique)
            groups.setdefault(key, []).append(entry.card.index)
    domains: dict[int, str] = {}
    for (cluster, clique), cards in groups.items():
        if cluster != _NO_CLUSTER and clique is not None:
            domains |= dict.fromkeys(cards, f"{cluster}/{clique}")
        elif cluster == _NO_CLUSTER and len(cards) > 1:
            domains |= dict.fromkeys(cards, local_domain(node, min(cards)))
    return domains


def _among(topology: Topology, usable: set[int]) -> Topology:
    """The topology with the links between usable cards alone."""
    peers = {card: found & usable for card, found in topology.peers.items() if card in usable}
    return replace(topology, peers=peers)


def _topology_domains(node: str, topology: Topology) -> dict[int, str]:
    groups = cliques(topology.peers)
    return {card: local_domain(node, min(group)) for group in groups for card in group}
