"""What the acceptance tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A nats-server without controllers and agents yet; its log must fold the same at the end."""
    async with running_cluster(tmp_path) as running:
        yield running
        await running.assert_folds_the_same()
