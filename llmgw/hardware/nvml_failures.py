"""Why NVML cannot be asked, and what to do about it.

Pure: a refusal or the end of a probe in, a reason in a few words and an advice out. `nvml` makes
errors of them, and `discover` says the reason where it falls back to nvidia-smi.
"""

from __future__ import annotations

import msgspec

from llmgw.errors import BackendUnavailable
from llmgw.hardware.nvml_record import Record, Refusal
from llmgw.hardware.nvml_report import unreachable_of
from llmgw.hardware.smi_failures import meaning_of
from llmgw.hardware.types import MISMATCH

SONAME = "libnvidia-ml.so.1"
_EXTRA = "pip install llmgw[nvml], or use --backend nvidia-smi"
_REASONS = {
    4: "no permission",
    9: "the driver is not loaded",
    15: "a card is lost",
    18: MISMATCH,
    999: "unknown error",
}
_BY_HAND = "see dmesg for NVRM and Xid lines, then reset the card or reboot the machine"


class Failure(msgspec.Struct, frozen=True):
    """NVML did not answer. `absent` says that it is not there at all, rather than broken."""

    reason: str
    advice: str
    absent: bool = False

    def __str__(self) -> str:
        return f"nvml: {self.reason}: {self.advice}"

    def error(self) -> BackendUnavailable:
        """The failure as the error of a backend that was asked for by name."""
        return BackendUnavailable(str(self))


def refused(refusal: Refusal, library: str) -> Failure:
    """What a probe that could not ask means."""
    if refusal.what == "binding-missing":
        return Failure("the nvml extra is not installed", _EXTRA, absent=True)
    if refusal.what == "binding-stale":
        reason = f"the module pynvml at {refusal.said} is not nvidia-ml-py 12.535.133 or later"
        advice = f"uninstall pynvml and nvidia-ml-py3, then {_EXTRA}"
        return Failure(reason, advice)
    if refusal.what == "library":
        return _not_loaded(refusal.said, library)
    if refusal.what == "no-answer":
        return Failure(refusal.said, _BY_HAND)
    code = refusal.code or 0
    reason = _REASONS.get(code, refusal.said or "it did not start")
    return Failure(f"{reason} (NVML error {code})", meaning_of(code) or _BY_HAND)


def _not_loaded(said: str, library: str) -> Failure:
    if "No such file" in said:
        advice = (
            "install the driver's user-space part, run the container with the NVIDIA runtime, or"
            " name the library in LLMGW_NVML_LIBRARY"
        )
        return Failure(f"{library} not found", advice, absent=True)
    advice = "check what LLMGW_NVML_LIBRARY or LD_LIBRARY_PATH names"
    return Failure(f"{library} cannot be loaded ({said[:200]})", advice)


def no_card(record: Record) -> Failure:
    """What a record means in which no card answered."""
    lost = unreachable_of(record)
    if lost:
        return Failure("no card can be opened", f"{lost[0].detail}. {meaning_of(15)}")
    return Failure("the driver finds no card", meaning_of(6) or _BY_HAND)


def in_flight() -> Failure:
    """An earlier probe cannot be ended, so that no other is started."""
    return Failure("an earlier look hangs in the driver and cannot be ended", _BY_HAND)


def hung(seconds: float) -> Failure:
    """The probe did not end in time."""
    return Failure(f"it did not answer within {seconds:g} seconds and was stopped", _BY_HAND)


def crashed(code: int, stderr: str) -> Failure:
    """The probe ended without an answer."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = f" and said {lines[-1][:200]!r}" if lines else ""
    return Failure(f"the program that asks it {how}{said}", _BY_HAND)


def garbled(error: Exception) -> Failure:
    """The answers are no record."""
    return Failure(f"its answers cannot be read ({error})", "take them again")
