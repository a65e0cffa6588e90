"""Leadership: one holder at a time, by compare-and-set on one subject of a log.

No clock of one machine is compared with that of another. A lease that somebody else holds is
free once its record has not changed for a lease's length on *our* clock, during which we could
look; our own counts from the moment *before* we asked for it. A holder that was paused finds
`held` false when it wakes, and the next compare-and-set tells it who leads. One that could not
renew in time because the log was away keeps the lease if nobody else took it: whoever waits was
cut off as well, and waits for another lease's length; unless it could hear the holder otherwise
than through the log, and has heard nothing. The lease only chooses who may try: what makes two
leaders harmless is the fence on every append.

An answer that was lost leaves open whether the lease was taken or renewed. It is asked for again,
which finds that out; and counts from when it was asked for first, since others saw it from then on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from llmgw.errors import AppendRefused, LogUnreachable
from llmgw.log.base import Log

T = TypeVar("T")

LEASE_SECONDS = 2.0
_SAFETY = 0.8
_PAUSES = 6
"""So often a lease is renewed, or looked at by who waits for it, during its length."""


def _unheard(_holder: str) -> float:
    return 0.0


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

    Call `acquire` every `pause_seconds` until it returns true, then `renew` as often. All three
    calls take half a lease at most, and may raise `LogUnreachable`; the lease then simply runs on
    towards its end, and may still be renewed after it. Contenders with the same `nonce` are one:
    what any of them held is free for the next. `silence` tells for how many seconds a holder could
    have been heard otherwise than through the log, and was not; 0 where that is not known.
    """

    def __init__(
        self,
        log: Log,
        subject: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = boot_seconds,
        nonce: str | None = None,
        silence: Callable[[str], float] = _unheard,
    ) -> None:
        self._log = log
        self._subject = subject
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._nonce = nonce or uuid.uuid4().hex
        self._silence = silence
        self._first_asked: tuple[tuple[str, int], float] | None = None
        self._heard: tuple[tuple[str, int], float] | None = None
        self._held_sequence: int | None = None
        self._held_until = float("-inf")
        self._seen_sequence = -1
        self._seen_at = self._looked_at = float("-inf")
        self._seen: _Claim | None = None

    @property
    def pause_seconds(self) -> float:
        """How long to wait between two calls."""
        return self._lease_seconds / _PAUSES

    @property
    def held(self) -> bool:
        """Whether the lease is ours now, with a fifth of its length to spare."""
        return self._held_sequence is not None and self._clock() < self._held_until

    @property
    def leader(self) -> str | None:
        """The holder that was seen last, even if its lease may have run out; `None`: nobody."""
        return (self._seen.holder or None) if self._seen else None

    @property
    def sequence(self) -> int:
        """The place of our newest record in its stream, for others to `hear` of; 0: none."""
        return self._held_sequence or 0

    def hear(self, holder: str, sequence: int) -> None:
        """Take note that a holder has its record at this place: as if it had been looked at now."""
        claim = (holder, sequence)
        if self._heard is None or self._heard[0] != claim:
            self._heard = (claim, self._clock())

    async def acquire(self, holder: str) -> bool:
        """Take the lease if it is free, once, and tell whether it is ours."""
        await self._look()
        if self._seen is not None and not self._is_free(self._seen):
            return False
        ours = await self._claim(holder, expected=max(self._seen_sequence, 0))
        return ours and (self.held or await self.renew())

    async def renew(self) -> bool:
        """Extend the lease, even one that ran out if nobody took it; false when it is not ours."""
        ours = await self._renew_once()
        if ours and not self.held:  # What was asked long ago had come through after all.
            ours = await self._renew_once()
        return ours

    async def _renew_once(self) -> bool:
        if self._held_sequence is None or self._seen is None:
            return False
        return await self._claim(self._seen.holder, expected=self._held_sequence)

    async def release(self) -> None:
        """Give the lease up, so that the next holder need not wait. Not held: nothing happens."""
        if self._held_sequence is not None:
            await self._claim("", expected=self._held_sequence)
            self._drop()

    async def _look(self) -> None:
        """Read the record, and start its time anew if it changed or we could not look meanwhile."""
        message = await self._patiently(self._log.last(self._subject))
        now = self._clock()
        was_blind = self._seen is not None and now - self._looked_at > self._seen.lease_seconds
        self._looked_at = now
        sequence = message.sequence if message else 0
        if sequence != self._seen_sequence:
            self._seen_sequence = sequence
            self._seen = _decode(message.payload) if message else None
            self._seen_at = now if self._seen is None else self._known_since(self._seen, now)
        if was_blind and self._seen is not None and not self._is_gone(self._seen):
            self._seen_at = now

    def _is_gone(self, claim: _Claim) -> bool:
        """Whether a holder that may have been as blind as we were could not be heard either."""
        return self._silence(claim.holder) >= claim.lease_seconds

    def _known_since(self, claim: _Claim, now: float) -> float:
        """Return since when it is known that the record which was just read is there."""
        if self._heard is not None and self._heard[0] == (claim.holder, self._seen_sequence):
            return self._heard[1]
        return now

    def _is_free(self, claim: _Claim) -> bool:
        if not claim.holder or claim.nonce == self._nonce:
            return True
        return self._clock() - self._seen_at >= claim.lease_seconds

    async def _claim(self, holder: str, expected: int) -> bool:
        asked_at = self._asked_first(holder, expected)
        claim = _Claim(holder, self._nonce, self._lease_seconds)
        try:
            sequence = await self._patiently(
                self._log.append(
                    self._subject,
                    msgspec.json.encode(claim),
                    message_id=f"{self._nonce}-{expected}-{holder}",
                    expected_last=expected,
                    fence=self._subject,
                )
            )
        except AppendRefused:
            self._drop()
            return False
        self._held_sequence = self._seen_sequence = sequence
        self._held_until = asked_at + _SAFETY * self._lease_seconds
        self._seen, self._seen_at = claim, asked_at
        return True

    def _asked_first(self, holder: str, expected: int) -> float:
        """Return when this very claim was asked for first: the log may have it since then."""
        claim = (holder, expected)
        if self._first_asked is None or self._first_asked[0] != claim:
            self._first_asked = (claim, self._clock())
        return self._first_asked[1]

    async def _patiently(self, answer: Awaitable[T]) -> T:
        """Wait for an answer for half a lease: asking again finds what was done after all."""
        limit_seconds = self._lease_seconds / 2
        try:
            async with asyncio.timeout(limit_seconds):
                return await answer
        except TimeoutError:
            raise LogUnreachable(
                f"the lease {self._subject} was not answered for within {limit_seconds:g} s"
            ) from None

    def _drop(self) -> None:
        self._held_sequence = None
        self._held_until = float("-inf")


def _decode(payload: bytes) -> _Claim | None:
    """Read a claim. What is not one was left by nobody who could hold the lease."""
    try:
        return msgspec.json.decode(payload, type=_Claim)
    except msgspec.DecodeError:
        return None
