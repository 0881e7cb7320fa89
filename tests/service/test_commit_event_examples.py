"""docs/examples/notifications: what catalogs tell a queue reaches the service, by their own formats."""

import io
import json
import runpy
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_notifications import LAKEKEEPER, POLARIS, SECRET, Sender, told

database_kind = alike_on_both
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "notifications"
LAKEKEEPER_BY_KAFKA = {
    "content-type": b"application/json",
    **{f"ce_{name}": str(value).encode() for name, value in LAKEKEEPER.items() if name[:4] != "data"},
}
"""Headers of a record whose value is the event's data: its attributes, in binary mode."""
OF_POLARIS = {"KAFKA_SERVERS": "kafka:9092", "POLARIS_CATALOG": "lake"}
OF_LAKEKEEPER = {"LAKEKEEPER_WAREHOUSE_ID": LAKEKEEPER["warehouse-id"]}
BY_NATS = {"NATS_ADDRESS": "nats://nats:4222", "NATS_TOPIC": "iceberg"}


class QueueEndedError(Exception):
    """Nothing comes any more."""


class Message(SimpleNamespace):
    """As confluent-kafka has it, and as nats-py has it."""

    def __init__(self, value: Any, headers: Any = None, error: str | None = None) -> None:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        super().__init__(value=lambda: text, headers=lambda: headers, error=lambda: error, data=text)


class Queue:
    """Stands in for the client of a queue, which the examples import."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: Sequence[Sequence[Message]]) -> None:
        self._batches = iter(batches)
        self.subscribed: list[str] = []
        monkeypatch.setitem(sys.modules, "confluent_kafka", SimpleNamespace(Consumer=self._consumer))
        monkeypatch.setitem(sys.modules, "nats", SimpleNamespace(connect=self._connect))

    def _consumer(self, settings: dict[str, str]) -> Any:
        assert settings == {"bootstrap.servers": "kafka:9092", "group.id": "icestream"}
        return SimpleNamespace(subscribe=self.subscribed.extend, consume=self._consume)

    def _consume(self, num_messages: int, timeout: float) -> Sequence[Message]:
        for batch in self._batches:
            return batch
        raise QueueEndedError

    async def _connect(self, address: str) -> Any:
        assert address == "nats://nats:4222"
        return SimpleNamespace(subscribe=self._subscribe)

    async def _subscribe(self, subject: str) -> Any:
        self.subscribed.append(subject)
        return SimpleNamespace(messages=self._messages())

    async def _messages(self) -> AsyncIterator[Message]:
        for batch in self._batches:
            for message in batch:
                yield message


@pytest.fixture
def run(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, dict[str, str]], str]:
    """Runs an example as users do, until its queue is at its end; what it prints."""
    service.register(iceberg)
    variables = {"ICESTREAM_URL": service.url, "ICESTREAM_SENDER": Sender(service, monkeypatch).id}
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name: str, others: dict[str, str]) -> str:
        for variable, value in (variables | {"ICESTREAM_SECRET": SECRET} | others).items():
            monkeypatch.setenv(variable, value)
        # In a thread of its own: browsers of other tests leave an event loop in this one.
        printed = io.StringIO()
        with ThreadPoolExecutor(1) as threads, redirect_stdout(printed), suppress(QueueEndedError):
            threads.submit(runpy.run_path, str(EXAMPLES / name), run_name="__main__").result()
        return printed.getvalue()

    return run


def test_commits_in_polaris_are_told(
    service: Running, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = service.enroll(policy="manual")
    of_no_table = {name: POLARIS[name] for name in ("event_id", "timestamp", "catalog_name", "realm_id")}
    others = [
        POLARIS | {"event_type": "AFTER_LOAD_TABLE"},
        POLARIS | {"catalog_name": "other"},
        of_no_table | {"event_type": "AFTER_COMMIT_TRANSACTION"},
    ]
    created = Message(POLARIS | {"event_type": "AFTER_CREATE_TABLE"})
    batches = [
        [],
        [Message(b"", error="gone")],
        list(map(Message, others)),
        [created],
        [Message(POLARIS)] * 3,
    ]
    queue = Queue(monkeypatch, batches)
    assert run("from_polaris.py", OF_POLARIS) == ""
    assert queue.subscribed == ["polaris-catalog-events"]
    # Several at a time are one reason to look.
    assert told(service) == [table["id"]] * 2


def test_commits_in_lakekeeper_are_told_by_nats(
    service: Running, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = service.enroll(policy="manual")
    events = [
        LAKEKEEPER,
        LAKEKEEPER | {"type": "registerTable", "data": None},
        LAKEKEEPER | {"type": "dropTable", "data": None},
        LAKEKEEPER | {"warehouse-id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e99"},
        LAKEKEEPER | {"data": {"updates": ["x" * 300_000]}},  # more than a notification may have
    ]
    queue = Queue(monkeypatch, [list(map(Message, events))])
    assert run("from_lakekeeper.py", OF_LAKEKEEPER | BY_NATS) == ""
    assert queue.subscribed == ["iceberg"]
    assert told(service) == [table["id"]] * 3


def test_commits_in_lakekeeper_are_told_by_kafka(
    service: Running, iceberg: IcebergCatalog, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.catalog.create_namespace("eu")
    iceberg.create("eu.db.%74")
    table = service.enroll("eu.db.%74", policy="manual")
    deeper = LAKEKEEPER_BY_KAFKA | {"ce_namespace": b"eu\x1fdb", "ce_name": b"%74"}
    dropped = deeper | {"ce_type": b"dropTable"}
    batch = [Message({}, list(headers.items())) for headers in (deeper, dropped)]
    queue = Queue(monkeypatch, [[Message({}), Message(b"", error="gone")], batch])
    by_kafka = {"KAFKA_SERVERS": "kafka:9092", "KAFKA_TOPIC": "lakekeeper"}
    assert run("from_lakekeeper.py", OF_LAKEKEEPER | by_kafka) == ""
    assert queue.subscribed == ["lakekeeper"]
    assert told(service) == [table["id"]]


@pytest.mark.parametrize(
    ("name", "variables", "event"),
    [
        ("from_polaris.py", OF_POLARIS, POLARIS),
        ("from_lakekeeper.py", OF_LAKEKEEPER | BY_NATS, LAKEKEEPER),
    ],
)
def test_what_the_service_does_not_hear_is_left_to_its_next_poll(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], event: Any
) -> None:
    Queue(monkeypatch, [[Message(event)]] * 2)
    shown = run(name, variables | {"ICESTREAM_SENDER": "nobody"})
    assert shown.count("finds it by its next poll: HTTP Error 401") == 2
