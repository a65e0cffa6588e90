"""The guards that every test stands under do notice what they are there for."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blockbuster import BlockingError

from llmgw import settings
from tests.support import leftovers, ports
from tests.support.wait import until, until_sync


async def test_a_blocking_read_in_async_code_of_llmgw_is_caught(tmp_path: Path) -> None:
    (tmp_path / "llmgw.toml").write_text("")
    with pytest.raises(BlockingError, match="read"):
        settings.load(env={}, folder=tmp_path)


def test_an_orphan_of_the_run_is_found_and_ended() -> None:
    shell = "sleep 60 >/dev/null & echo $!"
    done = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(done.stdout)
    mark = os.environ["TEST_RUN_OF_LLMGW"]
    found = until_sync(
        lambda: [one for one in leftovers.leftovers(mark) if one == (pid, "sleep 60")],
        what="the orphan is found",
    )
    leftovers.end(found)
    until_sync(
        lambda: all(one.pid != pid for one in leftovers.leftovers(mark)), what="the orphan is gone"
    )


class Owner:
    """Somebody who needs ports."""


def test_ports_are_their_owner_s_alone_in_every_process_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner: Owner | None = Owner()
    own = ports.claim_ports(owner)
    script = (
        "import itertools; from tests.support import ports; "
        f"ports._next = itertools.cycle([{own[0] - 1}, *ports._FIRSTS]); "
        "owner = type('Owner', (), {})(); print(ports.claim_ports(owner)[0])"
    )
    others = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(others.stdout) not in own
    monkeypatch.setattr(ports, "_next", itertools.repeat(own[0] - 1))
    with pytest.raises(AssertionError, match="other tests have all the ports"):
        ports.claim_ports(Owner())
    owner = None
    assert ports.claim_ports(Owner()) == own


async def test_waiting_ends_with_the_first_true_value_and_says_what_never_came() -> None:
    numbers = iter(range(3))
    assert await until(lambda: next(numbers)) == 1
    with pytest.raises(AssertionError, match=r"after 0\.1 s: pigs fly \(last value: None\)"):
        await until(lambda: None, deadline_seconds=0.1, what="pigs fly")
    with pytest.raises(AssertionError, match="pigs fly"):
        until_sync(lambda: None, deadline_seconds=0.1, what="pigs fly")
