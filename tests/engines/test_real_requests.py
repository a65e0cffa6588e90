"""Real llama.cpp servers tell how many requests they have, so that they can be stopped between."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from llmgw.engines.llama_cpp import ENGINE
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine


def test_an_idle_server_says_that_it_has_no_request(start: StartServer, tiny_model: Path) -> None:
    server = start(tiny_model)
    server.wait_until_ready()
    counts = ENGINE.request_counts
    assert counts is not None
    answer = httpx.get(f"{server.url}{counts.path}", trust_env=False, timeout=30)
    assert counts.count(answer.text) == 0
