"""Print the log of an llmgw cluster, one JSON object a line: first what is there, then what comes.

    python follow.py nats://127.0.0.1:4222 default [SEQUENCE]

Needs nats-py alone. Starts at SEQUENCE (1 without it) and goes on over restarts of the server,
without a gap and without a double: remember the last sequence that you were given and start at
the next one after a restart of your own.
"""

import asyncio
import json
import sys

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy


async def follow(url: str, cluster: str, sequence: int) -> None:
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.5)
    subscription = await client.jetstream().subscribe(
        f"llmgw.v1.{cluster}.event.>",
        stream=f"LLMGW_{cluster}_LOG",
        ordered_consumer=True,
        idle_heartbeat=1,
        config=ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=sequence
        ),
    )
    async for message in subscription.messages:
        event = json.loads(message.data)
        place = message.metadata.sequence.stream
        print(json.dumps({"sequence": place, "type": event["type"], **event["data"]}), flush=True)


if __name__ == "__main__":
    url, cluster, *rest = sys.argv[1:]
    asyncio.run(follow(url, cluster, int(rest[0]) if rest else 1))
