"""A log server and subjects of its own, for each test that asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.log.embedded import EmbeddedServer, embedded_server
from tests.support.nats import Subjects, fresh_subjects


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as running:
        yield running


@pytest.fixture
def at() -> Subjects:
    return fresh_subjects()
