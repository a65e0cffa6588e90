"""A log server, subjects of its own, and a cluster, for each test that asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.log.embedded import EmbeddedServer, embedded_server
from tests.support.cluster import Cluster, running_cluster
from tests.support.nats import Subjects, fresh_subjects


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as running:
        yield running


@pytest.fixture
def at() -> Subjects:
    return fresh_subjects()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A nats-server without controllers and agents yet; its log must fold the same at the end."""
    async with running_cluster(tmp_path) as running:
        yield running
        await running.assert_folds_the_same()
