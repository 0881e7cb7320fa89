"""Tells Icestream of the commits that Polaris tells of by Kafka.

Needs confluent-kafka, signed.py beside it, and Polaris 1.7 or newer with

    polaris.event-listener.types=kafka
    polaris.event-listener.kafka.topic=polaris-catalog-events
    polaris.event-listener.kafka.properties.bootstrap.servers=localhost:9092
    polaris.event-listener.kafka.enabled-event-types=AFTER_CREATE_TABLE,AFTER_REGISTER_TABLE,AFTER_UPDATE_TABLE
"""

import json
import os

from confluent_kafka import Consumer
from signed import tell

COMMITS = {"AFTER_CREATE_TABLE", "AFTER_REGISTER_TABLE", "AFTER_UPDATE_TABLE"}


def main() -> None:
    sender = os.environ["ICESTREAM_URL"], os.environ["ICESTREAM_SENDER"], os.environ["ICESTREAM_SECRET"]
    catalog = os.environ["POLARIS_CATALOG"]  # which the sender's catalog is in Polaris
    settings = {"bootstrap.servers": os.environ["KAFKA_SERVERS"], "group.id": "icestream"}
    consumer = Consumer(settings)  # a new group begins with what comes then
    consumer.subscribe([os.environ.get("KAFKA_TOPIC", "polaris-catalog-events")])
    while True:
        values = [one.value() for one in consumer.consume(100, timeout=1) if one.error() is None]
        events = [event for event in map(json.loads, values) if event.get("catalog_name") == catalog]
        if commits := [event for event in events if event["event_type"] in COMMITS]:
            try:
                tell(*sender, commits)
            except OSError as error:
                print(f"Icestream did not hear of a commit, and finds it by its next poll: {error}")


if __name__ == "__main__":
    main()
