"""The nodes: whether they are there, what they have, and whether they did what they were told."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from llmgw.core.cluster import Cluster, Node
from llmgw.core.watch import steady_seconds
from llmgw.views.conditions import ConditionRow, conditions
from llmgw.views.shared import NodeState, Row, as_time, node_state

CommandState = Literal["due", "waiting", "refused", "done"]
"""`due`: the controller has yet to command what changed; `waiting`: the agent has yet to answer."""


class NodeRow(Row, frozen=True, kw_only=True):
    """One node. `cards` and `devices` count by class; `excluded` is what cannot be placed on.

    `cordoned`: the operator wants nothing more placed there; `draining`: nor anything left.
    `conditions` says in short what `conditions_explained` says with meaning and advice.
    `revision` counts the changes of what should run there; `command` says how far the newest
    one came, `refused` why the agent would not act on it. `heard` is its last event in the log.
    """

    name: str
    state: NodeState
    address: str | None = None
    backend: str | None = None
    fallback_from: str | None = None
    driver_version: str | None = None
    agent_version: str | None = None
    simulated: bool = False
    cordoned: bool = False
    draining: bool = False
    labels: dict[str, str] = {}
    cards: dict[str, int]
    devices: dict[str, int]
    excluded: int
    conditions: tuple[str, ...] = ()
    conditions_explained: tuple[ConditionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    revision: int
    command: CommandState | None = None
    refused: str | None = None
    heard: str | None = None


def nodes(state: Cluster) -> list[NodeRow]:
    """Return every node that the log knows, by name."""
    on_node: dict[str, list[str]] = {}
    for replica in state.replicas.values():
        for name in {part.node for part in replica.parts}:
            on_node.setdefault(name, []).append(replica.name)
    return [_row(state.nodes[name], tuple(on_node.get(name, ()))) for name in sorted(state.nodes)]


def _row(node: Node, replicas: tuple[str, ...]) -> NodeRow:
    inventory, explained = node.inventory, conditions(node)
    return NodeRow(
        name=node.name,
        state=node_state(node),
        address=node.address or None,
        backend=inventory.backend if inventory else None,
        fallback_from=inventory.fallback_from if inventory else None,
        driver_version=inventory.driver_version if inventory else None,
        agent_version=node.agent_version or None,
        simulated=node.simulated,
        cordoned=node.cordoned,
        draining=node.draining,
        labels=dict(sorted(node.labels.items())),
        cards=dict(Counter(card.card_class for card in inventory.cards)) if inventory else {},
        devices=dict(Counter(device.device_class for device in node.devices.values())),
        excluded=len(inventory.excluded) if inventory else 0,
        conditions=tuple(map(str, explained)),
        conditions_explained=explained,
        warnings=_warnings(node),
        replicas=replicas,
        strays=tuple(node.strays),
        revision=node.revision,
        command=_command(node),
        refused=node.refused,
        heard=as_time(node.heard_ns),
    )


def _command(node: Node) -> CommandState | None:
    if node.revision > node.commanded:
        return "due"
    if node.commanded == 0:
        return None
    if node.commanded > node.ended:
        return "waiting"
    return "refused" if node.refused else "done"


def _warnings(node: Node) -> tuple[str, ...]:
    found = list(node.inventory.warnings) if node.inventory is not None else []
    if node.unreadable is not None:
        found.insert(0, f"hardware cannot be read: {node.unreadable}")
    if node.rivals:
        found.insert(0, "two agents report under this name: name one of them with LLMGW_NODE")
    steady = steady_seconds(len(node.losses))
    if node.lost and steady:
        often = f"lost {len(node.losses)} times of late"
        found.insert(0, f"{often}: it counts as back once it is heard for {steady:g} s")
    return tuple(found)
