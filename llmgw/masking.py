"""Hiding what nobody may read in values that are shown or logged, and showing what hides itself.

Pure. It changes only what is displayed, never what is used. Called by the logs, by
`llmgw config show`, and by whoever puts a program's last words into an event. It errs towards
hiding: a value under a suspicious name is masked even when it is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

MASK = "***"

_SENSITIVE = "password|passwd|secret|token|credentials?|authorization|api[_-]?key|private[_-]?key"
_NAME = re.compile(rf"(?:^|.*[_-])(?:{_SENSITIVE}|cookie|prompt)", re.IGNORECASE)
_KEY = re.compile(r"(?:^|_)(?:KEY|PASS|PAT|AUTH)(?:_|$)", re.IGNORECASE)
_SHORTEST_SECRET = 6
_FLAG = re.compile(rf"--?(?:[a-z0-9_-]*[_-])?(?:{_SENSITIVE})", re.IGNORECASE)

# Each keeps its first group and masks the rest of its match: what follows `Bearer` or
# `Authorization:`, and the value of `…key=value` or `"…key": "value"`. Not of `token: value`, which
# engines print about the tokens of a model. None begins with a part of any length: looking for its
# end again at each character of a long line takes minutes, and the line may be an enemy's.
_IN_TEXT = (
    re.compile(r"(\bauthorization:\s*(?:[a-z]+\s+)?)[^\s\"',]+", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)[^\s\"',]+", re.IGNORECASE),
    re.compile(r"(\b(?:password|passwd|passphrase):\s+)[^\s\"',]+", re.IGNORECASE),
    re.compile(r"((?<=[A-Z0-9_])_KEY=[\"']?)[^\s\"',]+"),
    re.compile(rf"((?:{_SENSITIVE})(?:=[\"']?|[\"']\s*:\s*[\"']))[^\s\"',]+", re.IGNORECASE),
)
_WORD = re.compile(r"[^\s\"',]++")
_SCHEME = re.compile(r"\b[a-z][a-z0-9+.-]{0,31}://", re.IGNORECASE)


def mask_text(text: str) -> str:
    """Return `text` with the credentials of URLs, bearer tokens and `…key=value` pairs masked.

    >>> mask_text("connect to nats://ops:hunter2@10.0.0.5:4222 failed")
    'connect to nats://***@10.0.0.5:4222 failed'
    """
    if "@" in text:
        text = _WORD.sub(_without_credentials, text)
    for secret in _IN_TEXT:
        text = secret.sub(rf"\g<1>{MASK}", text)
    return text


def _without_credentials(match: re.Match[str]) -> str:
    """Return a word with what stands before the `@` of an address masked."""
    word = match[0]
    end = word.rfind("@")
    if end < 0:
        return word
    scheme = _SCHEME.search(word, 0, end)
    if scheme is not None and scheme.end() < end:
        word = word[: scheme.end()] + MASK + word[end:]
    return "/".join(map(_without_login, word.split("/")))


def _without_login(piece: str) -> str:
    """Return `user:password@host` with the first two masked; anything else as it is."""
    end = piece.rfind("@")
    colon = piece.find(":", 0, max(end - 1, 0))
    while colon >= 0:
        begin = 1 + max(piece.rfind(":", 0, colon), piece.rfind("@", 0, colon))
        if begin < colon:
            return piece[:begin] + MASK + piece[end:]
        colon = piece.find(":", colon + 1, end - 1)
    return piece


def mask_known(text: str, environ: Mapping[str, str]) -> str:
    """Return `text` without the secrets of an environment: values of names that sound like one.

    What a program prints of what it was given needs no form that `mask_text` could know.
    """
    return hide(text, secret_values(environ))


def secret_values(environ: Mapping[str, str]) -> set[str]:
    """Return the values of an environment whose names sound like secrets."""
    return {
        value
        for name, value in environ.items()
        if len(value) >= _SHORTEST_SECRET and (_NAME.fullmatch(name) or _KEY.search(name))
    }


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of `secrets` masked wherever it stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def visible(text: str) -> str:
    """Return `text` on one line, with what could move the cursor or turn the text around written
    out: a terminal obeys whoever wrote it.
    """
    return "".join(map(_visible, text))


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a program's arguments with the value after `--api-key` and its like masked."""
    return list(_masked_arguments(arguments))


def mask_value(name: str, value: object) -> object:
    """Return `value`, known as `name`, as it may be shown: containers are gone through.

    Numbers pass, so that `max_tokens=512` stays readable.
    """
    if isinstance(value, str | bytes):
        if _NAME.fullmatch(name):
            return MASK
        return mask_text(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {key: mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _masked_items(name, list(value))
    return value


def _masked_items(name: str, items: list[object]) -> list[object]:
    texts = [item for item in items if isinstance(item, str)]
    if texts and len(texts) == len(items) and not _NAME.fullmatch(name):
        return [*mask_arguments(texts)]
    return [mask_value(name, item) for item in items]


def _masked_arguments(arguments: Sequence[str]) -> Iterator[str]:
    value_is_secret = False
    for argument in arguments:
        yield MASK if value_is_secret else mask_text(argument)
        value_is_secret = _FLAG.fullmatch(argument) is not None


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\n\r\t" else ascii(character)[1:-1]
