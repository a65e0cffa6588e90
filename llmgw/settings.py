"""What is configured on this machine, and where each value came from.

One way in: defaults, then one `llmgw.toml`, then `LLMGW_*`, then flags, in rising order. Nothing
else in llmgw reads the environment or a configuration file. Called once at the start of each
command; the parts below get a `Settings` (or single values of it) and never look further.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from llmgw.core.limits import Limits, contradictions
from llmgw.errors import LogUnreachable, UsageError
from llmgw.files import read_regular
from llmgw.masking import mask_text
from llmgw.setting_kinds import KINDS, NAME_CHARACTERS

Backend = Literal["auto", "nvml", "nvidia-smi", "cpu"]
LogLevel = Literal["debug", "info", "warning", "error"]

PREFIX = "LLMGW_"
CONFIG_VARIABLE = "LLMGW_CONFIG"
SYSTEM_CONFIG = Path("/etc/llmgw/llmgw.toml")
ENDPOINT_FILE = "endpoint.json"
AGENT_FOLDER = "agent"
HEARTBEATS_UNTIL_LOST = 3
"""A node counts as lost only after so many signs of life that did not come."""


class Settings(Limits, frozen=True, kw_only=True):
    """Everything that can be set, the limits of conditions too. Made by `load`, or by a test."""

    node: str
    """This machine's name in the cluster; from the host name unless set."""
    data: Path
    """The folder that holds the embedded server's streams, the agent's records and snapshots."""
    nats_url: str | None = None
    """NATS servers, comma-separated. Absent: the one that `llmgw up` on this data started."""
    cluster: str = "default"
    log_replicas: int = 1
    """On how many NATS servers a stream that is made from here lies: 3 outlive the loss of one."""
    backend: Backend = "auto"
    cpu_device: bool = False
    """Whether the node's processor is offered as a device of class `cpu`."""
    nvidia_smi: str = "nvidia-smi"
    nvml_library: str | None = None
    llama_server: str | None = None
    """The program that runs llama.cpp. Absent: searched for on PATH, then in installed wheels."""
    vllm: str | None = None
    sglang: str | None = None
    labels: str = ""
    """What is to be said of this node, `rack=b2,disk=nvme`: placement may ask for it."""
    host: str = "127.0.0.1"
    """The address that engines bind to and are published under: one that clients can reach."""
    port_range: str = "18100-18999"
    """Ports for engines: below the range that the kernel hands out for outgoing connections."""
    sample_seconds: float = 10.0
    """How often a node is measured."""
    nvml_sample_seconds: float = 1.0
    """The same while NVML is in force: there a sample costs a few calls, and no program is run."""
    rediscover_seconds: float = 300.0
    """How often the hardware is discovered afresh, though no sample contradicts what is known."""
    process_names: bool = False
    """Whether samples name the programs that use devices; else they have process ids alone."""
    heartbeat_seconds: float = 3.0
    """How often an agent says that it lives, also while a driver hangs and nothing is measured."""
    node_lost_seconds: float = 15.0
    """Silence after which a node counts as lost. To leave a server that hangs takes up to 10 s."""
    lease_seconds: float = 2.0
    """How long a controller that went silent keeps the lead: another takes it soon after that."""
    failing_after: int = 5
    """So many failures of a replica in a row on one device: it is better tried elsewhere."""
    listen: str = "127.0.0.1:0"
    """Where the embedded NATS server listens; port 0 takes a free one."""
    log_level: LogLevel = "info"

    @property
    def ports(self) -> range:
        """The ports that engines may be given."""
        first, last = self.port_range.split("-")
        return range(int(first), int(last) + 1)

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels by name."""
        return dict(pair.split("=") for pair in self.labels.split(",") if pair)

    @property
    def limits(self) -> Limits:
        """When conditions begin and end."""
        return Limits(**{name: getattr(self, name) for name in _LIMITS})


class Shown(NamedTuple):
    """One row of `llmgw config show`. `value` has its credentials masked; `None` is not set."""

    name: str
    value: str | float | bool | None
    origin: str


class Resolved(msgspec.Struct, frozen=True):
    """The settings in force, where each came from, and what looked like one but is not."""

    settings: Settings
    origins: Mapping[str, str]
    """`default`, the path of the file, the variable or the flag, for each setting."""
    ignored: tuple[str, ...] = ()
    """Variables that begin with LLMGW_ and name no setting, with the nearest one."""

    def shown(self) -> list[Shown]:
        """Return every setting as it may be printed, in the order of their definition."""
        values = {name: getattr(self.settings, name) for name in NAMES}
        return [Shown(name, _showable(values[name]), self.origins[name]) for name in NAMES]


_LIMITS = Limits.__struct_fields__
NAMES = (*(name for name in Settings.__struct_fields__ if name not in _LIMITS), *_LIMITS)


def load(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    config: Path | None = None,
    folder: Path | None = None,
) -> Resolved:
    """Put the layers together and return the settings in force.

    `flags` maps names of settings to what was given on the command line (`None`: not given);
    `env` is the environment, `os.environ` unless told; `config` is `--config`; `folder` is where
    `llmgw.toml` is looked for, the working directory unless told. Of several files only the first
    counts: `config`, `LLMGW_CONFIG`, `llmgw.toml`, `/etc/llmgw/llmgw.toml`.

    Raises `UsageError` naming the setting, where the value came from and what is allowed, also
    when two that were given do not go together.
    """
    environment = os.environ if env is None else env
    given: dict[str, tuple[object, str]] = {}
    given.update(_from_file(_config_file(config, environment, folder or Path())))
    given.update(_from_environment(environment))
    given.update(_from_flags(flags or {}))
    values: dict[str, Any] = {
        name: _checked(name, value, origin) for name, (value, origin) in given.items()
    }
    values.setdefault("node", node_name(socket.gethostname()))
    values.setdefault("data", default_data(environment))
    settings = Settings(**values)
    origins = {name: given[name][1] if name in given else "default" for name in NAMES}
    # One alone says nothing: nodes beat on one machine, and the controller waits on another.
    if {"heartbeat_seconds", "node_lost_seconds"} <= given.keys():
        require_patience(settings, origins)
    _require_bands(settings, origins)
    return Resolved(settings, origins, tuple(_unknown_variables(environment)))


def require_patience(settings: Settings, origins: Mapping[str, str] | None = None) -> None:
    """Raise `UsageError` when nodes that beat as set here would count as lost in between."""
    least = HEARTBEATS_UNTIL_LOST * settings.heartbeat_seconds
    if settings.node_lost_seconds >= least:
        return
    lost, heartbeat = (
        f"{name} (from {origins[name]})" if origins else name
        for name in ("node_lost_seconds", "heartbeat_seconds")
    )
    raise UsageError(
        f"{lost} is {settings.node_lost_seconds:g} and {heartbeat} is"
        f" {settings.heartbeat_seconds:g}: healthy nodes would count as lost between two"
        f" heartbeats. node_lost_seconds must be at least {HEARTBEATS_UNTIL_LOST} times"
        f" heartbeat_seconds, here {least:g}"
    )


def _require_bands(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise `UsageError` when a condition would end at values that begin it."""
    found = [
        f"{low} (from {origins[low]}) is {getattr(settings, low)} and must not be above {high}"
        f" (from {origins[high]}), which is {getattr(settings, high)}: the one ends what the"
        " other begins"
        for low, high in contradictions(settings)
    ]
    if found:
        raise UsageError("\n".join(found))


