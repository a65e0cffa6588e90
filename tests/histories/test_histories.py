"""Logs that were recorded once: whatever the code becomes, they fold to what they said then.

Each `NAME.jsonl` has one message of the log a line, and `NAME.view.json` what a reader was shown
when it was recorded. They are never written anew: a log in use is not either. A change of the
state's shape must leave these views as they are; a change of an event needs an upcast.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.testing.builders import tell
from llmgw.testing.invariants import check, restored, snapshot

FOLDER = Path(__file__).parent
NEWER = "written_by_a_newer_version"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def records(name: str) -> list[Record]:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        wire.decode(m["sequence"], m["time_ns"], m["subject"], m["payload"].encode())
        for m in map(json.loads, lines)
    ]


def folded(found: list[Record]) -> Cluster:
    state = Cluster()
    for record in found:
        apply(state, record)
        check(state)
    return state


def view(state: Cluster) -> dict[str, Any]:
    """What a reader notices of a state, in words that do not follow its shape."""
    return {
        "sequence": state.sequence,
        "term": state.term,
        "leader": state.leader,
        "needs_upgrade": state.needs_upgrade,
        "waiting_catalog": state.pending is not None,
        "counts": {
            "duplicates": state.duplicates,
            "unreadable": state.unreadable,
            "unknown": state.unknown,
            "void": state.void,
        },
        "models": {
            model.entry.name: f"{model.entry.replicas} wanted, {model.missing} missing"
            for model in state.models.values()
        },
        "nodes": {
            node.name: {
                "state": "lost" if node.lost else "up" if node.started else "stopped",
                "boot": node.boot_id,
                "devices": [device.uuid for device in node.devices.values()],
                "command": f"revision {node.commanded} of {node.revision}, ended {node.ended}",
            }
            for node in state.nodes.values()
        },
        "replicas": {
            replica.name: {
                "model": replica.model,
                "retired": replica.retired,
                "parts": [
                    {
                        "node": part.node,
                        "devices": [grant.uuid for grant in part.grants],
                        "phase": part.phase,
                        "attempt": part.attempt,
                    }
                    for part in replica.parts
                ],
            }
            for replica in state.replicas.values()
        },
        "decides": [tell(intention) for intention in decide(state)],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_folds_to_what_it_said_then(name: str) -> None:
    told = json.loads((FOLDER / f"{name}.view.json").read_text(encoding="utf-8"))
    assert view(folded(records(name))) == told


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_history_folds_alike_through_a_snapshot_anywhere(name: str) -> None:
    found = records(name)
    whole = snapshot(folded(found))
    for cut in range(0, len(found), 7):
        state = restored(snapshot(folded(found[:cut])))
        for record in found[cut:]:
            apply(state, record)
        assert snapshot(state) == whole


def test_a_history_of_a_newer_version_is_viewed_and_not_decided_on() -> None:
    found = records(NEWER)
    before = folded(found[:-2])
    state = folded(found)
    assert state.needs_upgrade == "node.started version 2"
    assert decide(state) == []
    assert state.pending is not None, "what came after it is seen"
    assert state.replicas == before.replicas
    assert decide(folded([r for r in found if r.sequence != found[-2].sequence])) != []
