"""Catalogs use secrets, and nothing that the service keeps, says or logs has them."""

import base64
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from sqlalchemy import MetaData, create_engine, select

import worker.agent.worker
from service.records.catalogs import Catalog
from service.settings import Settings
from tests.http_server import Answer, Answers, HttpServer, Request, answering, rest_catalog
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_egress import metadata_of
from worker.contract.control_plane import Assignment, ControlPlane
from worker.table import catalogs
from worker.table.record_properties import resolve_secrets
from worker.table.rest_gateway import open_gateway

# What is said and logged is the same whatever the database; what is stored is looked for in both.
database_kind = alike_on_both

CLIENT_SECRET = "MARK-client-secret"
ACCESS_TOKEN = "MARK-access-token"
BEARER = "MARK-bearer"
HEADER = "MARK-header"
PASSWORD = "MARK-p@ssword"
STORE_KEY = "MARK-store-key"
MARKS = ["MARK-", base64.b64encode(f"client:{CLIENT_SECRET}".encode()).decode()]


def guarded(answers: Answers, lets_in: Callable[[Request], bool]) -> Answers:
    """The same answers to whoever is let in. The others are refused, and read what they have sent."""

    def guard(answer: Any) -> Callable[[Request], Answer]:
        def answer_to(request: Request) -> Answer:
            if lets_in(request):
                return answer if isinstance(answer, Answer) else answer(request)
            return refuse(request, 401)

        return answer_to

    return {path: guard(answer) for path, answer in answers.items()}


def refuse(request: Request, status: int = 403) -> Answer:
    """It repeats the whole request, and what it is about by itself."""
    bare = [value.rpartition(" ")[2] for value in request.headers.values()]
    said = f"{dict(request.headers)} is not enough: {bare} {request.body}"
    return Answer({"error": {"message": said, "type": "NotAuthorizedException", "code": status}}, status)


def tokens(request: Request) -> Answer:
    """An OAuth2 server that knows one client."""
    form = {name: values[0] for name, values in parse_qs(request.body).items()}
    if (form.get("client_id"), form.get("client_secret")) != ("client", CLIENT_SECRET):
        said = f"no such client: {request.body}"
        return Answer({"error": "invalid_client", "error_description": said}, 401)
    assert (form["grant_type"], form["scope"]) == ("client_credentials", "lake")
    return Answer({"access_token": ACCESS_TOKEN, "token_type": "bearer", "expires_in": 3600})


KINDS: dict[str, tuple[dict[str, str], Callable[[Request], bool]]] = {
    "oauth2": (
        {"credential": "env:CATALOG_SECRET", "scope": "lake"},
        lambda request: request.headers.get("authorization") == f"Bearer {ACCESS_TOKEN}",
    ),
    "bearer": (
        {"token": "env:CATALOG_SECRET"},
        lambda request: request.headers.get("authorization") == f"Bearer {BEARER}",
    ),
    "header": (
        {"header.X-Api-Key": "env:CATALOG_SECRET"},
        lambda request: request.headers.get("x-api-key") == HEADER,
    ),
}
SECRETS = {"oauth2": f"client:{CLIENT_SECRET}", "bearer": BEARER, "header": HEADER}


@contextmanager
def demanding(iceberg: IcebergCatalog, kind: str) -> Iterator[HttpServer]:
    answers = guarded(rest_catalog(metadata_of(iceberg)), KINDS[kind][1])
    with answering({**answers, "/oauth/tokens": tokens, "/v1/refused": refuse}) as server:
        yield server


