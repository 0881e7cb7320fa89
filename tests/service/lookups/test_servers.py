"""How lookup servers are asked, which may be in trouble: those of these tests answer as they are told."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain, count, repeat
from threading import Barrier, Event
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr, ValidationError

from service.errors import IcestreamError
from service.lookups import concurrency, servers
from service.lookups.models import LookupAnswer
from service.lookups.questions import JSON_TYPE
from service.lookups.servers import Allowance, LookupServers
from service.settings import Settings
from tests.http_server import Answer, HttpServer, Request, answering
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import (
    alike_on_both,
    run_apart,
    running,
    with_lookup_server,
)
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.lookups.conftest import TOKEN
from worker.contract.lookups import SECONDS_LEFT

database_kind = alike_on_both


T = TypeVar("T")


@pytest.mark.parametrize(
    ("answer", "slug"),
    [
        (Answer("", 500), "lookups-unavailable"),
        (Answer("no json"), "lookups-unavailable"),
        (Answer({"code": "unauthorized", "title": "The token is another one"}, 401), "lookups-unavailable"),
        (Answer("{}", headers={"content-type": "text/html"}), "lookups-unavailable"),
        (Answer({"code": "outdated", "title": "The table changed in the meantime"}, 503), "table-changed"),
        (Answer({"code": "store_unavailable", "title": "A store does not answer"}, 503), "store-unavailable"),
        (Answer({"code": "out_of_time", "title": "The answer took too long"}, 503), "out-of-time"),
        (Answer({"code": "busy", "title": "The lookup servers are busy"}, 503), "lookups-busy"),
    ],
)
def test_a_server_that_cannot_answer_is_told_as_such(
    settings: Settings, iceberg: IcebergCatalog, answer: Answer, slug: str
) -> None:
    with (
        answering({"/lookups": answer}) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
    ):
        service.register(iceberg)
        table = service.enroll()["id"]
        told = service.admin.post(f"/tables/{table}/lookups", json={"keys": [{"id": 3}]})
        assert (told.status_code, told.json()["type"]) == (503, f"/problems/{slug}")
        assert told.json()["remedy"]
        assert int(told.headers["Retry-After"]) > 0


class Troubled:
    """Lookup servers behind one address: the first question meets another one than all others."""

    def __init__(
        self,
        first: Callable[["Troubled"], Answer],
        probe: Callable[["Troubled"], Answer],
        others: Callable[["Troubled"], Answer] | None = None,
    ) -> None:
        self.over = Event()
        """Whatever waits for this goes on."""
        self.asked = Event()
        """It was asked."""
        self._probe = probe
        self._next: Iterator[Callable[[Troubled], Answer]] = chain(
            [first], repeat(others or Troubled.answers_at_once)
        )

    def answers(self) -> dict[str, Answer | Callable[[Request], Answer]]:
        return {"/lookups": lambda _: next(self._next)(self), "/livez": lambda _: self._probe(self)}

    def stands_still(self) -> Answer:
        self.over.wait(PATIENCE_SECONDS)
        return ANSWER

    def dies(self) -> Answer:
        self.over.set()
        raise ConnectionError

    def says_that_it_stands_still(self) -> Answer:
        self.asked.set()
        return self.stands_still()

    def stands_still_and_dies(self) -> Answer:
        self.asked.wait(PATIENCE_SECONDS)
        raise ConnectionError

    def answers_later(self) -> Answer:
        self.asked.set()
        time.sleep(0.2)  # so that the other one's end is known
        return ANSWER

    def has_enough_to_do(self) -> Answer:
        return Answer({"code": "busy", "title": "t"}, 503)

    def answers_at_once(self) -> Answer:
        return ANSWER


ANSWER = Answer(
    {
        "snapshot_id": 1,
        "schema_id": 0,
        "head_age_seconds": 0,
        "key_columns": ["id"],
        "data_files_from_index": 0,
        "data_files_scanned": 0,
        "rows_scanned": 0,
        "results": [],
    }
)


def _asking(server: HttpServer, ask: Callable[[LookupServers], Coroutine[Any, Any, T]]) -> T:
    async def asked() -> T:
        servers = LookupServers(Settings(lookup_url=server.url, lookup_token=SecretStr(TOKEN)))
        try:
            return await ask(servers)
        finally:
            await servers.close()

    return run_apart(asked())


def _ask(troubled: Troubled) -> LookupAnswer:
    with answering(troubled.answers()) as server:
        try:
            return _asking(server, lambda servers: servers.ask({}))
        finally:
            troubled.over.set()


@pytest.mark.parametrize(("code", "count"), [("busy", 2), ("store_unavailable", 1), ("outdated", 1)])
def test_only_a_server_that_has_enough_to_do_is_asked_again_at_once(code: str, count: int) -> None:
    with answering({"/lookups": Answer({"code": code, "title": "t"}, 503)}) as server:
        with pytest.raises(IcestreamError):
            _asking(server, lambda servers: servers.ask({}))
        assert len(server.requests) == count


def test_a_server_is_told_how_long_it_is_waited_for() -> None:
    with answering({"/lookups": ANSWER}) as server:
        _asking(server, lambda servers: servers.ask({}))
        _asking(server, lambda servers: servers.ask({}, Allowance(time.monotonic() + 7, 10_000)))
        waits = [float(headers[SECONDS_LEFT.lower()]) for _, headers in server.requests]
    assert 7 < waits[0] <= 60
    assert 0 < waits[1] <= 7


def test_an_answer_is_passed_on_unread_and_not_taken_for_one_about_a_key() -> None:
    with answering({"/lookups": Answer({"results": []})}) as server:
        passed_on = _asking(server, lambda servers: servers.ask_for(JSON_TYPE, {}))
        assert json.loads(passed_on.content) == {"results": []}
        with pytest.raises(IcestreamError, match="nobody understands"):
            _asking(server, lambda servers: servers.ask({}))


def test_answers_are_bounded_each_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(ANSWER.body))
    monkeypatch.setattr(servers, "_SMALL_BYTES", 0)
    monkeypatch.setattr(servers, "_UNDER_WAY_BYTES", 2 * size)

    async def ask(asked: LookupServers) -> None:
        held = [await asked.ask_for(JSON_TYPE, {}) for _ in range(2)]
        for _ in range(2):
            with pytest.raises(IcestreamError, match="together") as refused:
                await asked.ask_for(JSON_TYPE, {})
            assert refused.value.slug == "lookups-busy"
        held.pop()
        assert (await asked.ask({})).snapshot_id == 1
        monkeypatch.setattr(servers, "_READ_BYTES", size - 1)
        with pytest.raises(IcestreamError) as refused:
            await asked.ask({})
        assert refused.value.slug == "answer-too-large"

    with answering({"/lookups": ANSWER}) as server:
        _asking(server, ask)


@pytest.mark.parametrize(
    "troubled",
    [
        Troubled(Troubled.dies, Troubled.answers_at_once),
        Troubled(Troubled.has_enough_to_do, Troubled.answers_at_once),
        Troubled(Troubled.stands_still, Troubled.answers_at_once),
        # It ends: no new question is taken, and the one that it has is answered.
        Troubled(Troubled.stands_still, Troubled.dies),
    ],
    ids=["dead", "busy", "standing still", "ending"],
)
def test_a_server_in_trouble_costs_no_answer(troubled: Troubled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    assert _ask(troubled).snapshot_id == 1


def test_a_question_that_servers_die_of_is_sent_to_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    both = Barrier(2)

    def die(_: Request) -> Answer:
        both.wait(PATIENCE_SECONDS)
        raise ConnectionError

    with answering({"/lookups": die, "/livez": Answer({})}) as server:
        with pytest.raises(IcestreamError) as told:
            _asking(server, lambda servers: servers.ask({}))
        assert [asked for asked, _ in server.requests if asked == "POST /lookups"] == ["POST /lookups"] * 2
    assert told.value.slug == "lookups-unavailable"


def test_an_answer_to_the_repetition_counts_when_the_first_server_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    troubled = Troubled(Troubled.stands_still_and_dies, Troubled.answers_at_once, Troubled.answers_later)
    assert _ask(troubled).snapshot_id == 1


def test_a_server_that_comes_to_others_gets_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are behind one address, where each connection meets the next one."""
    monkeypatch.setattr(servers, "_CONNECTION_QUESTIONS", 5)
    connections, asked = count(), [0, 0]
    body = json.dumps(ANSWER.body)
    answer = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n{body}"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met = next(connections) % 2
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
                asked[met] += 1
                writer.write(answer.encode())
                if "connection: close" in head:
                    return

    async def ask() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        asking = LookupServers(Settings(lookup_url=url, lookup_token=SecretStr(TOKEN)))
        for _ in range(20):
            await asking.ask({})
        await asking.close()
        listening.close()

    run_apart(ask())
    assert asked == [10, 10]


