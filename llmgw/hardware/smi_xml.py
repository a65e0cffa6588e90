"""Reads `nvidia-smi -q -x`: one report for each card, as the schema of its driver has it.

Pure. Every value is read by its full path, since the same tag stands under several parents, and
every path that drivers 418 to 595 use is tried, newest first. `assemble` joins the reports with
the listing; nothing here decides what can be placed on.

Only the root element is parsed. What stands before it, a document type that names an external DTD,
is cut off: so nothing is ever fetched, and no entity is ever declared that could grow in parsing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Literal

from llmgw.errors import BackendUnavailable
from llmgw.hardware import readings as read
from llmgw.hardware.classes import card_class
from llmgw.hardware.reports import (
    Report,
    ReportedCard,
    ReportedInstance,
    ReportedProcess,
    Trouble,
    processes_or_unknown,
)
from llmgw.hardware.smi_fields import clocks, fabric, fan_and_heat, memory, throttled_by, wear
from llmgw.hardware.types import MIG_CARD_STRIDE, Card, Process

_START = re.compile(r"<nvidia_smi_log[\s>]")
_END = "</nvidia_smi_log>"
_PROLOG = re.compile(r"<\?xml[^>]*>|<!DOCTYPE[^>]*>")
_NAME_LINE = re.compile(r"<process_name>[^\n]*</process_name>[ \t\r]*$", re.MULTILINE)
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def begins_report(text: str) -> bool:
    """Whether a report begins in a text, be it whole or cut off."""
    return _START.search(text) is not None


def holds_report(text: str) -> bool:
    """Whether a text holds a whole report, from its start to its end."""
    return begins_report(text) and _END in text


def parse_report(text: str) -> Report:
    """The report in what the tool printed; warnings may stand before and after it.

    Raises `BackendUnavailable` where there is no whole report.
    """
    start = _START.search(text)
    if start is None:
        raise BackendUnavailable(f"nvidia-smi -q -x printed no report but {_excerpt(text)}")
    end = text.rfind(_END)
    if end < start.start():
        raise BackendUnavailable(
            "the report of nvidia-smi -q -x is cut off: it has no end. The tool was stopped midway,"
            " or the file was not copied whole; run it again"
        )
    document = text[start.start() : end + len(_END)]
    log = _parse_xml(document)
    before = _PROLOG.sub("", text[: start.start()])
    around = (before + "\n" + text[end + len(_END) :]).splitlines()
    return Report(
        driver_version=read.word(log.findtext("driver_version")),
        cuda_version=read.word(log.findtext("cuda_version")),
        attached=read.counter(log.findtext("attached_gpus")),
        cards=tuple(_card(gpu, position) for position, gpu in enumerate(log.findall("gpu"))),
        outside=tuple(line.strip()[:200] for line in around if line.strip()),
    )


def _parse_xml(document: str) -> ET.Element:
    # The tool does not escape the names of processes, and nothing here needs them.
    document = _NOT_XML.sub("", _NAME_LINE.sub("<process_name/>", document))
    try:
        return ET.fromstring(document)  # noqa: S314 - without a DTD no entity can grow
    except (ET.ParseError, ValueError) as error:
        raise BackendUnavailable(
            f"the report of nvidia-smi -q -x is not valid XML ({error}): run it by hand and compare"
        ) from error


def _card(gpu: ET.Element, position: int) -> ReportedCard:
    product = read.word(gpu.findtext("product_name"))
    total, reserved, used, free = memory(gpu)
    return ReportedCard(
        card=Card(
            index=position,
            uuid=read.word(gpu.findtext("uuid")) or "",
            name=product or "unknown",
            card_class=card_class(product, total),
            pci=read.word(gpu.findtext("pci/pci_bus_id")) or read.word(gpu.get("id")),
            memory_total_bytes=total,
            memory_reserved_bytes=reserved,
            memory_used_bytes=used,
            memory_free_bytes=free,
            mig_mode=_mode(gpu.findtext("mig_mode/current_mig")),
            mig_pending=_mode(gpu.findtext("mig_mode/pending_mig")),
            compute_mode=read.word(gpu.findtext("compute_mode")),
            fabric=fabric(gpu),
            utilization_percent=read.percent(gpu.findtext("utilization/gpu_util")),
            throttled_by=throttled_by(gpu),
            pcie_replays=read.counter(gpu.findtext("pci/replay_counter")),
            recovery_action=_recovery_action(gpu),
            wear=wear(gpu),
            **fan_and_heat(gpu),
            **clocks(gpu),
        ),
        architecture=read.word(gpu.findtext("product_architecture")),
        instances=tuple(_instances(gpu)),
        processes=_processes(gpu),
        trouble=_trouble(gpu),
        memory_absent=_memory_absent(gpu),
        coherent=read.bare(gpu.findtext("addressing_mode")) == "ats",
        fabric_status=read.word(gpu.findtext("fabric/status")),
    )


def _mode(value: str | None) -> Literal["enabled", "disabled"] | None:
    text = read.bare(value)
    return "enabled" if text == "enabled" else "disabled" if text == "disabled" else None


def _recovery_action(gpu: ET.Element) -> str | None:
    """`none`, `reset`, `reboot`, `drain-p2p`, `drain-and-reset`; here the word None is a value."""
    action = read.word(gpu.findtext("gpu_recovery_action"))
    if action is not None:
        return "-".join(action.lower().split())
    if read.yes_no(gpu.findtext("gpu_reset_status/reset_required")):
        return "reset"
    return None


def _trouble(gpu: ET.Element) -> Trouble | None:
    """Why nothing can run on the card, as its values say."""
    texts = {read.bare(element.text) for element in gpu.iter() if element.text}
    if "gpu is lost" in texts:
        return "lost"
    if read.NEEDS_RESET in texts:
        return "needs-reset"
    vital = [read.bare(gpu.findtext(f"fb_memory_usage/{part}")) for part in ("total", "used")]
    vital.append(read.bare(gpu.findtext("temperature/gpu_temp")))
    broken = [text in read.LOST or text == read.UNKNOWN_ERROR for text in vital]
    if broken[0] or all(broken[1:]) or "err!" in vital:
        return "lost"
    return "no-permission" if vital[0] == read.NO_PERMISSION else None


def _memory_absent(gpu: ET.Element) -> bool:
    """Whether the driver says that the card has no memory of its own, or a total of zero."""
    parts = [gpu.findtext(f"fb_memory_usage/{part}") for part in ("total", "used", "free")]
    if read.mebibytes(parts[0]) == 0:
        return True
    return all(read.bare(part) in ("n/a", "not supported") for part in parts)


def _instances(gpu: ET.Element) -> list[ReportedInstance]:
    found = []
    for element in gpu.findall("mig_devices/mig_device"):
        index = read.counter(element.findtext("index"))
        if index is None or index >= MIG_CARD_STRIDE:
            continue
        total, reserved, used, free = memory(element)
        found.append(
            ReportedInstance(
                index=index,
                uuid=_instance_uuid(element),
                gpu_instance=read.counter(element.findtext("gpu_instance_id")),
                compute_instance=read.counter(element.findtext("compute_instance_id")),
                multiprocessors=read.counter(
                    element.findtext("device_attributes/shared/multiprocessor_count")
                ),
                memory_total_bytes=total,
                memory_reserved_bytes=reserved,
                memory_used_bytes=used,
                memory_free_bytes=free,
            )
        )
    return found


def _instance_uuid(element: ET.Element) -> str | None:
    uuid = read.word(element.findtext("uuid"))
    return uuid if uuid and uuid.startswith("MIG-") else None


def _processes(gpu: ET.Element) -> tuple[ReportedProcess, ...] | None:
    """The processes; `None` where the driver does not tell or tells what cannot be true."""
    element = gpu.find("processes")
    if element is None or read.bare(element.text) not in ("", "none"):
        return None
    return processes_or_unknown(
        [
            ReportedProcess(
                Process(
                    pid=read.counter(info.findtext("pid")) or 0,
                    memory_bytes=read.mebibytes(info.findtext("used_memory")),
                ),
                read.counter(info.findtext("gpu_instance_id")),
                read.counter(info.findtext("compute_instance_id")),
            )
            for info in element.findall("process_info")
        ]
    )


def _excerpt(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return repr(line[:120]) if line else "nothing"