def nats_url(settings: Settings) -> str:
    """Return the NATS servers to connect to: the setting, or those of `llmgw up` on this data.

    Raises `LogUnreachable` when neither is known.
    """
    if settings.nats_url is not None:
        return settings.nats_url
    path = settings.data / ENDPOINT_FILE
    try:
        return str(msgspec.json.decode(read_regular(path), type=dict[str, Any])["nats_url"])
    except FileNotFoundError:
        raise LogUnreachable(
            f"no NATS server is known: {path} does not exist. Start `llmgw up` with this data "
            "folder, or set LLMGW_NATS_URL"
        ) from None
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        why = getattr(error, "strerror", None) or error
        raise LogUnreachable(
            f"cannot read the NATS address from {path}: {why}. Remove it and start `llmgw up` "
            "again, or set LLMGW_NATS_URL"
        ) from error


def node_name(hostname: str) -> str:
    """Return a host name as a node name: other characters become `-`, at most 63 of them."""
    return "".join(c if c in NAME_CHARACTERS else "-" for c in hostname[:63]) or "node"


def default_data(env: Mapping[str, str]) -> Path:
    """Return the data folder used unless one is set; root's is the machine's."""
    if os.geteuid() == 0:
        return Path("/var/lib/llmgw")
    state = Path(env.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    return state / "llmgw"


def _config_file(config: Path | None, env: Mapping[str, str], folder: Path) -> Path | None:
    named = config or (Path(env[CONFIG_VARIABLE]) if env.get(CONFIG_VARIABLE) else None)
    if named is not None:
        return named.expanduser()
    candidates = (folder / "llmgw.toml", SYSTEM_CONFIG)
    return next((path for path in candidates if path.is_file()), None)


def _from_file(path: Path | None) -> Mapping[str, tuple[object, str]]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from error
    unknown = [f"{path}: {_unknown(key)}" for key in table if key not in NAMES]
    if unknown:
        raise UsageError("\n".join(unknown))
    return {name: (value, str(path)) for name, value in table.items()}


def _from_environment(env: Mapping[str, str]) -> Mapping[str, tuple[object, str]]:
    variables = {name: PREFIX + name.upper() for name in NAMES}
    return {name: (env[key], key) for name, key in variables.items() if env.get(key)}


def _from_flags(flags: Mapping[str, object]) -> Mapping[str, tuple[object, str]]:
    return {
        name: (value, "--" + name.replace("_", "-"))
        for name, value in flags.items()
        if value is not None
    }


def _unknown_variables(env: Mapping[str, str]) -> Iterable[str]:
    for key in sorted(env):
        name = key.removeprefix(PREFIX).lower()
        if key.startswith(PREFIX) and key != CONFIG_VARIABLE and name not in NAMES:
            yield f"{key}: {_unknown(name, shown=lambda near: PREFIX + near.upper())}"


def _unknown(name: str, shown: Callable[[str], str] = str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), NAMES, n=1)
    hint = f"; did you mean {shown(near[0])}?" if near else f"; there are {', '.join(NAMES)}"
    return f"no setting is named {name}{hint}"


def _checked(name: str, value: object, origin: str) -> object:
    kind = KINDS[name]
    try:
        return kind.read(value)
    except ValueError:
        raise UsageError(
            f"{name} (from {origin}) is {mask_text(repr(value))}; allowed: {kind.allowed}"
        ) from None


def _showable(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return mask_text(str(value))