def test_servers_that_all_stand_still_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(servers, "ANSWER_SECONDS", PATIENCE_SECONDS)
    with pytest.raises(IcestreamError, match="nor their probes") as told:
        _ask(Troubled(Troubled.stands_still, Troubled.stands_still))
    assert told.value.status_code == 503


def test_an_answer_that_does_not_come_in_time_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    over = Event()

    def stand_still(_: Request) -> Answer:
        over.wait(PATIENCE_SECONDS)
        return ANSWER

    with answering({"/lookups": stand_still, "/livez": Answer({})}) as server:
        try:
            with pytest.raises(IcestreamError) as told:
                _asking(server, lambda servers: servers.ask({}))
        finally:
            over.set()
    assert told.value.slug == "out-of-time"


def test_the_questions_of_one_caller_leave_turns_to_others(
    settings: Settings, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "QUESTIONS", 1)
    monkeypatch.setattr(concurrency, "_WAIT_SECONDS", 0.1)
    asked = {"keys": [{"id": 3}]}
    troubled = Troubled(Troubled.says_that_it_stands_still, Troubled.answers_at_once)
    with (
        answering(troubled.answers()) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
        ThreadPoolExecutor(1) as thread,
    ):
        service.register(iceberg)
        path = f"/tables/{service.enroll()['id']}/lookups"
        key = service.admin.post("/api-keys", json={"name": "other", "role": "viewer"}).json()["key"]
        other = service.client_with({"Authorization": f"Bearer {key}"})
        first = thread.submit(service.admin.post, path, json=asked)
        try:
            assert troubled.asked.wait(PATIENCE_SECONDS)
            refused = [
                service.admin.post(path, json=asked),
                service.admin.post(f"{path}/history", json={"key": {"id": 3}}),
            ]
            assert other.post(path, json=asked).status_code == 200
        finally:
            troubled.over.set()
        assert first.result().status_code == 200
        assert service.admin.post(path, json=asked).status_code == 200
    for one in refused:
        assert (one.status_code, one.json()["type"]) == (429, "/problems/too-many-requests")
        assert int(one.headers["Retry-After"]) > 0


