"""The few ways in which llmgw fails, each with the exit code that the command line gives it.

A message says what happened, where, and what to do next. Nothing else in llmgw defines an
exception that a user can see.
"""

from __future__ import annotations

from collections.abc import Sequence


class LlmgwError(Exception):
    """Something failed; the message says what to do next."""

    exit_code = 1


class UsageError(LlmgwError):
    """What was asked for is not valid: a flag, a setting, a name."""

    exit_code = 2


class CatalogError(UsageError):
    """A catalog does not validate. `problems` holds one `FILE:LINE: field: message` each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ModelUnreadable(UsageError):
    """A model's files cannot be read, or are not what they say: which file, and what is wrong."""


class BackendUnavailable(LlmgwError):
    """A hardware backend cannot answer: the tool is missing, hangs, fails or prints nonsense."""


class LogUnreachable(LlmgwError):
    """The log (NATS JetStream) did not answer in time."""

    exit_code = 3


class AgentUnreachable(LlmgwError):
    """No agent runs on the data folder that was named, or it ended meanwhile."""

    exit_code = 3


class AppendRefused(LlmgwError):
    """A fenced append was stale: somebody else wrote to the fenced subjects first."""


class DataFolderError(LlmgwError):
    """The data folder cannot be used: not writable, full, or held by another process."""


class MalformedRecord(LlmgwError):
    """Bytes from the log that do not decode to what their subject says they are."""


class EngineUnavailable(LlmgwError):
    """The program of an engine is not on this machine, or does not run here."""
