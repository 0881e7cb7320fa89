"""Whatever a catalog answers, a worker and its Java reach only allowed hosts, and load no code by name."""

import gc
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder
from tests.http_server import Answer, HttpServer, Request, answering, rest_catalog
from tests.jobs import RecordingReporter
from tests.patience import PATIENCE_SECONDS
from tests.service.test_egress import INTERNAL, answer_names
from trust.bounds import ANSWER_BYTES, OutOfTimeError
from trust.egress import Egress, HostNotAllowedError
from trust.rest_answers import SESSION_END, SentElsewhereError
from worker.contract.control_plane import Assignment
from worker.jobs.pipeline import run_job
from worker.process.errors import JobError
from worker.process.slots import Slot
from worker.spark.tasks import TaskRunner
from worker.table import rest_gateway
from worker.table.catalogs import CodeNotAllowedError, file_io_properties, load_table
from worker.table.rest_gateway import RestGateway, open_gateway

PUBLIC = Egress(("*",))
LOOPBACK = Egress(("*", "127.0.0.0/8", "::1"))
ELSEWHERE = "http://169.254.169.254"


@pytest.mark.parametrize("host", [host for host in INTERNAL if host != "x.localhost"])  # seldom known
def test_no_spelling_of_an_internal_address_is_reached(host: str) -> None:
    for properties in (
        {"uri": f"http://{host}:8181/catalog"},
        {"s3.endpoint": f"{host}:9000"},
        {"adls.connection-string.acc": f"DefaultEndpointsProtocol=http;BlobEndpoint=http://{host}/x;"},
    ):
        with pytest.raises(HostNotAllowedError, match="not among the hosts"):
            PUBLIC.check(properties)


def test_rules_are_names_domains_addresses_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_names(monkeypatch, "127.0.0.1")
    assert Egress(("*.example",)).addresses_of("catalog.example", 80) == ["127.0.0.1"]
    named = Egress(("localhost", "127.0.0.2/31", "::1"))
    named.check({"uri": "http://localhost:1", "s3.endpoint": "127.0.0.3", "x.host": "[::1]"})
    for host in ("127.0.0.4", "93.184.215.14"):
        with pytest.raises(HostNotAllowedError):
            named.check({"uri": f"thrift://{host}:9083"})
    # Of these, none is a host's address; and where no limits are told, none hold.
    LOOPBACK.check({"warehouse": "s3://169.254.169.254/wh", "scope": ELSEWHERE, "header.X": ELSEWHERE})
    Egress().check({"uri": ELSEWHERE})


@pytest.fixture
def catalog_server() -> Iterator[HttpServer]:
    with answering(rest_catalog()) as server:
        yield server


def ask(gateway: RestGateway, path: str = "v1/config", method: str = "GET") -> Any:
    """What Java gets."""
    return httpx.request(method, f"{gateway.url}/{path}", timeout=PATIENCE_SECONDS)


def test_java_learns_no_credentials_and_no_address_of_the_catalog(catalog_server: HttpServer) -> None:
    properties = {"uri": catalog_server.url, "token": "hidden", "header.X-Key": "hidden", "s3.region": "eu-1"}
    gateway = RestGateway("c", properties, LOOPBACK)
    java = gateway.java_properties({**properties, "rest.client.socket-timeout-ms": "1"})
    assert java == {"uri": gateway.url, "rest.auth.type": "none", "s3.region": "eu-1"}
    assert ask(gateway, "v1/namespaces").json() == {"namespaces": [["db"]]}
    asked, headers = catalog_server.requests[-1]
    assert (asked, headers["authorization"], headers["x-key"]) == (
        "GET /v1/namespaces",
        "Bearer hidden",
        "hidden",
    )
    assert "x-iceberg-access-delegation" not in headers
    # Nobody else is let through.
    assert httpx.get(f"{gateway.url}x/v1/config", timeout=PATIENCE_SECONDS).status_code == 404


