"""Log lines as an operator or a log collector meets them: readable, parseable, without secrets."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from llmgw.logs import configure
from llmgw.masking import mask_arguments, mask_known, mask_text, mask_value, visible

LOGS_MUCH = """
import logging, structlog
from llmgw.logs import configure
configure()
for number in range(1000):
    structlog.get_logger().warning("node.silent", node="gpu-07", number=number)
    logging.getLogger("nats").warning("lost")
print("went on")
"""


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_off_a_terminal_each_line_is_one_json_object(stream: io.StringIO) -> None:
    configure(stream=stream)
    structlog.get_logger().info("replica.ready", replica="chat-1", port=18100)
    line = json.loads(stream.getvalue())
    assert line["event"] == "replica.ready"
    assert line["level"] == "info"
    assert (line["replica"], line["port"]) == ("chat-1", 18100)
    assert line["timestamp"].endswith("Z")


def test_on_a_terminal_a_line_is_key_values_for_people(stream: io.StringIO) -> None:
    configure(stream=stream, as_json=False)
    structlog.get_logger().warning("node.silent", node="gpu-07")
    assert "node.silent" in stream.getvalue()
    assert "node=gpu-07" in stream.getvalue()


def test_what_is_below_the_level_is_not_written(stream: io.StringIO) -> None:
    configure("warning", stream=stream)
    structlog.get_logger().info("replica.ready")
    assert stream.getvalue() == ""


def test_a_library_is_heard_from_warning_on_in_the_same_format(stream: io.StringIO) -> None:
    configure("debug", stream=stream)
    logging.getLogger("nats").info("connected")
    logging.getLogger("nats").warning("lost %s", "nats://ops:hunter2@10.0.0.5:4222")
    line = json.loads(stream.getvalue())
    assert line["logger"] == "nats"
    assert line["event"] == "lost nats://***@10.0.0.5:4222"


@pytest.mark.parametrize("as_json", [True, False])
def test_an_exception_is_logged_without_its_secrets_or_local_variables(
    stream: io.StringIO, as_json: bool
) -> None:
    configure(stream=stream, as_json=as_json)
    prompt = "canary-in-a-local-variable"[::-1]
    try:
        raise ValueError("no route to nats://ops:hunter2@10.0.0.5:4222")
    except ValueError:
        structlog.get_logger().exception("connect.failed")
    assert "nats://***@10.0.0.5:4222" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    assert prompt not in stream.getvalue()


def test_a_library_exception_is_masked_too(stream: io.StringIO) -> None:
    configure(stream=stream)
    try:
        raise ValueError("no route to nats://ops:hunter2@10.0.0.5:4222")
    except ValueError:
        logging.getLogger("nats").exception("failed")
    assert "hunter2" not in stream.getvalue()


def test_secrets_in_an_event_are_masked_however_deep(stream: io.StringIO) -> None:
    configure(stream=stream)
    structlog.get_logger().info(
        "engine.starting",
        argv=["llama-server", "--api-key", "sk-1", "--port", "18100", "--hf-token=hf-2"],
        env={"HF_TOKEN": "hf-3", "CUDA_VISIBLE_DEVICES": "0"},
        requests=[{"prompt": "canary", "max_tokens": 8}],
    )
    line = json.loads(stream.getvalue())
    assert line["argv"] == ["llama-server", "--api-key", "***", "--port", "18100", "--hf-token=***"]
    assert line["env"] == {"HF_TOKEN": "***", "CUDA_VISIBLE_DEVICES": "0"}
    assert line["requests"] == [{"prompt": "***", "max_tokens": 8}]


@pytest.mark.parametrize("where", ["a full disk", "a closed pipe"])
def test_a_program_whose_logs_cannot_be_written_goes_on(where: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", LOGS_MUCH],
            stdout=subprocess.PIPE,
            stderr=full if where == "a full disk" else writing,
            check=False,
        )
    os.close(writing)
    assert done.stdout == b"went on\n"


def test_after_a_full_disk_what_can_be_written_again_is(stream: io.StringIO) -> None:
    class Disk(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    disk = Disk()
    configure(stream=disk)
    structlog.get_logger().info("lost")
    disk.full = False
    structlog.get_logger().info("kept")
    assert [json.loads(line)["event"] for line in disk.getvalue().splitlines()] == ["kept"]


def test_text_from_outside_moves_no_cursor_and_turns_nothing_around() -> None:
    shown = visible("a\x1b[2J\u202eb\u2066\r\nc\x07 Größe 模型")
    assert shown == r"a\x1b[2J\u202eb\u2066  c\x07 Größe 模型"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://u:p@ss/w@h:1", "nats://***@h:1"),
        ("u:p@h:1 refused", "***@h:1 refused"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("authorization: Basic dXNlcg==", "authorization: Basic ***"),
        ("sent 'Bearer abc'", "sent 'Bearer ***'"),
        ('{"api_key": "sk-1", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("OPENAI_API_KEY=sk-1 PORT=2", "OPENAI_API_KEY=*** PORT=2"),
    ],
)
def test_a_secret_in_running_text_is_masked(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "nats://127.0.0.1:4222",
        "print_info: EOS token = 2 '<|im_end|>'",
        "unexpected token: '}' at line 3",
        "n_tokens=512, progress=0.5",
        "failed at 12:30 on gpu-07",
    ],
)
def test_what_engines_and_tools_really_print_stays_readable(text: str) -> None:
    assert mask_text(text) == text


def test_numbers_under_a_suspicious_name_stay_readable() -> None:
    assert mask_value("eos_token", 2) == 2
    assert mask_value("token", "abc") == "***"
    assert mask_value("tokens_per_second", 12.5) == 12.5


def test_arguments_without_secrets_stay_as_they_are() -> None:
    arguments = ["vllm", "serve", "model", "--max-num-batched-tokens", "8192"]
    assert mask_arguments(arguments) == arguments


def test_what_an_engine_prints_of_its_environment_is_masked() -> None:
    environ = {"MY_TOKEN": "supersecretvalue123", "AWS_ACCESS_KEY_ID": "AKIA1234", "HOME": "/root"}
    said = "got supersecretvalue123 and AKIA1234 in /root; password: hunter2, X_KEY=abc123"
    shown = mask_text(mask_known(said, environ))
    assert shown == "got *** and *** in /root; password: ***, X_KEY=***"
