"""Real llama.cpp servers tell of their work: how many requests they have, and each step."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from llmgw.engines.llama_cpp import ENGINE
from llmgw.probing import hangs, look, token_status
from tests.engines.conftest import StartServer

pytestmark = pytest.mark.engine


def test_an_idle_server_says_that_it_has_no_request(start: StartServer, tiny_model: Path) -> None:
    server = start(tiny_model)
    server.wait_until_ready()
    counts = ENGINE.request_counts
    assert counts is not None
    answer = httpx.get(f"{server.url}{counts.path}", trust_env=False, timeout=30)
    assert counts.count(answer.text) == 0


async def test_one_token_is_a_step_that_it_tells_of(start: StartServer, tiny_model: Path) -> None:
    server = start(tiny_model)
    server.wait_until_ready()
    port, counts = urlsplit(server.url).port, ENGINE.request_counts
    assert port is not None
    assert counts is not None
    before = await look("127.0.0.1", port, counts, None, 30.0)
    assert await token_status("127.0.0.1", port, "tiny-a", 30.0) == 200
    after = await look("127.0.0.1", port, counts, None, 30.0)
    assert before is not None
    assert after is not None
    assert before.mark != after.mark
    assert not hangs(before, after)