def test_java_goes_on_with_a_connection_after_each_answer(catalog_server: HttpServer) -> None:
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    asked = [
        ("GET", "v1/config"),
        ("HEAD", "v1/namespaces/db"),
        ("POST", "v1/none"),
        ("GET", "v1/namespaces"),
    ]
    places = set()
    with httpx.Client(timeout=PATIENCE_SECONDS) as java:
        for method, path in asked:
            with java.stream(method, f"{gateway.url}/{path}", content=b"{}") as answer:
                places.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                content = answer.read()
    assert len(places) == 1
    assert json.loads(content) == {"namespaces": [["db"]]}


def test_each_address_of_a_catalog_is_tried(
    catalog_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_names(monkeypatch, "::1,127.0.0.1")
    gateway = RestGateway("c", {"uri": f"http://catalog.example:{catalog_server.port}"}, LOOPBACK)
    assert ask(gateway).status_code == 200


def test_java_gets_of_answers_what_a_catalog_may_decide(catalog_server: HttpServer) -> None:
    trap = {
        "io-impl": "x.Y",
        "client.credentials-provider": "x.Y",
        "client.credentials-provider.argument": "x",
        "rest.auth.type": "x.Y",
        "rest.client.proxy.hostname": "127.0.0.1",
        "oauth2-server-uri": f"{catalog_server.url}/token",
        "token": "theirs",
        "s3.signer.uri": catalog_server.url,
        "s3.proxy-uri": catalog_server.url,
        "client.assume-role.arn": "arn:x",
        "adls.connection-string.acc": catalog_server.url,
        "adls.account-name": "theirs",
        "new-in-a-later-version": "x",
        "nothing": None,
    }
    useful = {"s3.access-key-id": "vended", "s3.secret-access-key": "vended", "adls.sas-token.acc": "vended"}
    renew = {
        "client.refresh-credentials-endpoint": f"{catalog_server.url}/v1/renew",
        "adls.refresh-credentials-endpoint": f"{ELSEWHERE}/v1/renew",
        "gcs.oauth2.refresh-credentials-endpoint": "v1/renew",
    }
    renewed = {
        "client.refresh-credentials-endpoint": "{}/v1/renew",
        "gcs.oauth2.refresh-credentials-endpoint": "v1/renew",
    }
    overrides = trap | useful | {"prefix": "p", "uri": catalog_server.url}
    catalog_server.answers["/v1/config"] = Answer({"defaults": trap, "overrides": overrides})
    vended = {"storage-credentials": [{"prefix": "s3://", "config": trap | useful}, "none"]}
    loaded = {"metadata": {"properties": trap}, "config": trap | renew} | vended
    catalog_server.answers["/v1/p/namespaces/db/tables/t"] = Answer(loaded, headers={"ETag": "e"})
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    # What is for all tables is told of each.
    assert ask(gateway).json() == {"defaults": {}, "overrides": {"prefix": "p"}}
    table = ask(gateway, "v1/p/namespaces/db/tables/t")
    assert table.headers["etag"] == "e"
    equipped = useful | {name: value.format(gateway.url) for name, value in renewed.items()}
    assert table.json() == {
        "metadata": {"properties": trap},
        "config": equipped,
        "storage-credentials": [{"prefix": "s3://", "config": equipped}],
    }


TABLE = "v1/namespaces/db/tables/t"


def test_java_has_anew_what_is_vended_for_each_place(catalog_server: HttpServer) -> None:
    def vended(key: str) -> dict[str, str]:
        keys = {"s3.access-key-id": key, "s3.secret-access-key": "s", "s3.session-token": "t"}
        return keys | {SESSION_END: "1795632023545"}

    keys = {"s3://lake/": "of lake", "s3://data/": "of data", "s3://\ud800": "of what is no text"}
    places = [{"prefix": prefix, "config": vended(key)} for prefix, key in keys.items()]
    said = {"metadata-location": "s3://lake/t/metadata.json", "config": vended("of the catalog")}
    catalog_server.answers[f"/{TABLE}"] = Answer(said | {"storage-credentials": places})
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    loaded = ask(gateway, TABLE).json()
    for one in loaded["storage-credentials"]:
        url = one["config"]["client.refresh-credentials-endpoint"]
        assert ask(gateway, url.removeprefix(f"{gateway.url}/")).json() == {
            "storage-credentials": [{"prefix": one["prefix"], "config": vended(keys[one["prefix"]])}]
        }
    url = loaded["config"]["client.refresh-credentials-endpoint"].removeprefix(f"{gateway.url}/")
    (renewed,) = ask(gateway, url).json()["storage-credentials"]
    assert renewed["prefix"] == "s3://lake/"
    catalog_server.answers[f"/{TABLE}"] = Answer(said)
    (renewed,) = ask(gateway, url).json()["storage-credentials"]
    assert renewed == {"prefix": "s3", "config": vended("of the catalog")}


def test_java_has_anew_what_is_vended_for_google(catalog_server: HttpServer) -> None:
    def vended(token: str) -> dict[str, str]:
        return {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": "1795632023545"}

    name = "gcs.oauth2.refresh-credentials-endpoint"
    places = [{"prefix": f"gs://{one}/", "config": vended(one)} for one in ("lake", "data")]
    said = {"metadata-location": "gs://lake/t/metadata.json", "config": vended("of the catalog")}
    keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s"}
    catalog_server.answers[f"/{TABLE}"] = Answer(said | {"storage-credentials": places})
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    for one in ask(gateway, TABLE).json()["storage-credentials"]:
        (renewed,) = ask(gateway, one["config"][name].removeprefix(f"{gateway.url}/")).json()[
            "storage-credentials"
        ]
        assert renewed["prefix"] == one["prefix"]
        assert renewed["config"].items() >= vended(one["prefix"][5:-1]).items()
    catalog_server.answers[f"/{TABLE}"] = Answer(said | {"config": vended("of the catalog") | keys})
    url = ask(gateway, TABLE).json()["config"][name]
    (renewed,) = ask(gateway, url.removeprefix(f"{gateway.url}/")).json()["storage-credentials"]
    assert renewed == {"prefix": "gs", "config": vended("of the catalog") | {name: url}}
    # Java would have nothing anew without its end.
    catalog_server.answers[f"/{TABLE}"] = Answer(said | {"config": {"gcs.oauth2.token": "endless"}})
    assert ask(gateway, TABLE).json()["config"] == {"gcs.oauth2.token": "endless"}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"storage-credentials": [{"config": {"s3.access-key-id": "k"}}, {"prefix": 1}, 2]}, 200),
        ({"storage-credentials": None, "config": [], "metadata-location": 3}, 200),
        ([], 403),
        (None, 403),
        ("x", 403),
    ],
)
def test_java_learns_why_it_has_nothing_anew(catalog_server: HttpServer, said: Any, status: int) -> None:
    catalog_server.answers[f"/{TABLE}"] = Answer(json.dumps(said))
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    answer = ask(gateway, f"renewed//{TABLE}")
    assert answer.status_code == status
    if status == 200:
        assert answer.json() == {"storage-credentials": [{"prefix": "s3", "config": {}}]}
    else:
        assert answer.json()["error"]["message"].startswith("what it answered is not")


