"""Webhooks: what a receiver on loopback gets, and when. On both databases."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import select

from service.catalogs.clients import allowed_session
from service.db.database import Database, utc_now
from service.jobs import queue
from service.jobs.events import record_table_event
from service.records.audit import AuditEntry
from service.records.webhooks import Webhook, WebhookDelivery
from service.scheduling.retention import forget
from service.settings import Settings
from service.webhooks.outbox import write_events
from service.webhooks.sender import WebhookSender, pause
from service.webhooks.service import last_failure_at
from telemetry.traces import adopt
from tests.http_server import Answer, HttpServer, Request, answering
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import Running, alike_on_both
from tests.service.queue_calls import add_tables, at_once, request

# What is sent, and when, is decided in Python.
database_kind = alike_on_both

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "whsec_" + base64.b64encode(b"a key of these tests, 32 bytes..").decode()
PATH = "/hook"
SETTINGS = Settings(webhook_attempts=3, webhook_timeout_seconds=PATIENCE_SECONDS)
DOCUMENT = Path(__file__).parents[2] / "docs" / "webhooks.md"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)


@dataclass
class Receiver:
    """answer: what it says next; 204 unless a test wants something else."""

    answer: Callable[[Request], Answer] = lambda _: Answer(status=204)
    taken: list[Request] = field(default_factory=list)
    url: str = ""

    def messages(self) -> list[str]:
        return [json.loads(request.body)["data"]["message"] for request in self.taken]

    def ids(self) -> list[str]:
        return [request.headers["webhook-id"] for request in self.taken]


@contextmanager
def receiving() -> Iterator[tuple[Receiver, HttpServer]]:
    receiver = Receiver()
    lock = threading.Lock()

    def take(sent: Request) -> Answer:
        with lock:
            receiver.taken.append(sent)
        return receiver.answer(sent)

    with answering({PATH: take}) as server:
        receiver.url = server.url + PATH
        yield receiver, server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as (receiver, _):
        yield receiver


class Outbox:
    """Sends by a clock that a test sets."""

    def __init__(self, database: Database, settings: Settings = SETTINGS) -> None:
        self.database, self.settings = database, settings
        self.now = utc_now()
        self.sender = WebhookSender(database, settings, lambda: self.now)

    def add(self, url: str, *kinds: str, name: str = "w") -> str:
        with self.database.write() as session:
            webhook = Webhook(
                name=name, url=url, kinds=list(kinds), secret="env:WEBHOOK_TEST", created_by="test"
            )
            session.add(webhook)
            return webhook.id

    def tell(self, table_id: str, message: str) -> None:
        with self.database.write() as session:
            record_table_event(session, table_id, "table.replaced", message, self.now)

    def send(self, webhook_id: str) -> None:
        """All that is due."""
        with allowed_session(self.settings, self.settings.webhook_timeout_seconds) as http:
            while self.sender.send_next(webhook_id, http):
                pass

    def deliveries(self) -> list[WebhookDelivery]:
        with self.database.read() as session:
            return list(session.exec(select(WebhookDelivery).order_by(WebhookDelivery.id)))  # type: ignore[arg-type]

    def states(self) -> list[str]:
        return [delivery.status for delivery in self.deliveries()]


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


def verifies(sent: Request, secret: str = SECRET) -> bool:
    """By the code that docs/webhooks.md gives to receivers."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return bool(names["verify"](secret, sent.headers, sent.body.encode()))


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_webhook_that_is_enabled_just_before_events_are_written_gets_them(outbox: Outbox) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    told = {"at": outbox.now, "kind": "table.replaced", "level": "info", "table_id": table}
    told |= {"job_id": None, "attempt": None, "fields": {}}

    def enable(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("INSERT INTO events"):
            outbox.add("https://receiver.example", "table")

    event.listen(outbox.database.engine, "before_cursor_execute", enable)
    with outbox.database.write() as session:
        write_events(session, [{**told, "message": message} for message in ("first", "second")])
    sent = [delivery.event["data"]["message"] for delivery in outbox.deliveries()]
    assert sent == ["first", "second"]


def test_an_event_is_sent_signed_as_a_cloud_event_to_whoever_asked_for_it(
    outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    webhook = outbox.add(receiver.url, "job.queued", "table")
    outbox.add(receiver.url, "job.failed", "decision", name="other")
    outbox.tell(table, "told")
    adopt(TRACEPARENT)
    job_id = request(outbox.database, table, now=outbox.now)
    adopt(None)
    with outbox.database.write() as session:
        queue.cancel(session, queue.get_job(session, job_id), "enough", outbox.now)
    outbox.send(webhook)
    assert outbox.states() == ["delivered", "delivered"]
    first, second = receiver.taken
    assert first.headers["content-type"] == "application/cloudevents+json"
    event = json.loads(second.body)
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": str(data["event_id"]),
        "source": "/icestream",
        "type": "icestream.job.queued",
        "subject": f"tables/{table}",
        "time": event["time"],
        "traceparent": TRACEPARENT,
        "datacontenttype": "application/json",
    }
    assert "traceparent" not in json.loads(first.body)
    assert abs(datetime.fromisoformat(event["time"]) - outbox.now) < timedelta(seconds=1)
    told = (data["job_id"], data["catalog"], data["identifier"], data["fields"]["job_kind"])
    assert told == (job_id, "local", ["db", "t0"], "convert")
    assert verifies(first)
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    assert not verifies(first, other)
    assert not verifies(Request(first.headers, first.body.replace("told", "lied")))
    assert not verifies(Request({**first.headers, "webhook-id": "another"}, first.body))
    # While a key is changed, both sign.
    monkeypatch.setenv("WEBHOOK_TEST", f"{SECRET} {other}")
    outbox.tell(table, "told again")
    outbox.send(webhook)
    assert verifies(receiver.taken[-1])
    assert verifies(receiver.taken[-1], other)


def test_an_event_that_is_rolled_back_is_not_sent(outbox: Outbox, receiver: Receiver) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    outbox.add(receiver.url, "table")
    with outbox.database.write() as session:
        record_table_event(session, table, "table.replaced", "never", outbox.now)
        session.flush()
        assert len(session.exec(select(WebhookDelivery)).all()) == 1
        session.rollback()
    assert outbox.deliveries() == []


def test_a_table_waits_for_a_receiver_that_is_down_and_is_told_in_order_once_it_is_back(
    outbox: Outbox, receiver: Receiver
) -> None:
    tables = add_tables(outbox.database, ["u", "v"])
    webhook = outbox.add(receiver.url, "table")
    is_down = True
    receiver.answer = lambda sent: Answer(status=503 if is_down and '"message":"a' in sent.body else 200)
    for table, message in zip([*tables, *tables], ["a1", "b1", "a2", "b2"], strict=True):
        outbox.tell(table, message)
    outbox.send(webhook)
    assert receiver.messages() == ["a1", "b1", "b2"]
    outbox.now += timedelta(seconds=1)
    outbox.send(webhook)
    assert len(receiver.taken) == 3
    waits = outbox.deliveries()[0]
    assert (waits.status_code, waits.error, waits.attempts) == (503, "The receiver answered 503.", 1)
    is_down = False
    outbox.now += timedelta(seconds=10)
    outbox.send(webhook)
    assert receiver.messages() == ["a1", "b1", "b2", "a1", "a2"]
    assert receiver.ids()[0] == receiver.ids()[3]
    assert len(set(receiver.ids())) == 4
    assert set(outbox.states()) == {"delivered"}


def test_what_nobody_takes_is_given_up_and_the_next_follows(outbox: Outbox, receiver: Receiver) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    webhook = outbox.add(receiver.url, "table")
    receiver.answer = lambda sent: Answer(status=500 if "first" in sent.body else 200)
    outbox.tell(table, "first")
    outbox.tell(table, "second")
    for _ in range(SETTINGS.webhook_attempts):
        outbox.send(webhook)
        outbox.now += timedelta(days=1)
    assert outbox.states() == ["dead", "delivered"]
    assert receiver.messages() == ["first"] * SETTINGS.webhook_attempts + ["second"]


def test_pauses_grow_to_six_hours_and_differ() -> None:
    for attempt, seconds in ((1, 5), (2, 15), (4, 135), (9, 6 * 3600), (1000, 6 * 3600)):
        drawn = {pause(5, attempt).total_seconds() for _ in range(20)}
        assert len(drawn) > 1
        assert all(0.75 * seconds <= one <= 1.25 * seconds for one in drawn)


def test_a_receiver_that_is_too_slow_or_not_there_is_asked_again(
    database: Database, receiver: Receiver
) -> None:
    outbox = Outbox(database, SETTINGS.model_copy(update={"webhook_timeout_seconds": 0.2}))
    slow, closed = add_tables(outbox.database, ["u", "v"])
    webhook = outbox.add(receiver.url, "table")
    go_on = threading.Event()

    def hang(_: Request) -> Answer:
        go_on.wait(PATIENCE_SECONDS)
        return Answer()

    receiver.answer = hang
    outbox.tell(slow, "slow")
    outbox.send(webhook)
    go_on.set()
    assert outbox.deliveries()[0].error == "The receiver did not answer: ReadTimeout."
    with receiving() as (_, server):
        gone = server.url + PATH
    nobody = outbox.add(gone, "table", name="closed")
    outbox.tell(closed, "closed")
    outbox.send(nobody)
    assert outbox.deliveries()[-1].error == "The receiver did not answer: ConnectionError."
    assert set(outbox.states()) == {"pending"}


def test_a_receiver_that_is_gone_is_switched_off_and_what_waits_stays(
    outbox: Outbox, receiver: Receiver
) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    webhook = outbox.add(receiver.url, "table")
    receiver.answer = lambda _: Answer(status=410)
    outbox.tell(table, "first")
    outbox.tell(table, "second")
    outbox.send(webhook)
    outbox.tell(table, "while it is off")
    assert outbox.states() == ["dead", "pending"]
    with outbox.database.write() as session:
        assert last_failure_at(session) == outbox.now
        row = session.get_one(Webhook, webhook)
        assert (row.enabled, row.disabled_because) == (False, "The receiver answered 410 Gone.")
        row.enabled = True
        session.add(row)
    receiver.answer = lambda _: Answer()
    outbox.send(webhook)
    assert receiver.messages() == ["first", "second"]


def test_replicas_that_all_send_send_each_event_once_and_in_order(
    database: Database, receiver: Receiver
) -> None:
    outbox = Outbox(database)
    tables = add_tables(database, ["u", "v", "w"])
    webhook = outbox.add(receiver.url, "table")
    for number in range(8):
        for table in tables:
            outbox.tell(table, f"{table} {number}")
    at_once(3, lambda _: Outbox(database).send(webhook))
    # Whoever found nothing that it may send has ended; what is left goes now.
    outbox.send(webhook)
    assert len(set(receiver.ids())) == len(receiver.taken) == 24
    for table in tables:
        mine = [message for message in receiver.messages() if message.startswith(table)]
        assert mine == [f"{table} {number}" for number in range(8)]


def test_what_a_replica_died_with_is_sent_again_and_a_late_outcome_changes_nothing(
    outbox: Outbox, receiver: Receiver
) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    webhook = outbox.add(receiver.url, "table")
    outbox.tell(table, "told")
    died = outbox.sender._claim(webhook)
    assert died is not None
    outbox.send(webhook)
    assert receiver.taken == []
    outbox.now += timedelta(seconds=3 * PATIENCE_SECONDS)  # longer than an attempt may take
    receiver.answer = lambda _: Answer(status=500)
    outbox.send(webhook)
    assert len(receiver.taken) == 1
    with allowed_session(SETTINGS, 5) as http:
        receiver.answer = lambda _: Answer()
        outbox.sender._record(died, outbox.sender._send(died, http))
    assert outbox.states() == ["pending"]
    # A clock that was set back by days keeps nothing waiting for as long.
    outbox.now -= timedelta(days=3)
    outbox.send(webhook)
    assert outbox.states() == ["delivered"]


def test_no_event_goes_where_the_operator_does_not_allow_it(database: Database) -> None:
    (table,) = add_tables(database, ["u"])
    with receiving() as (receiver, server):
        public = Outbox(database, Settings(host="0.0.0.0"))
        port = server.port
        names = [f"http://{host}:{port}{PATH}" for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]")]
        webhooks = [public.add(url, "table", name=url) for url in names]
        public.tell(table, "told")
        for webhook in webhooks:
            public.send(webhook)
        assert receiver.taken == []
        assert all("is not among the hosts" in (one.error or "") for one in public.deliveries())
        # Nor where a receiver that is allowed sends it.
        receiver.answer = lambda _: Answer(status=307, headers={"location": "/elsewhere"})
        outbox = Outbox(database)
        followed = outbox.add(receiver.url, "table", name="redirects")
        outbox.tell(table, "told")
        outbox.send(followed)
        assert len(receiver.taken) == 1
        assert [path for path, _ in server.requests] == [f"POST {PATH}"]
        assert outbox.deliveries()[-1].error == "The receiver answered 307: redirects are not followed."


def test_old_deliveries_are_forgotten(outbox: Outbox, receiver: Receiver) -> None:
    (table,) = add_tables(outbox.database, ["u"])
    outbox.add(receiver.url, "table")
    outbox.tell(table, "told")
    for days, left in ((29, 1), (31, 0)):
        forget(outbox.database, SETTINGS, outbox.now + timedelta(days=days))
        assert len(outbox.deliveries()) == left


def test_admins_make_change_try_and_remove_webhooks(service: Running, receiver: Receiver) -> None:
    admin = service.admin
    body = {"name": "on-call", "url": receiver.url, "kinds": ["job"], "secret": "env:WEBHOOK_TEST"}
    for field_name, value, problem in (
        ("url", "ftp://127.0.0.1/x", "webhook-url-not-supported"),
        ("url", "https://me:secret@hooks.example/", "webhook-url-not-supported"),
        ("url", "http://169.254.169.254/latest", "host-not-allowed"),
        ("secret", "whsec_clear", "secret-in-clear"),
        ("secret", "env:ICESTREAM_BOOTSTRAP_KEY", "secret-not-allowed"),
        ("secret", "env:WEBHOOK_NOT_THERE", "secret-unavailable"),
        ("secret", "env:PATH", "webhook-secret-unusable"),
        ("kinds", ["job.progress"], "validation-error"),
        ("kinds", [], "validation-error"),
    ):
        answer = admin.post("/webhooks", json=body | {field_name: value})
        assert (answer.status_code, answer.json()["type"]) == (422, f"/problems/{problem}"), value
    made = admin.post("/webhooks", json=body)
    assert made.status_code == 201, made.text
    path = f"/webhooks/{made.json()['id']}"
    assert admin.post("/webhooks", json=body).json()["type"] == "/problems/webhook-exists"
    assert admin.patch(path, json={"enabled": False}).status_code == 428
    off = admin.patch(path, json={"enabled": False}, headers={"If-Match": made.headers["etag"]})
    assert (off.status_code, off.json()["enabled"], off.headers["etag"]) == (200, False, '"2"')
    assert admin.patch(path, json={}, headers={"If-Match": made.headers["etag"]}).status_code == 412
    assert admin.post(f"{path}/test").json()["type"] == "/problems/webhook-disabled"
    admin.patch(path, json={"enabled": True}, headers={"If-Match": "*"})

    receiver.answer = lambda _: Answer(status=410)
    sent = admin.post(f"{path}/test")
    assert (sent.status_code, sent.json()["status"], sent.json()["kind"]) == (202, "pending", "webhook.test")
    # As in the background of the replica that schedules.
    service.background.tick()
    while admin.get(path).json()["pending"]:
        time.sleep(0.05)
    (listed,) = admin.get("/webhooks", params={"enabled": False}).json()["items"]
    assert (listed["dead"], listed["disabled_because"]) == (1, "The receiver answered 410 Gone.")
    (dead,) = admin.get(f"{path}/deliveries", params={"status": "dead"}).json()["items"]
    assert (dead["message_id"], dead["status_code"], dead["attempts"]) == (receiver.ids()[0], 410, 1)
    figures = service.client_with({}).get(f"{service.url}/metrics").text
    assert 'icestream_webhook_deliveries{status="dead"} 1.0' in figures
    assert admin.post(f"{path}/resend").json() == {"resent": 1}
    assert admin.post(f"{path}/resend").json() == {"resent": 0}
    again = admin.post(f"{path}/deliveries/{dead['id']}/resend").json()
    assert (again["status"], again["attempts"], again["message_id"]) == ("pending", 0, dead["message_id"])
    assert admin.get(f"{path}/deliveries/{dead['id']}").json()["event"]["type"] == "icestream.webhook.test"
    assert admin.get(f"{path}/deliveries/9999").json()["type"] == "/problems/delivery-not-found"
    assert admin.get(f"{path}/deliveries", params={"kind": "job.failed"}).json()["items"] == []
    assert admin.delete(path, headers={"If-Match": '"1"'}).status_code == 412
    assert admin.delete(path).status_code == 204
    assert admin.get(path).json()["type"] == "/problems/webhook-not-found"
    with service.database.read() as session:
        actions = {entry.action for entry in session.exec(select(AuditEntry)) if entry.target == "on-call"}
        assert session.exec(select(WebhookDelivery)).all() == []
    told = {"create", "update", "test", "resend", "delete"}
    assert actions == {f"webhook.{action}" for action in told}