def test_the_overview_tells_that_no_lookup_server_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_START_SECONDS", 0)
    monkeypatch.setattr(servers, "_KNOWN_SECONDS", 0)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    with (
        answering({}) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
    ):
        for status, told in ((200, None), (503, "are busy"), (401, "another ICESTREAM_LOOKUP_TOKEN")):
            server.answers["/readyz"] = Answer({}, status)
            page = service.admin.get(f"{service.url}/").text
            assert told is None or told in page
            assert ("Nobody can be told where the rows of keys are" in page) == (told is not None)
        assert server.requests[0][1]["authorization"] == f"Bearer {TOKEN}"


def test_no_server_is_no_answer(settings: Settings, iceberg: IcebergCatalog) -> None:
    for url, status, slug in (
        ("http://127.0.0.1:9", 503, "lookups-unavailable"),
        ("", 409, "lookups-not-set-up"),
    ):
        with running(with_lookup_server(settings, url, TOKEN)) as service:
            if not url:
                table = service.admin.get("/tables").json()["items"][0]["id"]
            else:
                service.register(iceberg)
                table = service.enroll()["id"]
            told = service.admin.post(f"/tables/{table}/lookups", json={"keys": [{"id": 3}]})
            assert (told.status_code, told.json()["type"]) == (status, f"/problems/{slug}")
            counted = 'icestream_lookups_total{status="unavailable"} 1.0'
            assert (counted in service.admin.get(f"{service.url}/metrics").text) == (status == 503)


@pytest.mark.parametrize(
    ("url", "token", "why"),
    [
        ("lookup:8020", TOKEN, "no URL of http"),
        ("http://lookup:8020", None, "ICESTREAM_LOOKUP_TOKEN as well"),
        ("http://lookup:8020", "short", "at least 16"),
    ],
)
def test_half_a_setup_of_lookup_servers_is_refused(url: str, token: str | None, why: str) -> None:
    given = {"ICESTREAM_LOOKUP_URL": url} | ({"ICESTREAM_LOOKUP_TOKEN": token} if token else {})
    with pytest.MonkeyPatch.context() as environment:
        for name, value in given.items():
            environment.setenv(name, value)
        with pytest.raises(ValidationError, match=why):
            Settings()


@pytest.mark.parametrize(
    ("code", "status", "may_be_old"),
    [
        ("outdated", 503, True),
        ("unknown_snapshot", 404, True),
        ("unknown_columns", 400, True),
        ("unknown_key_columns", 400, True),
        ("not_covered", 409, True),
        ("unreadable", 409, True),
        ("invalid_key", 400, False),
        ("answer_too_large", 422, False),
        ("store_unavailable", 503, False),
        ("out_of_time", 503, False),
    ],
)
def test_what_a_newer_head_may_answer_is_asked_of_it(
    settings: Settings, iceberg: IcebergCatalog, code: str, status: int, may_be_old: bool
) -> None:
    locations: list[str] = []
    waits: list[float] = []

    def refuse_the_first(request: Request) -> Answer:
        location = json.loads(request.body)["table"]["metadata_location"]
        is_first = location in {*locations, *([] if locations else [location])}
        locations.append(location)
        waits.append(float(request.headers[SECONDS_LEFT.lower()]))
        time.sleep(0.1)
        return Answer({"code": code, "title": "t"}, status) if is_first else ANSWER

    with (
        answering({"/lookups": refuse_the_first}) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
    ):
        service.register(iceberg)
        path = f"/tables/{service.enroll()['id']}/lookups"
        asked = {"keys": [{"id": 3}], "max_staleness_seconds": 3_600}
        refused = service.admin.post(path, json=asked)
        iceberg.append("db.t", [4])
        answer = service.admin.post(path, json=asked)
    # As long as the head is the same, it is asked once.
    assert refused.status_code != 200
    assert (answer.status_code == 200) is may_be_old
    assert len(locations) == (3 if may_be_old else 2)
    assert len({*locations}) == (2 if may_be_old else 1)
    if may_be_old:  # in the time that is left
        assert waits[-1] < waits[-2] - 0.05
