"""One agent under one node's name: a claim on the name, held in the log's server.

A second agent of the same name would have the node's engines started twice. So an agent follows no
command and says nothing before it holds its name, and starts nothing while another one does. Who
claims is told by a lasting id: an agent that comes back, killed or not, holds what it held. What it
cannot ask for it does not lose: without an answer from the server everything stays as it was.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import anyio
import structlog

from llmgw.core.stimuli import NameTaken
from llmgw.errors import LlmgwError
from llmgw.log.base import Log
from llmgw.log.lease import Lease, boot_seconds

LEASE_SECONDS = 30.0
"""How long a name stays that of an agent which is gone."""
ASKS = 3
"""So often in vain a claim is asked for, before an agent goes to work without."""

log = structlog.get_logger()


class Name:
    """The name of one node, and this agent's claim on it.

    `identity` is what the agent is known by for as long as its data folder lasts; `report` takes
    inputs for the brain.
    """

    def __init__(self, node: str, identity: str, report: Callable[[NameTaken], None]) -> None:
        self._node = node
        self._identity = identity
        self._report = report
        self._settled = anyio.Event()
        self._holder: str | None = None
        self._failures = 0

    async def settled(self) -> None:
        """Wait until the name is this agent's, or nobody can say whose it is."""
        await self._settled.wait()

    async def hold(
        self, log_of_cluster: Log, subject: str, clock: Callable[[], float] = boot_seconds
    ) -> None:
        """Claim the name, and go on claiming it, until cancelled."""
        lease = self.lease(log_of_cluster, subject, clock)
        while True:
            await self.claim(lease)
            await anyio.sleep(LEASE_SECONDS / 3)

    def lease(self, log_of_cluster: Log, subject: str, clock: Callable[[], float]) -> Lease:
        """Return the lease that the claim is made with."""
        return Lease(
            log_of_cluster,
            subject,
            lease_seconds=LEASE_SECONDS,
            clock=clock,
            nonce=self._identity,
        )

    async def claim(self, lease: Lease) -> None:
        """Ask for the name once, and act upon the answer if there is one."""
        try:
            ours = await lease.renew() or await lease.acquire(self._holder_name())
        except LlmgwError as error:
            self._failures += 1
            if self._failures >= ASKS and not self._settled.is_set():
                log.warning("name_not_claimed", node=self._node, reason=str(error))
                self._settled.set()
            return
        self._failures = 0
        self._tell(None if ours else lease.leader or "another agent")

    def _holder_name(self) -> str:
        """For people: which machine it is, and what tells it from others of that name."""
        return f"{socket.gethostname()} ({self._identity})"

    def _tell(self, holder: str | None) -> None:
        if holder is None:
            self._settled.set()
        if holder == self._holder:
            return
        self._holder = holder
        if holder is None:
            log.info("name_is_ours", node=self._node)
        else:
            log.error(
                "name_taken",
                node=self._node,
                by=holder,
                advice="stop one of the two agents, or give this one another name: LLMGW_NODE",
                seconds_until_free=LEASE_SECONDS,
            )
        self._report(NameTaken(holder))
