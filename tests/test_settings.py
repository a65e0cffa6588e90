"""What is configured: which layer wins, what a wrong value is answered with, what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.errors import LogUnreachable, UsageError
from llmgw.setting_kinds import KINDS
from llmgw.settings import (
    NAMES,
    Settings,
    default_data,
    load,
    nats_url,
    node_name,
    require_patience,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write_config(folder: Path, text: str) -> Path:
    path = folder / "llmgw.toml"
    path.write_text(text)
    return path


def refusal(env: dict[str, str], folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        load(env=env, folder=folder)
    return str(refused.value)


def test_each_layer_wins_over_the_one_below_and_its_origin_is_known(folder: Path) -> None:
    path = write_config(
        folder, 'cluster = "from-file"\nbackend = "cpu"\nsample_seconds = 5\ncpu_device = true\n'
    )
    env = {"LLMGW_CLUSTER": "from-env", "LLMGW_BACKEND": "nvml"}
    resolved = load({"cluster": "from-flag", "backend": None}, env, folder=folder)

    assert resolved.settings.cluster == "from-flag"
    assert resolved.settings.backend == "nvml"
    assert resolved.settings.sample_seconds == 5.0
    assert resolved.settings.cpu_device is True
    assert resolved.settings.host == "127.0.0.1"
    assert resolved.origins["cluster"] == "--cluster"
    assert resolved.origins["backend"] == "LLMGW_BACKEND"
    assert resolved.origins["sample_seconds"] == str(path)
    assert resolved.origins["host"] == "default"


def test_a_flag_that_was_given_as_false_still_wins(folder: Path) -> None:
    resolved = load({"cpu_device": False}, {"LLMGW_CPU_DEVICE": "yes"}, folder=folder)
    assert resolved.settings.cpu_device is False
    assert resolved.origins["cpu_device"] == "--cpu-device"


def test_the_file_named_by_the_flag_comes_before_the_variable_and_the_folder(folder: Path) -> None:
    write_config(folder, 'cluster = "here"')
    by_flag, by_variable = folder / "a.toml", folder / "b.toml"
    by_flag.write_text('cluster = "flag"')
    by_variable.write_text('cluster = "variable"')
    env = {"LLMGW_CONFIG": str(by_variable)}

    assert load(env=env, config=by_flag, folder=folder).settings.cluster == "flag"
    assert load(env=env, folder=folder).settings.cluster == "variable"
    assert load(env={}, folder=folder).settings.cluster == "here"


def test_a_named_file_that_is_missing_is_an_error_and_an_unnamed_one_is_not(folder: Path) -> None:
    assert load(env={}, folder=folder).settings.cluster == "default"
    message = refusal({"LLMGW_CONFIG": str(folder / "gone.toml")}, folder)
    assert "gone.toml: cannot be read: No such file" in message


def test_broken_toml_is_reported_with_its_line(folder: Path) -> None:
    write_config(folder, 'cluster = "a"\nbackend = \n')
    message = refusal({}, folder)
    assert "llmgw.toml" in message
    assert "line 2" in message


def test_all_unknown_keys_of_a_file_are_named_each_with_the_nearest(folder: Path) -> None:
    write_config(folder, "sample-second = 3\nxyzzy = 1\n")
    message = refusal({}, folder)
    assert "no setting is named sample-second; did you mean sample_seconds?" in message
    assert "no setting is named xyzzy; there are node, data" in message


def test_unknown_variables_are_reported_and_do_no_harm(folder: Path) -> None:
    env = {"LLMGW_CLUSTR": "a", "LLMGW_CONFIG": "", "OTHER": "b"}
    resolved = load(env=env, folder=folder)
    assert resolved.settings.cluster == "default"
    assert resolved.ignored == (
        "LLMGW_CLUSTR: no setting is named clustr; did you mean LLMGW_CLUSTER?",
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("LLMGW_CLUSTER", "two.tokens", "1 to 63 of A-Z"),
        ("LLMGW_CLUSTER", "*", "1 to 63 of A-Z"),
        ("LLMGW_NODE", "n" * 64, "1 to 63 of A-Z"),
        ("LLMGW_NODE", "new\n", "1 to 63 of A-Z"),
        ("LLMGW_BACKEND", "rocm", "auto, nvml, nvidia-smi, cpu"),
        ("LLMGW_CPU_DEVICE", "perhaps", "true or false"),
        ("LLMGW_SAMPLE_SECONDS", "soon", "from 0.1 to 3600"),
        ("LLMGW_SAMPLE_SECONDS", "nan", "from 0.1 to 3600"),
        ("LLMGW_SAMPLE_SECONDS", "0", "from 0.1 to 3600"),
        ("LLMGW_PORT_RANGE", "19000-18000", "FIRST-LAST"),
        ("LLMGW_PORT_RANGE", "18100", "FIRST-LAST"),
        ("LLMGW_PORT_RANGE", "80-90", "from 1024"),
        ("LLMGW_LISTEN", "localhost", "HOST:PORT"),
        ("LLMGW_LISTEN", "127.0.0.1:70000", "HOST:PORT"),
        ("LLMGW_HOST", "no spaces", "an IP address or a host name"),
        ("LLMGW_HOST", "0.0.0.0", "write the address that clients reach"),
        ("LLMGW_HOST", "0", "write the address that clients reach"),
        ("LLMGW_HOST", "::", "write the address that clients reach"),
        ("LLMGW_HOST", "0:0:0:0:0:0:0:0", "write the address that clients reach"),
        ("LLMGW_NATS_URL", "localhost:4222", "nats://HOST:PORT"),
        ("LLMGW_NATS_URL", "nats://", "nats://HOST:PORT"),
        ("LLMGW_HOT_CELSIUS", "warm", "degrees Celsius from -50 to 200"),
        ("LLMGW_OCCUPIED_BYTES", "0.5", "a whole number of bytes"),
        ("LLMGW_WORN_ERRORS", "-1", "a whole number of errors from 0"),
        ("LLMGW_CAPPED_PERCENT", "101", "per cent from 1 to 100"),
        ("LLMGW_LOG_LEVEL", "loud", "debug, info, warning, error"),
    ],
)
def test_a_wrong_value_is_refused_with_its_origin_and_what_is_allowed(
    variable: str, value: str, allowed: str, folder: Path
) -> None:
    message = refusal({variable: value}, folder)
    assert f"(from {variable})" in message
    assert repr(value) in message
    assert allowed in message


def test_a_toml_value_of_the_wrong_type_is_refused_like_a_wrong_word(folder: Path) -> None:
    write_config(folder, "sample_seconds = true")
    assert "sample_seconds (from " in refusal({}, folder)
    write_config(folder, "cluster = 7")
    assert "cluster (from " in refusal({}, folder)
    write_config(folder, "[data]\nfolder = 1")
    assert "allowed: a folder" in refusal({}, folder)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLMGW_LISTEN", "0.0.0.0:4222"),
        ("LLMGW_LISTEN", "[::1]:4222"),
        ("LLMGW_HOST", "::1"),
        ("LLMGW_HOST", "gpu-07.example"),
        ("LLMGW_NATS_URL", "nats://a:4222, tls://b:4222"),
    ],
)
def test_what_a_network_really_uses_is_accepted(variable: str, value: str, folder: Path) -> None:
    load(env={variable: value}, folder=folder)


def test_a_node_that_is_heard_too_rarely_to_count_as_alive_is_refused(folder: Path) -> None:
    path = write_config(folder, "heartbeat_seconds = 20")
    message = refusal({"LLMGW_NODE_LOST_SECONDS": "59"}, folder)
    assert "node_lost_seconds (from LLMGW_NODE_LOST_SECONDS) is 59" in message
    assert f"heartbeat_seconds (from {path}) is 20" in message
    assert "at least 3 times heartbeat_seconds, here 60" in message
    load(env={"LLMGW_NODE_LOST_SECONDS": "60"}, folder=folder)


@pytest.mark.parametrize(
    "env", [{}, {"LLMGW_NODE_LOST_SECONDS": "2"}, {"LLMGW_HEARTBEAT_SECONDS": "600"}]
)
def test_how_rarely_is_judged_only_where_both_are_given(env: dict[str, str], folder: Path) -> None:
    load(env=env, folder=folder)


def test_on_one_machine_it_is_judged_whatever_was_given() -> None:
    require_patience(Settings(node="n", data=Path()))
    with pytest.raises(UsageError, match="node_lost_seconds is 15 and heartbeat_seconds is 6"):
        require_patience(Settings(node="n", data=Path(), heartbeat_seconds=6))


def test_a_condition_that_would_end_where_it_begins_is_refused(folder: Path) -> None:
    path = write_config(folder, "hot_celsius = 75\nvacant_bytes = 1000000000")
    message, refused = refusal({}, folder), "must not be above"
    assert f"cool_celsius (from default) is 80.0 and {refused} hot_celsius (from {path})" in message
    assert f"vacant_bytes (from {path}) is 1000000000 and {refused} occupied_bytes" in message
    env = {"LLMGW_COOL_CELSIUS": "75", "LLMGW_VACANT_BYTES": "0"}
    limits = load(env=env, folder=folder).settings.limits
    assert (limits.hot_celsius, limits.cool_celsius, limits.vacant_bytes) == (75, 75, 0)


def test_credentials_are_used_but_never_shown(folder: Path) -> None:
    url = "nats://ops:hunter2@10.0.0.5:4222,nats://s3cr3t@10.0.0.6:4222"
    resolved = load(env={"LLMGW_NATS_URL": url}, folder=folder)
    assert resolved.settings.nats_url == url
    row = next(row for row in resolved.shown() if row.name == "nats_url")
    assert row.value == "nats://***@10.0.0.5:4222,nats://***@10.0.0.6:4222"
    assert row.origin == "LLMGW_NATS_URL"
    assert "hunter2" not in refusal({"LLMGW_NATS_URL": "ops:hunter2@10.0.0.5:4222"}, folder)


def test_every_setting_can_be_set_and_is_shown(folder: Path) -> None:
    assert set(KINDS) == set(NAMES)
    assert [row.name for row in load(env={}, folder=folder).shown()] == list(NAMES)


def test_every_default_is_a_value_that_could_have_been_given(folder: Path) -> None:
    for name, value in zip(NAMES, load(env={}, folder=folder).shown(), strict=True):
        if value.value is not None:
            assert KINDS[name].read(value.value) is not None, name


def test_ports_are_given_as_a_range_that_includes_both_ends(folder: Path) -> None:
    resolved = load(env={"LLMGW_PORT_RANGE": "20000-20001"}, folder=folder)
    assert list(resolved.settings.ports) == [20000, 20001]


def test_paths_are_made_absolute_and_home_is_understood(folder: Path) -> None:
    settings = load({"data": Path("here")}, {"LLMGW_VLLM": "~/vllm"}, folder=folder).settings
    assert settings.data.is_absolute()
    assert settings.vllm == str(Path.home() / "vllm")


def test_only_root_keeps_its_data_for_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_data({}) == Path("/var/lib/llmgw")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert default_data({"XDG_STATE_HOME": "/srv/state"}) == Path("/srv/state/llmgw")
    assert default_data({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/llmgw"


@given(st.text())
def test_any_host_name_becomes_a_valid_node_name(hostname: str) -> None:
    assert KINDS["node"].read(node_name(hostname))


def test_a_full_host_name_stays_recognisable() -> None:
    assert node_name("gpu-07.rack2.example") == "gpu-07-rack2-example"


def test_the_address_that_up_wrote_is_found_and_the_setting_goes_before_it(folder: Path) -> None:
    (folder / "endpoint.json").write_text(json.dumps({"nats_url": "nats://127.0.0.1:4333"}))
    assert nats_url(Settings(node="n", data=folder)) == "nats://127.0.0.1:4333"
    assert nats_url(Settings(node="n", data=folder, nats_url="nats://x:1")) == "nats://x:1"


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_without_a_readable_address_the_message_says_what_to_do(
    content: str | None, folder: Path
) -> None:
    if content is not None:
        (folder / "endpoint.json").write_text(content)
    with pytest.raises(LogUnreachable, match=r"endpoint\.json"):
        nats_url(Settings(node="n", data=folder))


def test_labels_are_read_from_text_and_from_a_table(tmp_path: Path) -> None:
    found = load(env={"LLMGW_LABELS": "rack = b2,disk=nvme"}, folder=tmp_path).settings
    assert found.node_labels == {"rack": "b2", "disk": "nvme"}
    (tmp_path / "llmgw.toml").write_text('labels = {rack = "b2", "topology.io/zone" = "z1"}\n')
    found = load(env={}, folder=tmp_path).settings
    assert found.node_labels == {"rack": "b2", "topology.io/zone": "z1"}
    assert load(env={}, folder=tmp_path / "elsewhere").settings.node_labels == {}


@pytest.mark.parametrize(
    "wrong", ["rack", "rack=a,rack=b", "=a", "rack=a b", "rack=*", "r=" + "x" * 64]
)
def test_a_label_that_is_none_is_refused_with_the_way_to_write_it(wrong: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE"):
        load(env={"LLMGW_LABELS": wrong})
