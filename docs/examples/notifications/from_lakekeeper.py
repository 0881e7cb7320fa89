"""Tells Icestream of the commits that Lakekeeper tells of by Kafka or by NATS.

Needs confluent-kafka or nats-py, signed.py beside it, and Lakekeeper with LAKEKEEPER__KAFKA_CONFIG and
LAKEKEEPER__KAFKA_TOPIC, or with LAKEKEEPER__NATS_ADDRESS and LAKEKEEPER__NATS_TOPIC.
"""

import asyncio
import json
import os
from typing import Any

from signed import tell

COMMITS = {"createTable", "registerTable", "updateTable"}


def pass_on(events: list[dict[str, Any]]) -> None:
    """Without their data, the commit itself: it may be large, and is not looked at."""
    sender = os.environ["ICESTREAM_URL"], os.environ["ICESTREAM_SENDER"], os.environ["ICESTREAM_SECRET"]
    warehouse = os.environ["LAKEKEEPER_WAREHOUSE_ID"]  # which the sender's catalog is in Lakekeeper
    ours = [event for event in events if event.get("warehouse-id") == warehouse]
    if commits := [event | {"data": None} for event in ours if event["type"] in COMMITS]:
        try:
            tell(*sender, commits)
        except OSError as error:
            print(f"Icestream did not hear of a commit, and finds it by its next poll: {error}")


def from_kafka() -> None:
    """CloudEvents in binary mode, whose attributes are headers."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": os.environ["KAFKA_SERVERS"], "group.id": "icestream"})
    consumer.subscribe([os.environ["KAFKA_TOPIC"]])
    while True:
        messages = [one for one in consumer.consume(100, timeout=1) if one.error() is None]
        headers = [dict(message.headers() or ()) for message in messages]
        pass_on([{name.removeprefix("ce_"): text.decode() for name, text in one.items()} for one in headers])


async def from_nats() -> None:
    """CloudEvents in structured mode."""
    import nats

    connection = await nats.connect(os.environ["NATS_ADDRESS"])
    subscription = await connection.subscribe(os.environ["NATS_TOPIC"])
    async for message in subscription.messages:
        await asyncio.to_thread(pass_on, [json.loads(message.data)])


if __name__ == "__main__":
    if "NATS_ADDRESS" in os.environ:
        asyncio.run(from_nats())
    else:
        from_kafka()
