"""Secrets in text are hidden, in a line of any length and make."""

from __future__ import annotations

import pytest

from llmgw.masking import mask_text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("nats://ops:hunter2@10.0.0.5:4222", "nats://***@10.0.0.5:4222"),
        ("nats://t0ken@h/x, tls://u:p@i", "nats://***@h/x, tls://***@i"),
        ("at ops:hunter2@host/path", "at ***@host/path"),
        ("u:p@h/v:q@i", "***@h/***@i"),
        ("mail a@b.c and x:y", "mail a@b.c and x:y"),
        ("12:30 :@ a:@ :b@ @", "12:30 :@ a:@ :b@ @"),
        ("a:b:c@d@e", "***@e"),
        ('{"api_key": "sk-1"}', '{"api_key": "***"}'),
        ("--hf-token=abc x", "--hf-token=*** x"),
        ("OPENAI_KEY='abc'", "OPENAI_KEY='***'"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("bearer abc", "bearer ***"),
        ("Password: abc", "Password: ***"),
        ("max_tokens: 512, token: 3", "max_tokens: 512, token: 3"),
    ],
)
def test_what_is_secret_is_masked_and_nothing_else(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "unit", ["x", "a.", "a-", "a_", "a:", "a@", ":@", "a://", "A_", "token", "eyJ-", '" ', "bearer"]
)
def test_a_line_without_an_end_is_read_once(unit: str) -> None:
    """Reading it once for each character in it would take minutes, and the run would be ended."""
    assert mask_text(unit * 200_000 + " nats://u:p@h").endswith(" nats://***@h")
