"""What a person asks for, as operator events: safe in the log before anybody acts on it."""

from __future__ import annotations

import secrets

from llmgw import wire
from llmgw.catalog.entries import Catalog
from llmgw.clock import now
from llmgw.core.events import CatalogApplied, Event
from llmgw.log.base import Log


async def ask(log: Log, cluster: str, request: Event) -> int:
    """Append an operator's request under an id of its own, and return its sequence."""
    message = wire.encode_event(
        cluster, request, session=secrets.token_hex(16), number=1, time=now()
    )
    return await log.append(message.subject, message.payload, message_id=message.message_id)


async def apply_catalog(log: Log, cluster: str, catalog: Catalog, file: str | None) -> int:
    """Ask for `catalog`, read from `file`, and return the sequence of the request."""
    return await ask(log, cluster, CatalogApplied(catalog=catalog, file=file))
