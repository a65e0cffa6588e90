"""Leadership: one holder at a time, by compare-and-set on one subject of a log.

No clock of one machine is compared with that of another. A lease that somebody else holds is
free once its record has not changed for a lease's length on *our* clock; our own counts from
the moment *before* we asked for it. A holder that was paused finds `held` false when it wakes,
and the next compare-and-set tells it who leads. The lease only chooses who may try: what makes
two leaders harmless is the fence on every append.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import msgspec

from llmgw.errors import AppendRefused
from llmgw.log.base import Log

_SAFETY = 0.8


def boot_seconds() -> float:
    """Return a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _Claim(msgspec.Struct, frozen=True):
    """What the subject holds. `nonce` tells two lives of one holder apart; no holder: released."""

    holder: str
    nonce: str
    lease_seconds: float


class Lease:
    """One contender for the lease on `subject` (see `JetStreamLog.lease_subject`).

    Call `acquire` every third of `lease_seconds` until it returns true, then `renew` as often.
    All three calls may raise `LogUnreachable`; the lease then simply runs on towards its end.
    """

    def __init__(
        self,
        log: Log,
        subject: str,
        *,
        lease_seconds: float = 15.0,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._log = log
        self._subject = subject
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._nonce = uuid.uuid4().hex
        self._held_sequence: int | None = None
        self._held_until = float("-inf")
        self._seen_sequence = -1
        self._seen_at = 0.0
        self._seen: _Claim | None = None

    @property
    def held(self) -> bool:
        """Whether the lease is ours now, with a fifth of its length to spare."""
        return self._held_sequence is not None and self._clock() < self._held_until

    @property
    def leader(self) -> str | None:
        """The holder that was seen last, even if its lease may have run out; `None`: nobody."""
        return (self._seen.holder or None) if self._seen else None

    async def acquire(self, holder: str) -> bool:
        """Take the lease if it is free, once, and tell whether it is ours."""
        await self._look()
        if self._seen is not None and not self._is_free(self._seen):
            return False
        return await self._claim(holder, expected=max(self._seen_sequence, 0))

    async def renew(self) -> bool:
        """Extend the lease; false when somebody else has taken it, or it was not held."""
        if self._held_sequence is None or self._seen is None:
            return False
        return await self._claim(self._seen.holder, expected=self._held_sequence)

    async def release(self) -> None:
        """Give the lease up, so that the next holder need not wait. Not held: nothing happens."""
        if self._held_sequence is not None:
            await self._claim("", expected=self._held_sequence)
            self._drop()

    async def _look(self) -> None:
        """Read the record, and start its time anew if it changed."""
        message = await self._log.last(self._subject)
        sequence = message.sequence if message else 0
        if sequence != self._seen_sequence:
            self._seen_sequence = sequence
            self._seen_at = self._clock()
            self._seen = _decode(message.payload) if message else None

    def _is_free(self, claim: _Claim) -> bool:
        if not claim.holder or claim.nonce == self._nonce:
            return True
        return self._clock() - self._seen_at >= claim.lease_seconds

    async def _claim(self, holder: str, expected: int) -> bool:
        asked_at = self._clock()
        claim = _Claim(holder, self._nonce, self._lease_seconds)
        try:
            sequence = await self._log.append(
                self._subject,
                msgspec.json.encode(claim),
                message_id=f"{self._nonce}-{expected}-{holder}",
                expected_last=expected,
                fence=self._subject,
            )
        except AppendRefused:
            self._drop()
            return False
        self._held_sequence = self._seen_sequence = sequence
        self._held_until = asked_at + _SAFETY * self._lease_seconds
        self._seen, self._seen_at = claim, asked_at
        return True

    def _drop(self) -> None:
        self._held_sequence = None
        self._held_until = float("-inf")


def _decode(payload: bytes) -> _Claim | None:
    """Read a claim. What is not one was left by nobody who could hold the lease."""
    try:
        return msgspec.json.decode(payload, type=_Claim)
    except msgspec.DecodeError:
        return None
