"""Blocks of ports for the engines of a test, each of one test at a time on the whole machine.

Tests run in several workers, and several runs may share a machine. An engine that finds its port
taken is started on another one, which is a failure more than the test has counted. The ports lie
below those that the kernel hands out for outgoing connections.
"""

from __future__ import annotations

import itertools
import socket
import weakref

SIZE = 20
_FIRSTS = range(20_000, 32_000, SIZE + 1)
_next = itertools.cycle(_FIRSTS)
"""Not the same again at once: what a test ended may still be on its way out."""


def claim_ports(owner: object) -> range:
    """Return ports that nobody else claims for as long as `owner` lives.

    Whoever is bound to the port before them has them; the kernel lets go of it with the process.
    """
    for first in itertools.islice(_next, len(_FIRSTS)):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            weakref.finalize(owner, claim.close)
            return range(first + 1, first + 1 + SIZE)
    raise AssertionError("other tests have all the ports: is something left of an earlier run?")