def register(service: Running, server: HttpServer, kind: str) -> None:
    properties = KINDS[kind][0] | {"uri": server.url}
    if kind == "oauth2":
        properties["oauth2-server-uri"] = f"{server.url}/oauth/tokens"
    body = {"name": kind, "type": "rest", "properties": properties}
    answer = service.admin.post("/catalogs", json=body)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_rest_catalog_lets_in_who_has_the_secret(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with demanding(iceberg, kind) as server:
        register(service, server, kind)
        monkeypatch.setenv("CATALOG_SECRET", "client:wrong" if kind == "oauth2" else "wrong")
        refused = service.admin.post(f"/catalogs/{kind}/check").json()
        failed = [step["name"] for step in refused["steps"] if step["status"] == "failed"]
        assert failed == ["credentials"]
        assert "refuses the credentials" in refused["explanation"]
        monkeypatch.setenv("CATALOG_SECRET", SECRETS[kind])
        assert service.admin.post(f"/catalogs/{kind}/check").json()["ok"] is True
        body = {"catalog": kind, "identifier": ["db", "t"]}
        assert service.admin.post("/tables", json=body).status_code == 201


@pytest.mark.parametrize(
    "properties",
    [
        {"credential": f"client:{CLIENT_SECRET}"},
        {"token": BEARER},
        {"header.Authorization": f"Basic {HEADER}"},
        {"header.X-Api-Key": HEADER},
        {"header.Cookie": HEADER},
        {"s3.secret-access-key": STORE_KEY},
        {"s3.session-token": STORE_KEY},
        {"oauth2-server-uri": f"https://client:{CLIENT_SECRET}@id.example"},
        {"uri": "https://user:MARK-password@catalog.example"},
        {"uri": "https://MARK-token@catalog.example"},
        {"uri": "https://catalog.example/?sig=MARK-signature"},
        {"s3.endpoint": "https://MARK-token@s3.example"},
        {"warehouse": "s3://MARK-key:MARK-secret@bucket/lake"},
        {"header.X-Shared": HEADER},
        {"adls.sas-token.acc.dfs.core.windows.net": STORE_KEY},
        {"adls.connection-string.acc": STORE_KEY},
        {"fs.azure.account.key.acc.dfs.core.windows.net": STORE_KEY},
        {"rest.auth.basic.passwd": STORE_KEY},
        {"s3.sse.key": STORE_KEY},
        {"s3.access-key": STORE_KEY},
        {"ssl.keystore.pwd": STORE_KEY},
    ],
)
def test_a_secret_in_clear_is_refused_and_not_repeated(service: Running, properties: dict[str, str]) -> None:
    body = {"name": "c", "type": "rest", "properties": {"uri": "https://catalog.example"} | properties}
    answer = service.admin.post("/catalogs", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/secret-in-clear")
    assert "MARK-" not in answer.text
    created = service.admin.post("/catalogs", json=body | {"properties": {"uri": "https://catalog.example"}})
    assert created.status_code == 201
    patch = service.admin.patch("/catalogs/c", json={"properties": properties}, headers={"If-Match": "*"})
    assert (patch.status_code, "MARK-" in patch.text) == (422, False)
    # Versions before took it: it is not shown, and what is shown instead is not taken for it.
    with service.database.write() as session:
        catalog = session.get_one(Catalog, created.json()["id"])
        catalog.properties = {**catalog.properties, **properties}
        session.add(catalog)
    for path in ("/catalogs", "/catalogs/c"):
        assert "MARK-" not in service.admin.get(path).text
    shown = service.admin.get("/catalogs/c").json()["properties"]
    assert all("***" in shown[name] for name in properties)
    saved = service.admin.patch("/catalogs/c", json={"properties": shown}, headers={"If-Match": "*"})
    assert (saved.status_code, saved.json()["type"]) == (422, "/problems/secret-in-clear")


def test_the_parts_of_a_login_are_no_property(service: Running) -> None:
    auth = '{"type": "basic", "basic": {"username": "u", "password": "MARK-password"}}'
    body = {"name": "c", "type": "rest", "properties": {"uri": "https://catalog.example", "auth": auth}}
    answer = service.admin.post("/catalogs", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/property-not-allowed")
    assert "MARK-" not in answer.text


@pytest.mark.parametrize(
    "properties",
    [
        {"s3.access-key-id": "id", "client.access-key-id": "id", "gcs.oauth2.token-expires-at": "1"},
        {"token-refresh-enabled": "true", "adls.auth.shared-key.account.name": "acc", "s3.sse.type": "s3"},
        {"oauth2-server-uri": "https://id.example/oauth/tokens", "s3.sse-kms-key-id": "arn:aws:kms:x:1:k"},
        {"header.X-Iceberg-Access-Delegation": "vended-credentials"},
        {"warehouse": "abfss://container@acc.dfs.core.windows.net/lake"},
    ],
)
def test_what_is_no_secret_is_kept_in_clear(settings: Settings, properties: dict[str, str]) -> None:
    settings.allowed_locations = ("abfss://container@acc.dfs.core.windows.net/",)
    given = {"uri": "https://catalog.example"} | properties
    with running(settings) as service:
        answer = service.admin.post("/catalogs", json={"name": "c", "type": "rest", "properties": given})
        assert (answer.status_code, answer.json().get("properties")) == (201, given), answer.text


def test_a_database_names_its_user_and_no_password(service: Running) -> None:
    warehouse = f"file://{service.settings.data_dir}/w"
    for uri, status in (
        ("postgresql+psycopg://me@db.example/lake?sslmode=require", 201),
        ("postgresql+psycopg://me:MARK-password@db.example/lake", 422),
    ):
        body = {"name": "c", "type": "sql", "properties": {"uri": uri, "warehouse": warehouse}}
        answer = service.admin.post("/catalogs", json=body)
        assert (answer.status_code, "MARK-" in answer.text) == (status, False)


def dump(database_url: str) -> str:
    """Every value of every table, whether or not a model knows it."""
    engine = create_engine(database_url)
    known = MetaData()
    known.reflect(engine)
    with engine.connect() as connection:
        found = [connection.execute(select(table)).all() for table in known.tables.values()]
    engine.dispose()
    return "\n".join(repr(tuple(row)) for rows in found for row in rows)


def fail_at_work(
    service: Running, assignment: dict[str, Any], monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """A worker decides, logs and fails, each with all that the catalog says."""

    def fail(assignment: Assignment, _: object, reporter: Any, __: object) -> None:
        given = resolve_secrets(assignment.catalog.properties)
        gateway = open_gateway("c", tuple(given.items()), assignment.egress)
        _, _, refusal = gateway.ask("GET", "v1/refused", {}, b"")
        assert b"MARK-" not in refusal  # Java is handed no more
        reporter.decide(f"the job decided {refusal.decode()}")
        # Another one than this attempt's.
        monkeypatch.setenv("CATALOG_SECRET", secret[:-1])
        changed = resolve_secrets(assignment.catalog.properties)
        no_jvm: Any = None
        with pytest.raises(catalogs.CatalogUnreachableError) as refused:
            catalogs.load_table(no_jvm, "rest", "c", changed, ["db", "t"], egress=assignment.egress)
        assert "MARK-" not in str(refused.value)
        raise RuntimeError(f"wrong secret: {refused.value}")

    class Runner:
        is_usable = True

    runner: Any = Runner()
    monkeypatch.setattr("worker.agent.worker.run_job", fail)
    control_plane = ControlPlane(service.url, ADMIN_KEY)
    assert worker.agent.worker.Worker(control_plane, runner).run_attempt(
        Assignment.model_validate(assignment)
    )
    control_plane.close()
    monkeypatch.setenv("CATALOG_SECRET", secret)


def test_no_secret_is_kept_said_or_logged(
    service: Running,
    iceberg: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    def call(method: str, path: str, **options: Any) -> Any:
        answer = service.admin.request(method, path, **options)
        said.append(f"{answer.headers} {answer.text}")
        return answer.json() if answer.text else None

    (tmp_path / "store-key").write_text(f"{STORE_KEY}\n")
    monkeypatch.setenv("CATALOG_URI", f"postgresql://user:{PASSWORD.replace('@', '%40')}@127.0.0.1:1/lake")
    warehouse = f"file://{tmp_path}/warehouse"
    store = {"s3.secret-access-key": f"file:{tmp_path}/store-key", "s3.access-key-id": "id"}
    sql = {
        "name": "sql",
        "type": "sql",
        "properties": {"uri": "env:CATALOG_URI", "warehouse": warehouse} | store,
    }
    call("POST", "/catalogs", json=sql)
    call("POST", "/catalogs/sql/check")
    call("POST", "/tables", json={"catalog": "sql", "identifier": ["db", "t"]})
    for kind in KINDS:
        with demanding(iceberg, kind) as server:
            register(service, server, kind)
            # Right, wrong, and right again, to a server that repeats what it is sent.
            monkeypatch.setenv("CATALOG_SECRET", SECRETS[kind])
            assert call("POST", f"/catalogs/{kind}/check")["ok"] is True
            table = call("POST", "/tables", json={"catalog": kind, "identifier": ["db", "t"]})["id"]
            pattern = call("POST", "/patterns", json={"catalog": kind, "pattern": "*"})["id"]
            service.poll(table)
            job = call("POST", f"/tables/{table}/jobs", json={"kind": "convert"})["id"]
            assignment = service.claim(service.start_worker())
            assert assignment is not None
            assert assignment["catalog"]["properties"].items() >= KINDS[kind][0].items()
            said.append(str(assignment))
            fail_at_work(service, assignment, monkeypatch, SECRETS[kind])
            assert "wrong secret" in str(call("GET", f"/jobs/{job}")["error"])
            told = str(call("GET", f"/jobs/{job}/events"))
            assert ("the job decided" in told, "is not enough" in told) == (True, True)
            for secret in (SECRETS[kind][:-1], None):
                if secret is None:
                    monkeypatch.delenv("CATALOG_SECRET")
                else:
                    monkeypatch.setenv("CATALOG_SECRET", secret)
                call("POST", f"/catalogs/{kind}/check")
                service.poll(table)
                service.background.patterns.run(pattern)
                call("POST", "/tables", json={"catalog": kind, "identifier": ["db", "u"]})
                call("GET", f"/catalogs/{kind}/candidates", params={"all_tables": True})
                for path in (f"/catalogs/{kind}", f"/patterns/{pattern}", f"/tables/{table}", f"/jobs/{job}"):
                    call("GET", path)
                for path in ("health", "health/history", "events", "policy", "policy/preview"):
                    call("GET", f"/tables/{table}/{path}")
            monkeypatch.setenv("CATALOG_SECRET", SECRETS[kind])
    for path in ("catalogs", "tables", "jobs", "patterns", "audit", "workers", "policies"):
        call("GET", f"/{path}")
    everything = {
        "answers": "\n".join(said),
        "database": dump(service.settings.database_url),
        "log": caplog.text,
    }
    assert "CATALOG_SECRET" in everything["database"]
    assert "is not enough" in everything["answers"]
    # A secret cut short is one too.
    found = {where: [mark for mark in MARKS if mark in text] for where, text in everything.items()}
    places = {
        where: text[text.find("MARK-") - 300 :][:400] for where, text in everything.items() if found[where]
    }
    assert places == {}
