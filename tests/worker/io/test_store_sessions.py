"""What a catalog vends for Google's and Azure's stores is renewed as that for S3 is."""

import json
import math
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.http_server import Answer, HttpServer, Request, answering, rest_catalog
from trust.egress import Egress
from trust.locations import LocationNotAllowedError
from trust.rest_answers import RestAnswers, session_ends
from worker.io.storage import ALLOWED_LOCATIONS, PLACES, Storage, is_of_ended_session, sessions_sent
from worker.process.errors import StorageError
from worker.table.catalogs import load_table

HOUR = timedelta(hours=1)
_HOST = "acc.dfs.core.windows.net"
_FILE = {"last-modified": "Thu, 26 Nov 2026 10:00:00 GMT", "etag": '"1"', "x-goog-generation": "1"}
_EXPIRED = "<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code><Message>Over\nnow</Message></Error>"


@dataclass
class Vending:
    """A store on loopback, and what a catalog vends for it. over: tokens that it takes no more."""

    place: str
    server: HttpServer
    over: set[str] = field(default_factory=set)
    used: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def give(self, told: timedelta | None = HOUR, now: float | None = None) -> dict[str, str]:
        """What is vended. told: for how long it says that this is good. now: in seconds since the epoch."""
        self.given.append(token := f"token-{next(self.numbers)}")
        end = str(round(((now or time.time()) + (told or HOUR).total_seconds()) * 1000))
        if self.place.startswith("gs:"):
            vended = {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": end}
            endpoint = {"gcs.service.host": self.server.url}
        else:
            vended = {f"adls.sas-token.{_HOST}": f"sig={token}"}
            vended[f"adls.sas-token-expires-at-ms.{_HOST}"] = end
            endpoint = {f"adls.connection-string.{_HOST}": self.server.url}
        return endpoint | {name: value for name, value in vended.items() if told or "expires" not in name}

    def shown(self, request: Request) -> Answer | None:
        """A refusal, unless the token is good."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query.get(
            "sig", ""
        )
        self.used.append(token)
        if token in self.given and token not in self.over:
            return None
        self.refused.append(token)
        if self.place.startswith("gs:"):
            return Answer({"error": {"code": 401, "message": "Invalid Credentials"}}, 401)
        return Answer(_EXPIRED, 403, {"x-ms-error-code": "AuthenticationFailed"})

    def file(self, request: Request) -> Answer:
        if refused := self.shown(request):
            return refused
        ranged = {"range", "x-ms-range"} & request.headers.keys()
        return Answer("content", 206 if ranged else 200, _FILE | {"content-range": "bytes 0-6/7"})

    def written(self, request: Request) -> Answer:
        return self.shown(request) or Answer("", 201, _FILE)


@pytest.fixture(params=["gs://lake", f"abfss://lake@{_HOST}"], ids=["google", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[Vending]:
    with answering({}) as server:
        store = Vending(request.param, server)
        server.answers |= {"/lake/a": store.file, "/lake/b": store.written}
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """now: what the clock says, in seconds since the epoch."""
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr("worker.io.storage.time", SimpleNamespace(time=lambda: clock.now))
    return clock


def use(store: Vending, storage: Storage) -> None:
    """By each library; by Arrow's for Google, which serves nobody in its own process, as far as the token."""
    assert storage.create(f"{store.place}/b", b"new")
    if store.place.startswith("gs:"):
        store.used.append(storage.io.at(f"{store.place}/a").properties["gcs.oauth2.token"])
        return
    assert storage.read(f"{store.place}/a") == b"content"
    with storage.io.new_input(f"{store.place}/a").open() as file:
        assert file.read() == b"content"


def test_what_a_catalog_vends_is_had_anew_in_time(store: Vending, clock: SimpleNamespace) -> None:
    storage = Storage(store.give(now=clock.now), lambda: store.give(now=clock.now))
    use(store, storage)
    assert store.given == ["token-1"]
    clock.now += 1801
    with sessions_sent() as ends:
        task: Storage = pickle.loads(pickle.dumps(storage))
    assert ends == [pytest.approx(clock.now + 3600, abs=0.01)]
    assert task == storage, "what is kept is found again"
    store.over.add("token-1")
    store.used.clear()
    for one in (storage, task):
        use(store, one)
    assert (set(store.used), store.refused) == ({"token-2"}, [])


def test_a_catalog_that_is_away_is_asked_again_until_the_session_is_over(
    store: Vending, clock: SimpleNamespace
) -> None:
    asked: list[float] = []

    def away() -> dict[str, str]:
        asked.append(clock.now)
        raise StorageError("away")

    storage = Storage(store.give(now=clock.now), away)
    for seconds in (1801, 1, 9):
        clock.now += seconds
        use(store, storage)
    assert len(asked) == 2
    clock.now += 1800
    with pytest.raises(StorageError, match="away"):
        use(store, storage)


def test_of_what_was_had_only_the_limits_stay(store: Vending, clock: SimpleNamespace) -> None:
    with answering({}) as elsewhere:
        led = Vending(store.place, elsewhere).give(timedelta(seconds=-1), clock.now)
        limits = {ALLOWED_LOCATIONS: store.place}
        storage = Storage(led | limits, lambda: store.give(now=clock.now))
        assert storage.io.current()[0] == {**storage.io.properties}
        use(store, storage)
        assert elsewhere.requests == []
    with pytest.raises(LocationNotAllowedError):
        storage.read(f"{store.place.replace('lake', 'pond')}/a")


def test_a_session_whose_end_is_not_told_is_asked_for_anew_from_time_to_time(
    store: Vending, clock: SimpleNamespace
) -> None:
    storage = Storage(store.give(None), lambda: store.give(None))
    for minutes, given in ((9, 1), (2, 2), (9, 2), (2, 3)):
        clock.now += minutes * 60
        use(store, storage)
        assert len(store.given) == given
        store.over |= set(store.given[:-1])
    assert store.refused == []
    # Tasks that are sent along with it come to an end too.
    with sessions_sent() as ends:
        pickle.dumps(storage)
    assert clock.now < ends[0] <= clock.now + 1200
    # Nobody would have anew what no catalog vended.
    with sessions_sent() as ends:
        pickle.dumps(Storage(store.give(None)))
    assert ends == []


def test_a_catalog_that_is_away_ends_no_session_whose_end_is_not_told(
    store: Vending, clock: SimpleNamespace
) -> None:
    def away() -> dict[str, str]:
        raise StorageError("away")

    storage = Storage(store.give(None), away)
    clock.now += 100_000
    use(store, storage)


def test_an_error_of_an_ended_session_is_known_by_its_words(store: Vending) -> None:
    """Where clocks differ, or nobody told the end."""
    storage = Storage(store.give())
    store.over |= set(store.given)
    with pytest.raises(OSError, match="could not be written") as caught:
        storage.create(f"{store.place}/b", b"new")
    assert is_of_ended_session(caught.value, math.inf), caught.value


def test_each_place_is_opened_with_what_was_vended_for_it(store: Vending, clock: SimpleNamespace) -> None:
    def vended() -> dict[str, str]:
        table, place = (store.give(now=clock.now) for _ in range(2))
        return table | {PLACES: json.dumps({f"{store.place}/": place})}

    storage = Storage(vended(), vended)
    use(store, storage)
    assert set(store.used) == {"token-2"}
    clock.now += 1801
    use(store, storage)
    assert store.used[-1] == "token-4"


@pytest.mark.parametrize("end", ["1795632023545", "soon", "-1", "9" * 400, "\u0661"])
def test_the_end_of_what_is_vended_is_a_time(end: str) -> None:
    said = {
        "gcs.oauth2.token": "t",
        "gcs.oauth2.token-expires-at": end,
        "adls.sas-token.acc": "t",
        "adls.sas-token-expires-at-ms.acc": end,
    }
    config = json.loads(
        RestAnswers({"uri": "http://catalog"}).harmless(json.dumps({"config": said}).encode())
    )["config"]
    is_known = end == "1795632023545"
    assert session_ends(config) == ([1795632023.545] * 2 if is_known else [None, None])
    assert len(config) == (4 if is_known else 2)


@pytest.mark.exhaustive  # it needs the JARs of ICESTREAM_STORES
@pytest.mark.integration
@pytest.mark.parametrize("where", ["config", "storage-credentials"])
@pytest.mark.parametrize("store", ["gs://lake"], indirect=True)
def test_java_has_anew_what_is_vended_for_google(
    spark: SparkSession, table_name: str, store: Vending, where: str
) -> None:
    metadata = TableBuilder.create(spark, table_name).metadata.model_dump(mode="json", by_alias=True)

    def found(request: Request) -> Answer:
        return store.shown(request) or Answer({"name": "a", "bucket": "lake", "size": "7", "generation": "1"})

    def load(_: Request) -> Answer:
        vended = store.give(timedelta(seconds=1))
        place = {"prefix": "gs://lake/", "config": vended}
        given = {"config": vended} if where == "config" else {"config": {}, where: [place]}
        return Answer({"metadata-location": "gs://lake/metadata.json", "metadata": metadata, **given})

    store.server.answers["/storage/v1/b/lake/o/a"] = found
    with answering(rest_catalog() | {"/v1/namespaces/db/tables/t": load}) as catalog:
        given = {"uri": catalog.url, "gcs.project-id": "project", "gcs.service.host": store.server.url}
        given["header.X-Iceberg-Access-Delegation"] = "vended-credentials"
        table = load_table(
            spark.sparkContext._jvm, "rest", "c", given, ["db", "t"], egress=Egress(("127.0.0.0/8",))
        )
        for _ in range(2):
            assert table.io().newInputFile("gs://lake/a").getLength() == len("content")
            store.over |= set(store.given)
            time.sleep(1.1)  # what was told is over then
    assert store.refused == []
    assert len(set(store.used)) >= 2
