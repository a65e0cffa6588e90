"""Helpers of this folder explain their failed assertions too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.core.agent")