def test_java_gets_no_answer_that_this_side_can_not_read(catalog_server: HttpServer) -> None:
    gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
    # Parsers differ in what they take, and in which of two they take.
    for body in ('{"config": {"io-impl": "x.Y"}, "n": ' + "1" * 5000 + "}", '{"config": {},}', "[" * 100_000):
        catalog_server.answers["/v1/t"] = Answer(body)
        answer = ask(gateway, "v1/t")
        assert (answer.status_code, "x.Y" in answer.text) == (403, False)
    catalog_server.answers["/v1/t"] = Answer('{"config": {"io-impl": "x.Y"}, "config": {}}')
    assert ask(gateway, "v1/t").text == '{"config": {}}'


@pytest.mark.parametrize("properties", [{}, {"credential": "id:secret"}], ids=["configuration", "token"])
def test_a_byte_now_and_then_does_not_lengthen_the_opening_of_a_catalog(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    monkeypatch.setattr(rest_gateway, "_ANSWER_SECONDS", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(600):
                connection.sendall(b" ")
                time.sleep(0.05)

    with listener, ThreadPoolExecutor(1) as threads:
        answered = threads.submit(answer)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        given = {"uri": url, "oauth2-server-uri": f"{url}/token"} | properties
        with pytest.raises(OutOfTimeError):
            RestGateway("c", given, LOOPBACK)
        answered.result()


def test_a_refusal_is_that_of_the_job_that_asked(catalog_server: HttpServer) -> None:
    catalog_server.answers["/v1/away"] = Answer("", 302, {"location": f"{ELSEWHERE}/latest/meta-data"})
    properties = (("uri", catalog_server.url),)
    one, other = (open_gateway("c", properties, LOOPBACK, Slot(number, 2)) for number in (1, 2))
    assert ask(one, "v1/away").status_code == 403
    assert ask(other, "v1/namespaces").status_code == 200
    assert isinstance(one.refusal, SentElsewhereError)
    assert other.refusal is None
    # However many catalogs another job uses meanwhile.
    for number in range(40):
        open_gateway(f"c{number}", properties, LOOPBACK, Slot(2, 2))
    assert open_gateway("c", properties, LOOPBACK, Slot(1, 2)) is one
    assert open_gateway("c", properties, LOOPBACK, Slot(2, 2)) is not other


def test_another_uri_of_the_configuration_is_asked_only_at_the_same_host_and_port(
    catalog_server: HttpServer,
) -> None:
    def opened(uri: str) -> RestGateway:
        catalog_server.answers["/v1/config"] = Answer({"defaults": {}, "overrides": {"uri": uri}})
        return RestGateway("c", {"uri": catalog_server.url, "token": "hidden"}, LOOPBACK)

    catalog_server.answers["/deeper/v1/namespaces"] = Answer({"namespaces": []})
    gateway = opened(f"{catalog_server.url}/deeper")
    assert ask(gateway).json() == {"defaults": {}, "overrides": {}}
    assert ask(gateway, "v1/namespaces").json() == {"namespaces": []}
    with answering({}) as other:
        secure = catalog_server.url.replace("http:", "https:")
        as_user = catalog_server.url.replace("://", "://x@")
        for uri in (other.url, ELSEWHERE, secure, as_user, f"{other.url}#{catalog_server.url}", "x"):
            with pytest.raises(SentElsewhereError, match="give it as `uri`"):
                opened(uri)
        # Nor when it says so later.
        assert ask(gateway).status_code == 403
        assert isinstance(gateway.refusal, SentElsewhereError)
        assert other.requests == []


def test_the_secret_for_tokens_goes_where_the_record_says(catalog_server: HttpServer) -> None:
    token = Answer({"access_token": "t", "token_type": "bearer"})
    with answering({"/token": token}) as other:
        told = {"oauth2-server-uri": f"{other.url}/token"}
        catalog_server.answers["/v1/config"] = Answer({"defaults": told, "overrides": told})
        record = {"uri": catalog_server.url, "credential": "id:secret"}
        own = {"oauth2-server-uri": f"{catalog_server.url}/token"}
        catalog_server.answers["/token"] = token
        assert ask(RestGateway("c", record | own, LOOPBACK), "v1/namespaces").status_code == 200
        assert other.requests == []
        catalog_server.answers["/token"] = Answer("", 307, {"location": f"{other.url}/token"})
        with pytest.raises(SentElsewhereError, match=f"redirects to {other.url}/token"):
            RestGateway("c", record | own, LOOPBACK)
        assert other.requests == []
        assert ask(RestGateway("c", record | told, LOOPBACK), "v1/namespaces").status_code == 200
        assert other.requests


def test_a_name_that_leads_inside_is_not_connected_to(
    catalog_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_names(monkeypatch, "93.184.215.14", "127.0.0.1")
    uri = {"uri": f"http://catalog.example:{catalog_server.port}"}
    PUBLIC.check(uri)
    with pytest.raises(HostNotAllowedError, match=r"'catalog\.example', which is 127\.0\.0\.1,"):
        RestGateway("c", uri, PUBLIC)
    assert catalog_server.requests == []


def test_a_redirect_is_not_followed(catalog_server: HttpServer) -> None:
    with answering({}) as inside:
        gateway = RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
        away = Answer("", 307, {"location": f"{inside.url}/x"})
        catalog_server.answers |= {"/v1/config": away, "/v1/namespaces": away}
        # Of a change, it is not known whether it was made.
        assert ask(gateway, "v1/namespaces", "POST").status_code == 500
        assert ask(gateway, "v1/namespaces").status_code == 403
        assert isinstance(gateway.refusal, SentElsewhereError)
        with pytest.raises(SentElsewhereError, match=f"redirects to {inside.url}/x"):
            RestGateway("c", {"uri": catalog_server.url}, LOOPBACK)
        assert inside.requests == []
    del gateway
    gc.collect()  # warns of connections that are still open, which is an error


def test_a_token_that_expired_is_fetched_again(catalog_server: HttpServer) -> None:
    tokens = iter(("first", "second", "third"))

    def namespaces(request: Request) -> Answer:
        is_good = request.headers["authorization"] == "Bearer third"
        return Answer({"namespaces": []}) if is_good else Answer({"error": {}}, 401)

    catalog_server.answers |= {
        "/token": lambda _: Answer({"access_token": next(tokens), "token_type": "bearer"}),
        "/v1/namespaces": namespaces,
    }
    properties = {
        "uri": catalog_server.url,
        "credential": "id:secret",
        "oauth2-server-uri": f"{catalog_server.url}/token",
    }
    # One for the configuration, one for the session.
    assert ask(RestGateway("c", properties, LOOPBACK), "v1/namespaces").status_code == 200


@pytest.mark.integration
class TestJava:
    """A table whose metadata a REST catalog of the test's own serves."""

    @pytest.fixture
    def metadata(self, spark: SparkSession, table_name: str) -> dict[str, Any]:
        return TableBuilder.create(spark, table_name).metadata.model_dump(mode="json", by_alias=True)

    @pytest.fixture
    def server(self, metadata: dict[str, Any]) -> Iterator[HttpServer]:
        with answering(rest_catalog(metadata)) as server:
            yield server

    def test_a_catalog_chooses_no_code(self, spark: SparkSession, server: HttpServer) -> None:
        trap = {"io-impl": "org.apache.iceberg.inmemory.InMemoryFileIO"}
        server.answers["/v1/config"] = Answer({"defaults": trap, "overrides": trap})
        loaded = server.answers["/v1/namespaces/db/tables/t"]
        assert isinstance(loaded, Answer)
        loaded.body["config"] = trap
        jvm = spark.sparkContext._jvm
        table = load_table(jvm, "rest", "c", {"uri": server.url}, ["db", "t"], egress=LOOPBACK)
        assert table.io().getClass().getSimpleName() == "ResolvingFileIO"

    @pytest.mark.parametrize("where", ["overrides", "config", "storage-credentials"])
    def test_what_is_vended_replaces_the_credentials_of_the_record(
        self, spark: SparkSession, server: HttpServer, where: str
    ) -> None:
        loaded = server.answers["/v1/namespaces/db/tables/t"]
        assert isinstance(loaded, Answer)
        vended = {"s3.endpoint": server.url, "s3.access-key-id": "v", "s3.secret-access-key": "v"}
        if where == "overrides":
            server.answers["/v1/config"] = Answer({"overrides": vended})
        elif where == "config":
            loaded.body["config"] = vended
        else:
            loaded.body["config"] = {"s3.endpoint": server.url}
            location = loaded.body["metadata"]["location"]
            loaded.body[where] = [{"prefix": location, "config": vended}]
        keys = {f"client.{key}": "own" for key in ("access-key-id", "secret-access-key", "session-token")}
        jvm = spark.sparkContext._jvm
        table = load_table(jvm, "rest", "c", {"uri": server.url} | keys, ["db", "t"], egress=LOOPBACK)
        assert {key: value for key, value in file_io_properties(table).items() if value != "v"} == {
            "s3.endpoint": server.url
        }
        own = {key: value for key, value in dict(table.io().properties()).items() if value == "own"}
        # Java knows the record's for places that nothing was vended for, and no endpoint but the record's.
        assert not own or "s3.endpoint" not in table.io().properties()

    @pytest.mark.parametrize(
        ("catalog_type", "trap"),
        [
            ("rest", {"io-impl": "x.Y"}),
            ("sql", {"jdbc.socketFactory": "x.Y"}),
            ("sql", {"uri": "postgresql://127.0.0.1:1/d?socketFactory=x.Y"}),
        ],
    )
    def test_a_record_that_chooses_code_is_refused_also_by_a_worker(
        self, spark: SparkSession, server: HttpServer, catalog_type: str, trap: dict[str, str]
    ) -> None:
        properties = {"uri": server.url} | trap
        asked = len(server.requests)
        with pytest.raises(CodeNotAllowedError, match="choose what code is loaded"):
            load_table(spark.sparkContext._jvm, catalog_type, "c", properties, ["db", "t"], egress=LOOPBACK)
        assert len(server.requests) == asked

    @pytest.mark.parametrize("trap", ["uri", "s3.endpoint", "redirect", "record"])
    def test_a_job_goes_nowhere_else(
        self, spark: SparkSession, catalog: Catalog, server: HttpServer, trap: str
    ) -> None:
        further: dict[str, str] = {}
        if trap == "uri":
            server.answers["/v1/config"] = Answer({"defaults": {}, "overrides": {"uri": ELSEWHERE}})
        elif trap == "redirect":
            away = Answer("", 302, {"location": f"{ELSEWHERE}/latest/meta-data"})
            server.answers["/v1/namespaces/db/tables/t"] = away
        elif trap == "record":
            further["s3.endpoint"] = ELSEWHERE
        else:
            loaded = server.answers["/v1/namespaces/db/tables/t"]
            assert isinstance(loaded, Answer)
            keys = {"s3.access-key-id": "vended", "s3.secret-access-key": "vended"}
            loaded.body["config"] = {trap: ELSEWHERE} | keys
        with pytest.raises(JobError, match=r"169\.254\.169\.254") as caught:
            run_job(conversion(server, catalog, further), TaskRunner(spark), RecordingReporter())
        code = "catalog_redirects" if trap in ("redirect", "uri") else "host_not_allowed"
        assert (caught.value.code, caught.value.retryable) == (code, False)

    def test_a_job_takes_no_more_of_an_answer_than_the_bound(
        self, spark: SparkSession, catalog: Catalog, server: HttpServer
    ) -> None:
        server.answers["/v1/namespaces/db/tables/t"] = Answer(" " * (ANSWER_BYTES + 1))
        with pytest.raises(JobError) as caught:
            run_job(conversion(server, catalog), TaskRunner(spark), RecordingReporter())
        assert (caught.value.code, caught.value.retryable) == ("catalog_limit_exceeded", False)


def conversion(server: HttpServer, catalog: Catalog, further: Mapping[str, str] | None = None) -> Assignment:
    """Of a table of a REST catalog. further: properties of its record."""
    return Assignment.model_validate(
        {
            "job": {"id": "job", "kind": "convert"},
            "attempt": 1,
            "lease_seconds": 30,
            "table": {"id": "t", "identifier": ["db", "t"], "table_uuid": "u", "branch": "main"},
            "catalog": {"name": "c", "type": "rest", "properties": {"uri": server.url, **(further or {})}},
            "index": {"warehouse": f"{catalog.warehouse}/index"},
            "allowed_locations": [catalog.warehouse],
            "allowed_hosts": list(LOOPBACK.rules or ()),
        }
    )


def test_java_that_leaves_before_its_answer_leaves_no_traceback(
    catalog_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = open_gateway("lake", (("uri", catalog_server.url),), Egress())
    server, _ = rest_gateway._server()
    has_left, is_done, errors = threading.Event(), threading.Event(), list[object]()

    def answer(*_: object) -> tuple[int, Mapping[str, str], bytes]:
        assert has_left.wait(PATIENCE_SECONDS)
        return 200, {}, bytes(100_000_000)  # more than a socket takes without a reader

    monkeypatch.setattr(gateway, "ask", answer)
    monkeypatch.setattr(server, "handle_error", lambda *_: errors.append(sys.exception()))
    monkeypatch.setattr(server, "shutdown_request", lambda _: is_done.set())
    port, path = server.server_address[1], gateway.url.rpartition("/")[2]
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET /{path}/v1/config HTTP/1.0\r\n\r\n".encode())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    has_left.set()
    assert is_done.wait(PATIENCE_SECONDS)
    assert errors == []
