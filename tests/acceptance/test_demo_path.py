"""The path of the demo, with a model of half a megabyte that says its own name."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.errors import EngineUnavailable
from llmgw.programs import find_program
from llmgw.settings import Settings
from tests.support.cluster import Up, running_up
from tests.support.tiny_model import answer_of, write_tiny_model

pytestmark = pytest.mark.engine

QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}]}
CATALOG = """\
models:
  - name: tiny-a
    engine: llama.cpp
    source: {model}
    class: cpu
    memory: 64MiB
"""
THE_WAY_TO_READY = (
    *(e.CatalogApplied, e.CatalogAccepted, e.ReplicaAssigned, SetAssignments),
    *(e.ReplicaStarting, e.ReplicaBecameReady),
)


@pytest.fixture
async def catalog(tmp_path: Path) -> Path:
    """A catalog of one tiny model; skips where no llama.cpp server runs."""
    try:
        await find_program("llama.cpp", Settings(node="n1", data=tmp_path))
    except EngineUnavailable as error:
        pytest.skip(str(error))
    model = write_tiny_model(tmp_path / "tiny-a.gguf")
    path = tmp_path / "catalog.yaml"
    path.write_text(CATALOG.format(model=model))
    return path


async def ctl(up: Up, *arguments: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Run `llmgw ctl … -o json` and return what it prints."""
    code, out, message = await up.run("ctl", *arguments, "-o", "json", nats_url=up.url)
    assert code == 0, message
    return json.loads(out)


async def ask(address: str) -> str:
    """Have the model at an address answer."""
    url = f"http://{address}/v1/chat/completions"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = (await client.post(url, json=QUESTION)).json()
    content: str = answer["choices"][0]["message"]["content"]
    return content


async def test_a_model_is_served_shown_replayed_stopped_and_served_again(
    catalog: Path, tmp_path: Path
) -> None:
    async with running_up(tmp_path, "--catalog", str(catalog)) as up:
        await up.event(e.ReplicaBecameReady, 60, replica="r1")
        [row] = await ctl(up, "replicas")
        assert (row["model"], row["phase"], row["attempts"]) == ("tiny-a", "ready", 1)
        assert answer_of("tiny-a") in await ask(row["address"])
        [model] = (await ctl(up, "status"))["models"]
        assert (model["wanted"], model["ready"]) == (1, 1)

        order = {type(record.body): record.sequence for record in reversed(up.records)}
        way = [order[kind] for kind in THE_WAY_TO_READY]
        assert way == sorted(way)
        shown = await ctl(up, "events")
        assert [event["sequence"] for event in shown[: len(up.records)]] == [
            record.sequence for record in up.records[: len(shown)]
        ]
        before = await ctl(up, "replay", "--to", str(way[-1] - 1))
        assert before["models"][0]["ready"] == 0
        then = await ctl(up, "replay", "--to", str(way[-1]), "--view", "replicas")
        assert [r["phase"] for r in then] == ["ready"]

        assert "is loading" in up.program.output or "answers at" in up.program.output
        assert await up.program.stop(signal.SIGINT) == 0
        assert up.tree() == []
        assert "Traceback" not in up.program.output
        last = way[-1]

    async with running_up(tmp_path, "--catalog", str(catalog)) as up:
        await up.event(e.ReplicaBecameReady, 60, replica="r1", attempt=2)
        [row] = await ctl(up, "replicas")
        assert answer_of("tiny-a") in await ask(row["address"])
        assert up.records[last - 1].sequence == last, "the log goes on"
        assert len(up.events(e.ReplicaAssigned)) == 1
        assert [event.term for event in up.events(e.ControllerElected)] == [1, 2]
        await up.assert_folds_the_same()
        assert await up.program.stop() == 0
        assert up.tree() == []
