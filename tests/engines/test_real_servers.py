"""The engine module against real llama.cpp servers: they serve, they stop, they say why not."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from llmgw.engines.llama_cpp import ENGINE
from tests.engines.conftest import StartServer
from tests.support.tiny_model import answer_of, write_tiny_model

pytestmark = pytest.mark.engine

QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}]}


def test_it_serves_under_its_name_and_ends_cleanly(start: StartServer, tiny_model: Path) -> None:
    server = start(tiny_model)
    server.wait_until_ready()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
        models = client.get("/v1/models").json()
        answer = client.post("/v1/chat/completions", json=QUESTION).json()
        metrics = client.get("/metrics")
    assert [model["id"] for model in models["data"]] == ["tiny-a"]
    assert answer_of("tiny-a") in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert metrics.status_code == 200
    assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", trust_env=False)


def test_each_model_answers_with_its_own_name(start: StartServer, tmp_path: Path) -> None:
    server = start(write_tiny_model(tmp_path / "b.gguf", "tiny-b", words=3))
    server.wait_until_ready()
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json=QUESTION, trust_env=False, timeout=30
    ).json()
    content = answer["choices"][0]["message"]["content"]
    assert content.strip() == "I am tiny-b, word1 word2 word3"


def test_a_missing_model_file_is_explained(start: StartServer, tmp_path: Path) -> None:
    server = start(tmp_path / "none.gguf")
    assert server.process.wait(timeout=30) == 1
    known = ENGINE.explain(server.said())
    assert known is not None
    assert known.meaning == "the model file is not there"


@pytest.mark.parametrize("kept_bytes", [0, 100, 200_000])
def test_a_truncated_model_file_is_explained(
    start: StartServer, tiny_model: Path, tmp_path: Path, kept_bytes: int
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_model.read_bytes()[:kept_bytes])
    server = start(cut)
    assert server.process.wait(timeout=30) == 1
    known = ENGINE.explain(server.said())
    assert known is not None, server.said()
    assert "broke off" in known.meaning


def test_a_port_in_use_is_explained(start: StartServer, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = start(tiny_model, port=listener.getsockname()[1])
        assert server.process.wait(timeout=30) == 1
    known = ENGINE.explain(server.said())
    assert known is not None
    assert "listens on the port" in known.meaning


def test_an_unknown_argument_is_explained(start: StartServer, tiny_model: Path) -> None:
    server = start(tiny_model, args=("--no-such-argument",))
    assert server.process.wait(timeout=30) == 1
    known = ENGINE.explain(server.said())
    assert known is not None
    assert "does not know an argument" in known.meaning


def test_a_server_killed_outright_leaves_its_port_free(
    start: StartServer, tiny_model: Path, free_port: int
) -> None:
    first = start(tiny_model)
    first.wait_until_ready()
    first.kill()
    second = start(tiny_model)
    second.wait_until_ready()
    assert second.url == first.url
