"""Whatever a catalog's record says or the catalog answers, it reaches only what the operator allows."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from service.catalogs.clients import open_engine
from service.catalogs.iceberg import IcebergCatalogs
from service.errors import UnreachableError
from service.records.catalogs import Catalog
from service.settings import Settings
from tests.http_server import Answer, Request, answering, rest_catalog
from tests.service.conftest import Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog

# Where a catalog may lead is decided before anything is stored.
database_kind = alike_on_both

INTERNAL = [
    "127.0.0.1",
    "localhost",
    "x.localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "0.0.0.0",
    "169.254.169.254",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "100.100.100.200",
]
"""Spellings of addresses at which only a machine itself answers, or what tells it its secrets."""


@pytest.fixture
def public(settings: Settings) -> Iterator[Running]:
    """A service whose settings say that other machines reach it."""
    settings.host = "0.0.0.0"
    with running(settings) as service:
        yield service


def metadata_of(iceberg: IcebergCatalog) -> dict[str, Any]:
    location = iceberg.catalog.load_table("db.t").metadata_location
    return dict(json.loads(Path(location.removeprefix("file://")).read_text()))


def register(service: Running, uri: str, kind: str = "rest", **properties: str) -> tuple[int, dict[str, Any]]:
    body = {"name": "c", "type": kind, "properties": {"uri": uri} | properties}
    answer = service.admin.post("/catalogs", json=body)
    return answer.status_code, answer.json()


def enroll(service: Running) -> tuple[int, str, str]:
    answer = service.admin.post("/tables", json={"catalog": "c", "identifier": ["db", "t"]})
    body = answer.json()
    return answer.status_code, body.get("type", ""), body.get("detail", "") + body.get("remedy", "")


@pytest.mark.parametrize("host", INTERNAL)
def test_a_public_service_registers_no_address_that_is_internal_to_its_machine(
    public: Running, host: str
) -> None:
    status, problem = register(public, f"http://{host}:8181/catalog")
    assert (status, problem["type"]) == (422, "/problems/host-not-allowed")
    assert "ICESTREAM_ALLOWED_HOSTS" in problem["remedy"]


@pytest.mark.parametrize(
    "properties",
    [
        {"oauth2-server-uri": "http://169.254.169.254/token"},
        {"s3.endpoint": "127.0.0.1:9000"},
        {"s3.endpoint": "http://169.254.169.254"},
        {"s3.proxy-uri": "http://127.0.0.1:3128"},
        {"gcs.service.host": "http://localhost"},
        {"hdfs.host": "localhost"},
    ],
)
def test_no_property_names_an_internal_address(public: Running, properties: dict[str, str]) -> None:
    status, problem = register(public, "https://catalog.example", **properties)
    assert (status, problem["type"]) == (422, "/problems/host-not-allowed")


def test_a_service_for_this_machine_reaches_loopback_but_no_metadata_server(service: Running) -> None:
    assert register(service, "http://169.254.169.254/")[1]["type"] == "/problems/host-not-allowed"
    assert register(service, "http://127.0.0.1:1/")[0] == 201


def answer_names(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """What the name server says of catalog.example: one answer after the other, the last for ever.

    Addresses of one answer have commas in between.
    """
    ask, left = socket.getaddrinfo, list(answers)

    def lookup(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "catalog.example" or options.get("flags"):
            return ask(host, port, *args, **options)
        answer = left.pop(0) if len(left) > 1 else left[0]
        return [found for one in answer.split(",") for found in ask(one, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.mark.parametrize("answers", [("127.0.0.1",), ("93.184.215.14", "127.0.0.1"), ("169.254.169.254",)])
def test_a_name_that_leads_inside_is_not_connected_to(
    public: Running, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]
) -> None:
    with answering(rest_catalog()) as server:
        uri = f"http://catalog.example:{server.port}"
        assert register(public, uri)[0] == 201
        answer_names(monkeypatch, *answers)
        status, slug, words = enroll(public)
        assert (status, slug) == (422, "/problems/host-not-allowed")
        assert answers[-1] in words
        assert server.requests == []


def test_each_address_of_a_name_is_tried(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> dict[str, tuple[str, str]]:
        found = service.admin.post("/catalogs/c/check").json()["steps"]
        return {step["name"]: (step["status"], step["detail"]) for step in found}

    with answering(rest_catalog()) as server:
        assert register(service, f"http://catalog.example:{server.port}")[0] == 201
        answer_names(monkeypatch, "::1,127.0.0.1")
        assert steps()["permission"][0] == "ok"
        answer_names(monkeypatch, "::1,127.0.0.2")
        status, detail = steps()["connect"]
    assert status == "failed"
    assert "catalog.example (::1) refuses" in detail
    assert "catalog.example (127.0.0.2) refuses" in detail


@pytest.mark.integration
def test_each_address_of_a_database_is_tried(
    settings: Settings, new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(new_database_url("postgresql"))
    answer_names(monkeypatch, "127.0.0.2,127.0.0.1")
    uri = url.set(host="catalog.example").render_as_string(hide_password=False)
    with open_engine(settings, uri).connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1


def test_a_secret_uri_is_judged_by_what_it_says(public: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(rest_catalog()) as server:
        monkeypatch.setenv("CATALOG_URI", server.url)
        assert register(public, "env:CATALOG_URI")[0] == 201
        status, slug, _ = enroll(public)
        assert (status, slug, server.requests) == (422, "/problems/host-not-allowed", [])


def test_a_host_that_the_operator_names_is_reached(settings: Settings, iceberg: IcebergCatalog) -> None:
    settings.host = "0.0.0.0"
    settings.allowed_hosts = ("127.0.0.0/8",)
    settings.allowed_locations = (f"file://{iceberg.directory}",)
    with answering(rest_catalog(metadata_of(iceberg))) as server, running(settings) as service:
        assert register(service, "https://elsewhere.example")[1]["type"] == "/problems/host-not-allowed"
        assert register(service, server.url)[0] == 201
        assert enroll(service)[0] == 201


def test_a_redirect_is_not_followed(service: Running) -> None:
    with answering(rest_catalog()) as inside, answering({}) as catalog:
        catalog.answers["/v1/config"] = Answer("", 302, {"location": f"{inside.url}/v1/config"})
        register(service, catalog.url, **{"header.X-Api-Key": "env:PATH"})
        status, slug, words = enroll(service)
        assert (status, slug) == (502, "/problems/catalog-redirects")
        assert inside.url in words
        assert inside.requests == []


def test_nothing_but_304_is_believed_of_the_short_way_to_ask_whether_a_table_has_changed(
    settings: Settings,
) -> None:
    answers, path, table = rest_catalog(), "/v1/namespaces/db/tables/t", ("db", "t")
    loaded = answers[path]
    assert isinstance(loaded, Answer)

    def load(request: Request) -> Answer:
        if request.headers.get("if-none-match") == '"1"':
            return Answer(status=304)
        return Answer(loaded.body, headers={"ETag": '"1"'})

    answers[path] = load
    with answering(answers) as server, answering({}) as other:
        properties = {"uri": server.url, "token": "t0ken", "header.X-Own": "own"}
        catalogs = IcebergCatalogs(settings)
        record = Catalog(name="c", type="rest", properties=properties)

        def asked() -> list[dict[str, str]]:
            server.requests.clear()
            with catalogs.open(record) as source:
                assert source.metadata_locations([table])[table] == loaded.body["metadata-location"]
            return [headers for requested, headers in server.requests if requested == f"GET {path}"]

        (first,) = asked()
        (again,) = asked()
        assert (first.pop("if-none-match", None), again.pop("if-none-match")) == (None, '"1"')
        for headers in (first, again):
            assert (headers["authorization"], headers["x-own"]) == ("Bearer t0ken", "own")
            assert headers["accept-encoding"] == "identity"
            assert "x-iceberg-access-delegation" not in headers
        assert first == again
        for status in (302, 200, 503):
            elsewhere = {"location": f"{other.url}{path}", "ETag": '"1"'}
            answers[path] = Answer(loaded.body, status, elsewhere)
            told = {302: "catalog-redirects", 503: "catalog-unreachable"}
            if status in told:
                with pytest.raises(UnreachableError) as raised:
                    asked()
                assert raised.value.slug == told[status]
                answers[path] = load
                assert len(asked()) == 1
                continue
            # It tells ETags and knows none: it is asked the short way no more.
            assert [len(asked()) for _ in range(3)] == [2, 1, 1]
            catalogs.forget(record.id)
            answers[path] = load
            asked()
        assert other.requests == []
        catalogs.close()


def test_a_rest_catalog_chooses_no_code(service: Running, iceberg: IcebergCatalog, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    answers = rest_catalog(metadata_of(iceberg), config={"py-io-impl": "antigravity.FileIO"})
    configuration = {
        "auth": {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["touch", str(trap)]}},
        "ssl": {"cabundle": "/etc/passwd"},
        "py-io-impl": "antigravity.FileIO",
        "icestream.settings": "none",
    }
    answers["/v1/config"] = Answer({"defaults": configuration, "overrides": configuration})
    with answering(answers) as server:
        register(service, server.url)
        assert enroll(service)[0] == 201
    assert not trap.exists()


def test_a_catalog_sends_nobody_to_an_internal_address(service: Running, iceberg: IcebergCatalog) -> None:
    trap = {"s3.endpoint": "http://169.254.169.254", "s3.access-key-id": "v", "s3.secret-access-key": "v"}
    with answering(rest_catalog(metadata_of(iceberg), config=trap)) as server:
        register(service, server.url)
        assert enroll(service)[:2] == (422, "/problems/host-not-allowed")


@pytest.fixture
def at_s3(iceberg: IcebergCatalog) -> dict[str, Any]:
    """Metadata of a table whose next file lies on S3."""
    metadata = metadata_of(iceberg)
    metadata["snapshots"][-1]["manifest-list"] = "s3://lake/list.avro"
    return metadata


OWN = {"s3.access-key-id": "env:OWN_ID", "s3.secret-access-key": "env:OWN_KEY", "s3.region": "eu-1"}
VENDED = {"s3.access-key-id": "VENDED-ID", "s3.secret-access-key": "VENDED-KEY"}


def poll(service: Running) -> str:
    """What is wrong with the table, in words."""
    table = service.admin.get("/tables").json()["items"][0]["id"]
    service.poll(table)
    error = service.admin.get(f"/tables/{table}/health").json()["poll_error"]
    return f"{error['code']}: {error['detail']} {error['remedy']}"


@pytest.mark.parametrize("where", ["overrides", "defaults", "config", "storage-credentials", "properties"])
@pytest.mark.parametrize("is_vended", [False, True])
def test_credentials_of_the_record_go_to_no_store_that_the_catalog_names(
    settings: Settings,
    at_s3: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    is_vended: bool,
) -> None:
    settings.allowed_locations = ("s3://lake", at_s3["location"])
    for name in ("OWN_ID", "OWN_KEY", "OWN_TOKEN"):
        monkeypatch.setenv(name, f"MARK-{name}")
    with answering({}) as store:
        said = {"s3.endpoint": store.url} | (VENDED if is_vended else {})
        further: dict[str, Any] = {}
        if where == "properties":
            at_s3["properties"] |= said
        elif where == "storage-credentials":
            further[where] = [{"prefix": at_s3["location"], "config": said}]
        elif where == "config":
            further[where] = said
        answers = rest_catalog(at_s3, **further)
        loaded = answers["/v1/namespaces/db/tables/t"]
        assert isinstance(loaded, Answer)
        loaded.body["metadata-location"] = f"{at_s3['location']}/metadata/x.json"
        if where in ("overrides", "defaults"):
            answers["/v1/config"] = Answer({where: said})
        with answering(answers) as server, running(settings) as service:
            own = {"s3.session-token": "env:OWN_TOKEN"} | OWN
            register(
                service, server.url, **own, **({"s3.endpoint": server.url} if where == "properties" else {})
            )
            status, slug, words = enroll(service)
            if where == "properties":
                poll(service)
                assert "MARK-OWN_ID" in str(server.requests)
            elif where == "defaults" or not is_vended:
                # Of the defaults, those that the record has count as little as these do without the others.
                assert (status, slug) == (502, "/problems/catalog-redirects")
                assert store.url in words
                assert "set s3.endpoint in the record" in words
            else:
                poll(service)
                assert "VENDED-ID" in str(store.requests)
        assert "MARK" not in str(store.requests)
        assert bool(store.requests) == (is_vended and where not in ("defaults", "properties"))


def test_a_region_that_is_a_host_gets_no_credentials(service: Running, iceberg: IcebergCatalog) -> None:
    with answering(rest_catalog(metadata_of(iceberg), config={"client.region": "evil.example/#"})) as server:
        register(service, server.url)
        status, slug, words = enroll(service)
        assert (status, slug, "evil.example/#" in words) == (502, "/problems/catalog-redirects", True)


def test_the_secret_and_the_token_go_where_the_record_says(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_CREDENTIAL", "id:MARK")
    token = Answer({"access_token": "MARK-token", "token_type": "bearer"})
    answers = rest_catalog(metadata_of(iceberg)) | {"/token": token}
    with answering(answers) as server, answering({"/token": token}) as other:
        register(
            service,
            server.url,
            credential="env:OWN_CREDENTIAL",
            **{"oauth2-server-uri": f"{server.url}/token"},
        )
        told = {"oauth2-server-uri": f"{other.url}/token", "token": "theirs"}
        answers["/v1/config"] = Answer({"defaults": told, "overrides": told})
        assert enroll(service)[0] == 201
        assert "theirs" not in str(server.requests)
        for told in ({"uri": other.url}, {"uri": f"{other.url}/?{server.url}"}):
            answers["/v1/config"] = Answer({"overrides": told})
            answer = service.admin.post("/catalogs/c/check").json()
            assert answer["status"] == "unreachable"
            assert other.url in answer["explanation"]
            assert "give it as `uri`" in answer["remedy"]
        answers["/v1/config"] = Answer({})
        answers["/token"] = Answer("", 307, {"location": f"{other.url}/token"})
        assert "redirects to" in service.admin.post("/catalogs/c/check").json()["explanation"]
        assert other.requests == []


@pytest.mark.parametrize("place", ["location", "manifest-list", "write.data.path"])
def test_metadata_leads_to_no_file_elsewhere(
    service: Running, iceberg: IcebergCatalog, tmp_path_factory: pytest.TempPathFactory, place: str
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("the content of a local file")
    metadata = metadata_of(iceberg)
    if place == "location":
        metadata["location"] = f"file://{secret.parent}"
    elif place == "manifest-list":
        metadata["snapshots"][-1]["manifest-list"] = f"file://{secret}"
    else:
        metadata["properties"][place] = str(secret.parent)
    with answering(rest_catalog(metadata)) as server:
        register(service, server.url)
        status, slug, words = enroll(service)
        if place == "manifest-list":  # which only a poll reads
            table = service.admin.get("/tables").json()["items"][0]["id"]
            service.poll(table)
            error = service.admin.get(f"/tables/{table}/health").json()["poll_error"]
            status, slug, words = 422, f"/problems/{error['code']}", error["detail"]
        assert (status, slug) == (422, "/problems/location-not-allowed")
        assert "content of a local file" not in words


def test_a_database_leads_to_no_file_elsewhere(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    with iceberg.catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = 'file:///etc/passwd'"))
    answer = service.admin.post("/tables", json={"catalog": "local", "identifier": ["db", "t"]})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/location-not-allowed")
    assert "root" not in answer.text


def test_the_control_database_is_no_catalog(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    url = service.settings.database_url
    warehouse = f"file://{service.settings.data_dir}/w"
    status, problem = register(service, url, "sql", warehouse=warehouse)
    assert (status, problem["type"]) == (422, "/problems/location-not-allowed")
    monkeypatch.setenv("CATALOG_URI", url)
    assert register(service, "env:CATALOG_URI", "sql", warehouse=warehouse)[0] == 201
    assert enroll(service)[:2] == (422, "/problems/location-not-allowed")


@pytest.mark.parametrize(
    "spelling", ["{folder}/{code}{rest}", "{folder}/x/%2e%2e/{name}", "{folder}/hard", "{folder}/soft"]
)
@pytest.mark.parametrize("is_secret", [False, True])
def test_no_spelling_of_the_control_database_is_a_catalog(
    settings: Settings,
    new_database_url: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spelling: str,
    is_secret: bool,
) -> None:
    settings.database_url = new_database_url("sqlite")
    settings.allowed_locations = (str(tmp_path),)
    own = Path(settings.database_url.removeprefix("sqlite:///"))
    (tmp_path / "x").mkdir()
    (tmp_path / "hard").hardlink_to(own)
    (tmp_path / "soft").symlink_to(own)
    name = own.name
    path = spelling.format(folder=own.parent, name=name, code=f"%{ord(name[0]):02x}", rest=name[1:])
    monkeypatch.setenv("CATALOG_URI", f"sqlite:///{path}")
    with running(settings) as service:
        uri = "env:CATALOG_URI" if is_secret else f"sqlite:///{path}"
        answer = register(service, uri, "sql", warehouse=f"file://{tmp_path}/w")
        slug = enroll(service)[1] if is_secret else answer[1]["type"]
    assert slug == "/problems/location-not-allowed"


@pytest.mark.parametrize(
    ("uri", "slug"),
    [
        ("postgresql://db.example/c?host=/var/run/postgresql", "/problems/property-not-allowed"),
        ("postgresql://db.example/c?hostaddr=127.0.0.1", "/problems/property-not-allowed"),
        ("postgresql://db.example/c?sslrootcert=/etc/passwd", "/problems/property-not-allowed"),
        ("postgresql://db.example/c?socketFactory=x", "/problems/property-not-allowed"),
        ("postgresql:///c", "/problems/uri-not-supported"),
        ("mysql://db.example/c", "/problems/uri-not-supported"),
        ("postgresql://u@evil.example/@db.example/c", "/problems/uri-not-supported"),
        ("postgresql://evil.ex\tample/c", "/problems/uri-not-supported"),
        ("SQLITE:////etc/passwd", "/problems/location-not-allowed"),
        (" sqlite:////etc/passwd", "/problems/location-not-allowed"),
        ("sqlite:////etc/%70asswd", "/problems/location-not-allowed"),
        ("duckdb:////etc/passwd", "/problems/uri-not-supported"),
    ],
)
def test_a_database_uri_has_nothing_up_its_sleeve(service: Running, uri: str, slug: str) -> None:
    warehouse = f"file://{service.settings.data_dir}/w"
    status, problem = register(service, uri, "sql", warehouse=warehouse)
    assert (status, problem["type"]) == (422, slug)


@pytest.mark.parametrize(
    "properties",
    [
        {"io-impl": "x.Y"},
        {"metrics-reporter-impl": "x.Y"},
        {"client.credentials-provider": "x.Y"},
        {"jdbc.socketFactory": "x.Y"},
        {"jdbc.loggerFile": "/tmp/x"},
        {"rest.auth.type": "x.Y"},
        {"rest.auth.google.credentials-path": "/etc/passwd"},
        {"ssl.cabundle": "/etc/passwd"},
    ],
)
def test_no_property_loads_code_or_reads_a_file(service: Running, properties: dict[str, str]) -> None:
    status, problem = register(service, "https://catalog.example", **properties)
    assert status == 422
    assert problem["type"] in ("/problems/property-not-allowed", "/problems/location-not-allowed")


def test_a_public_service_gives_catalogs_only_the_secrets_that_are_theirs(
    public: Running, tmp_path: Path
) -> None:
    for reference in ("env:PATH", f"file:{tmp_path}/secret", "file:/run/secrets/x"):
        status, problem = register(public, "https://catalog.example", token=reference)
        assert (status, problem["type"]) == (422, "/problems/secret-not-allowed")
        assert "ICESTREAM_ALLOWED_SECRETS" in problem["remedy"]
    assert register(public, "https://catalog.example", token="env:CATALOG_TOKEN")[0] == 201


def test_secrets_that_the_operator_names_are_used(settings: Settings, tmp_path: Path) -> None:
    settings.allowed_secrets = ("env:LAKE_", f"file:{tmp_path}/secrets")
    with running(settings) as service:
        for reference in ("env:CATALOG_X", f"file:{tmp_path}/secrets/%2e%2e/icestream.db"):
            _, problem = register(service, "https://catalog.example", token=reference)
            assert problem["type"] == "/problems/secret-not-allowed"
        for reference in ("env:LAKE_TOKEN", f"file:{tmp_path}/secrets/token"):
            properties = {"uri": "https://catalog.example", "token": reference}
            body = {"name": reference[-5:], "type": "rest", "properties": properties}
            assert service.admin.post("/catalogs", json=body).status_code == 201


def test_a_public_service_gives_catalogs_only_what_it_keeps_for_them(public: Running) -> None:
    data_dir = public.settings.data_dir
    for place in (data_dir / "lake", Path("/etc")):
        status, problem = register(public, f"sqlite:///{place}/c.db", "sql", warehouse=f"file://{place}")
        assert (status, problem["type"]) == (422, "/problems/location-not-allowed")
    uri = f"sqlite:///{data_dir}/catalog.db"
    assert register(public, uri, "sql", warehouse=f"file://{data_dir}/warehouse")[0] == 201
