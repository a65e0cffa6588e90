"""Every scenario comes out as its file says.

LLMGW_REWRITE=1 writes the files anew; what changed is then read in the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.runner import played, scenarios


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_its_file_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    outcome = played(text)
    if os.environ.get("LLMGW_REWRITE"):
        path.write_text(outcome, encoding="utf-8")
    else:
        assert outcome.splitlines() == text.splitlines()


def test_a_scenario_that_comes_out_otherwise_is_noticed() -> None:
    text = scenarios()[0].read_text(encoding="utf-8")
    told = [line for line in text.splitlines() if line.startswith("  ")]
    assert played(text.replace(told[-1], "  n1: something else")) == text
