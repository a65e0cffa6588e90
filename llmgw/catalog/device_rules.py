"""What must hold between an entry and the devices that it asks for.

Pure. Placement refuses again what is refused here, since hardware changes after a catalog was
accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from llmgw.catalog import classes
from llmgw.catalog.draft import Draft, ModelFacts
from llmgw.catalog.entries import Labels
from llmgw.catalog.report import Report, did_you_mean
from llmgw.engines.base import Engine

_SIZES = ("gpus", "tp", "pp", "nodes")
_GIB = 1 << 30

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9._*/-]{1,63}")


def split(draft: Draft, report: Report) -> None:
    """Make `gpus` = `tp` x `pp` hold, from whichever of the three are given.

    All three are of the whole replica; each of its nodes has `gpus` / `nodes` devices.
    """
    values, engine = draft.values, draft.engine
    if engine is None or not values.keys() >= (set(_SIZES) & draft.lines.keys()):
        return
    if values.keys() & {"tp", "pp"}:
        tp, pp = values.get("tp", 1), values.get("pp", 1)
        if values.setdefault("gpus", tp * pp) != tp * pp:
            said = f"{values['gpus']} is not tp {tp} x pp {pp} = {tp * pp}; leave it out"
            draft.problem("gpus", said, report)
    elif "gpus" in values or values.get("nodes", 1) > 1:
        nodes = values.get("nodes", 1)
        gpus = values.setdefault("gpus", nodes)
        other = "pp" if engine.gpus_mean == "tp" else "tp"
        values |= {engine.gpus_mean: max(1, gpus // nodes), other: nodes}


def check(draft: Draft, facts: ModelFacts, report: Report) -> None:
    """Report every contradiction between the entry, its classes and what its model says."""
    _check_class(draft, report)
    _check_nodes(draft, report)
    _check_heads(draft, facts, report)
    _check_memory(draft, report)
    _check_fraction(draft, report)
    _check_cache(draft, report)
    _check_nvlink(draft, report)
    _check_labels(draft.values.get("labels", Labels()), draft, report)


def _check_class(draft: Draft, report: Report) -> None:
    names = draft.values.get("class", ())
    for name in names:
        why, near = classes.why_no_card(name), classes.another_spelling(name)
        if why is not None:
            draft.problem("class", f"{name}: {why}", report)
        elif near is not None:
            draft.warn("class", f"{name} is no known card; is {near} meant?", report)
    instance = next(filter(classes.is_instance, names), None)
    one_each = draft.values.get("gpus", 1) == draft.values.get("nodes", 1)
    for size in [size for size in _SIZES if size in draft.lines]:
        number = draft.values.get(size, 1)
        if number > 1 and instance is not None:
            said = (
                f"{number} does not go with the class {instance}: a process opens one MIG "
                "instance, and instances have no NVLink; use whole cards or write 1"
            )
            draft.problem(size, said, report)
        elif number > 1 and classes.PROCESSOR in names and not one_each:
            said = f"{number} does not go with the class cpu: a node has one processor device"
            draft.problem(size, said, report)
    engine = draft.engine
    if instance is not None and engine is not None and engine.instances.why:
        said = f"{engine.name} may not start on {instance}: {engine.instances.why}{_until(engine)}"
        draft.warn("class", said, report)


def _until(engine: Engine) -> str:
    version = ".".join(map(str, engine.instances.fails_through))
    return f" (seen up to version {version})" if version else ""


def _check_nodes(draft: Draft, report: Report) -> None:
    nodes, engine = draft.values.get("nodes", 1), draft.engine
    if nodes == 1 or engine is None:
        return
    if not engine.spans_nodes:
        draft.problem("nodes", f"{engine.name} serves a replica on one node only", report)
    elif {"tp", "pp"} & draft.lines.keys() and not _divides(draft.values, nodes):
        said = (
            f"{nodes} nodes share whole pipeline stages, so `pp` must be a multiple of {nodes}, "
            f"not {draft.values.get('pp', 1)}; or, over an NVLink fabric, `tp` with `pp` of 1"
        )
        draft.problem("nodes", said, report)
    elif draft.values.get("gpus", nodes) % nodes:
        draft.problem("nodes", f"`gpus` cannot be shared evenly by {nodes} nodes", report)


def _divides(values: Mapping[str, int], nodes: int) -> bool:
    """Return whether the nodes share the stages evenly, or the one tensor-parallel group."""
    tp, pp = values.get("tp", 1), values.get("pp", 1)
    return pp % nodes == 0 if pp > 1 else tp % nodes == 0


def _check_heads(draft: Draft, facts: ModelFacts, report: Report) -> None:
    engine, heads, tp = draft.engine, facts.heads, draft.values.get("tp", 1)
    if engine is None or not engine.tp_divides_heads or not heads or heads % tp == 0:
        return
    good = ", ".join(str(n) for n in range(1, min(heads, 64) + 1) if heads % n == 0)
    said = f"{tp} devices cannot share the model's {heads} attention heads evenly; choose of {good}"
    draft.problem("tp" if "tp" in draft.lines else "gpus", said, report)


def _check_memory(draft: Draft, report: Report) -> None:
    """Report classes whose devices never have what a replica needs; one that does is enough."""
    needed = draft.values.get("memory", 0)
    limits = {name: classes.most_memory_bytes(name) for name in draft.values.get("class", ())}
    small = [name for name, limit in limits.items() if limit is not None and limit < needed]
    if not small:
        return
    said = f"{needed / _GIB:.1f} GiB on each device is more than {', '.join(small)} can have"
    if len(small) == len(limits):
        more = "; name a larger class, or split the model with `tp`"
        draft.problem("memory", f"{said}{more}", report)
    else:
        draft.warn("memory", f"{said}: only the other classes will be used", report)


def _check_fraction(draft: Draft, report: Report) -> None:
    fraction, engine = draft.values.get("gpu_memory_fraction"), draft.engine
    if fraction is None or engine is None:
        return
    if not engine.takes_fraction:
        said = f"{engine.name} has no such setting; write `memory`"
        draft.problem("gpu_memory_fraction", said, report)
    elif not 0 < fraction <= 1:
        said = f"{fraction:g} must be above 0 and at most 1"
        draft.problem("gpu_memory_fraction", said, report)
    elif draft.values.get("share"):
        said = (
            "does not go with `share`: the engine would take that part of any device, whatever "
            "`memory` says; leave it out, and it takes `memory`"
        )
        draft.problem("gpu_memory_fraction", said, report)
    else:
        _check_fraction_of_classes(draft, fraction, report)


def _check_fraction_of_classes(draft: Draft, fraction: float, report: Report) -> None:
    needed = draft.values.get("memory", 0)
    for name in draft.values.get("class", ()):
        limit = classes.most_memory_bytes(name)
        if limit is not None and limit >= needed > limit * fraction:
            said = (
                f"{fraction:g} of {name} is {limit * fraction / _GIB:.1f} GiB, less than the "
                f"{needed / _GIB:.1f} GiB of `memory`"
            )
            draft.problem("gpu_memory_fraction", said, report)


def _check_cache(draft: Draft, report: Report) -> None:
    halves: Mapping[str, str] = draft.values.get("kv_cache_dtype", {})
    engine = draft.engine
    if not halves or engine is None:
        return
    known = engine.cache_dtypes
    if not known:
        said = f"is no setting of the engine {engine.name}: give it in `command`"
        draft.problem("kv_cache_dtype", said, report)
        return
    for word in dict.fromkeys(halves.values()):
        if word not in known:
            near = did_you_mean(word, known)
            said = f"{engine.name} knows no type {word!r:.40}{near}; it has {', '.join(known)}"
            draft.problem("kv_cache_dtype", said, report)
    if not engine.splits_cache and halves.get("key") != halves.get("value"):
        said = f"{engine.name} has one type for keys and values; write one word"
        draft.problem("kv_cache_dtype", said, report)


def _check_nvlink(draft: Draft, report: Report) -> None:
    if draft.values.get("nvlink") != "require":
        return
    names = draft.values.get("class", ())
    without = [name for name in names if classes.is_instance(name) or name == classes.PROCESSOR]
    if without:
        draft.problem("nvlink", f"{', '.join(without)} has no NVLink to require", report)
    elif draft.values.get("gpus", 1) == 1:
        draft.warn("nvlink", "says nothing of a single device: `tp` and `gpus` are 1", report)


def _check_labels(labels: Labels, draft: Draft, report: Report) -> None:
    for kind in Labels.__struct_fields__:
        wanted: dict[str, str] = getattr(labels, kind)
        for name, value in wanted.items():
            if not _LABEL.fullmatch(name):
                said = f"{name!r:.70} is no name of a label: letters, digits, `.`, `_`, `/` and `-`"
                draft.problem("labels", said, report)
            if not _LABEL_VALUE.fullmatch(value):
                said = f"{value!r:.70} is no value of a label: letters, digits, `.`, `_`, `-`, `*`"
                draft.problem("labels", said, report)
            if kind != "avoid" and labels.avoid.get(name) == value:
                said = f"{name}: {value} is in `avoid` and in `{kind}`; keep one"
                draft.problem("labels", said, report)
