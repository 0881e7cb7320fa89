"""A check takes a catalog step by step, and says in words what fails: against real servers that fail so."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy import create_engine, text
from thrift.transport.TTransport import TTransportException

from service.catalogs.check import explain
from service.records.catalogs import Catalog
from tests.http_server import Answer, answering, rest_catalog
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_egress import metadata_of

# Catalogs are asked, and next to nothing of the database.
database_kind = alike_on_both

ORDER = [
    "secrets",
    "name_resolution",
    "connect",
    "tls",
    "credentials",
    "permission",
    "warehouse",
    "index_warehouse",
]


def check(service: Running, kind: str, properties: dict[str, str], **fields: Any) -> dict[str, Any]:
    body = {"name": "c", "type": kind, "properties": properties} | fields
    created = service.admin.post("/catalogs", json=body)
    assert created.status_code == 201, created.text
    return dict(service.admin.post("/catalogs/c/check").json())


def expect(checked: dict[str, Any], failed: str, words: str, remedy: str) -> None:
    """One step failed, in these words, and those that rest on it were skipped."""
    assert [step["name"] for step in checked["steps"]] == ORDER
    assert [step["name"] for step in checked["steps"] if step["status"] == "failed"] == [failed], checked
    step = checked["steps"][ORDER.index(failed)]
    assert words in step["detail"]
    assert remedy in step["remedy"]
    assert (checked["ok"], checked["explanation"], checked["remedy"]) == (
        False,
        step["detail"],
        step["remedy"],
    )
    for later in checked["steps"][ORDER.index(failed) + 1 : -1]:
        assert (later["status"], later["detail"]) == ("skipped", "An earlier step failed.")


def test_a_catalog_that_works_passes_every_step(service: Running, iceberg: IcebergCatalog) -> None:
    with answering(rest_catalog(metadata_of(iceberg))) as server:
        checked = check(service, "rest", {"uri": server.url})
    assert (checked["ok"], checked["status"], checked["tables"]) == (True, "ok", ["db.t"])
    assert {step["name"]: step["status"] for step in checked["steps"]} == dict.fromkeys(ORDER, "ok") | {
        "secrets": "skipped",
        "tls": "skipped",
    }
    assert checked["steps"][1]["detail"] == "127.0.0.1 is 127.0.0.1."
    index = Path(service.settings.data_dir / "index")
    assert not index.exists(), "a check writes nothing"
    index.mkdir()
    said = service.admin.post("/catalogs/c/check").json()["steps"][-1]["detail"]
    assert "its permissions let this user write; nothing was written" in said
    assert not list(index.iterdir())


@pytest.mark.parametrize(
    ("uri", "failed", "words", "remedy"),
    [
        (
            "http://no-such-host.invalid",
            "name_resolution",
            "'no-such-host.invalid' cannot be resolved",
            "name",
        ),
        ("http://127.0.0.1:1", "connect", "refuses connections at port 1", "Check the port"),
        ("https://127.0.0.1:1", "connect", "refuses connections at port 1", "Check the port"),
    ],
)
def test_a_server_that_is_not_there(service: Running, uri: str, failed: str, words: str, remedy: str) -> None:
    expect(check(service, "rest", {"uri": uri}), failed, words, remedy)


CLOSED = "http://127.0.0.1:1"
GLUE = {
    "glue.region": "r",
    "glue.access-key-id": "key-of-this-test",
    "glue.secret-access-key": "env:GLUE_SECRET",
    "glue.max-retries": "1",
}


@pytest.fixture
def glue_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLUE_SECRET", "secret-of-this-test")


@pytest.mark.usefixtures("glue_secret")
@pytest.mark.parametrize(
    ("kind", "key", "properties"),
    [
        ("glue", "glue.endpoint", GLUE),
        ("glue", "s3.endpoint", GLUE),
        ("rest", "oauth2-server-uri", {}),
        ("hive", "uri", {}),
    ],
)
def test_each_server_that_a_record_names_is_tried(
    service: Running, kind: str, key: str, properties: dict[str, str]
) -> None:
    with answering({}) as server:
        open_at = {"rest": {"uri": server.url}, "glue": {"glue.endpoint": server.url}}.get(kind, {})
        closed = {key: CLOSED if kind != "hive" else "thrift://127.0.0.1:1"}
        checked = check(service, kind, properties | open_at | closed)
    expect(checked, "connect", "refuses connections at port 1", f"`{key}`")


@pytest.mark.usefixtures("glue_secret")
@pytest.mark.parametrize(
    ("code", "words", "remedy"),
    [
        ("AccessDeniedException", "forbids what is asked", "glue:GetDatabases"),
        ("UnrecognizedClientException", "refuses the credentials", "`glue.access-key-id`"),
        ("ExpiredTokenException", "have expired", "`glue.session-token`"),
    ],
)
def test_glue_refuses(service: Running, code: str, words: str, remedy: str) -> None:
    with answering({"/": Answer({"__type": code, "message": "no"}, 400)}) as server:
        expect(check(service, "glue", GLUE | {"glue.endpoint": server.url}), "credentials", words, remedy)


@pytest.mark.parametrize(
    ("kind", "error", "words", "remedy"),
    [
        ("glue", NoCredentialsError(), "There are no credentials", "`glue.access-key-id`"),
        ("glue", EndpointConnectionError(endpoint_url=CLOSED), "cannot be reached", "`glue.region`"),
        (
            "rest",
            OSError("When reading: AWS Error INVALID_ACCESS_KEY_ID during HeadObject operation: no"),
            "The object store refuses the credentials",
            "`s3.access-key-id`",
        ),
        (
            "rest",
            OSError("When reading: AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7"),
            "The object store cannot be reached",
            "`s3.endpoint`",
        ),
        ("hive", TTransportException(message="read 0 bytes"), "ended the connection", "`uri`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_libraries_raise_is_explained(kind: str, error: Exception, words: str, remedy: str) -> None:
    told = explain(Catalog(name="c", type=kind, properties={}), error)
    assert words in told.detail
    assert remedy in told.remedy


@pytest.mark.parametrize(
    ("path", "answer", "failed", "words", "remedy"),
    [
        ("/v1/config", Answer({"error": {}}, 401), "credentials", "refuses the credentials", "`token`"),
        ("/v1/config", Answer("no", 403), "credentials", "knows the credentials, but forbids", "Grant"),
        (
            "/v1/config",
            Answer({"message": "Signature expired: 20261125T000000Z is now earlier than"}, 403),
            "credentials",
            "the time of the signature is not now",
            "clock",
        ),
        ("/v1/config", Answer("boom", 500), "credentials", "The catalog fails itself", "own log"),
        ("/v1/config", Answer("down", 503), "credentials", "The catalog fails itself", "own log"),
        (
            "/v1/config",
            Answer("<html>"),
            "credentials",
            "not as an Iceberg REST catalog does",
            "path in `uri`",
        ),
        (
            "/v1/config",
            Answer("<html>", 404),
            "credentials",
            "not as an Iceberg REST catalog",
            "path in `uri`",
        ),
        ("/v1/config", Answer(delay_seconds=2), "credentials", "does not answer in time", "own log"),
        ("/v1/namespaces", Answer("no", 403), "permission", "knows the credentials, but forbids", "Grant"),
        ("/v1/namespaces/db/tables", Answer("", 500), "permission", "The catalog fails itself", "own log"),
        ("/v1/namespaces/db/tables/t", Answer("no", 403), "warehouse", "but forbids", "load tables"),
    ],
)
def test_a_server_that_answers_otherwise(
    service: Running,
    iceberg: IcebergCatalog,
    path: str,
    answer: Answer,
    failed: str,
    words: str,
    remedy: str,
) -> None:
    if answer.delay_seconds:
        service.settings.catalog_timeout_seconds = 0.5
    with answering(rest_catalog(metadata_of(iceberg)) | {path: answer}) as server:
        checked = check(service, "rest", {"uri": server.url})
    expect(checked, failed, words, remedy)
    assert checked["status"] == ("unusable" if failed == "warehouse" else "unreachable")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key in the same file."""
    file = tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file, "-out", f"{file}.crt"],
        check=True,
        capture_output=True,
    )
    with file.open("a") as pem:
        pem.write(Path(f"{file}.crt").read_text())
    return file


def test_a_certificate_that_nobody_vouches_for(
    service: Running, iceberg: IcebergCatalog, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with answering(rest_catalog(metadata_of(iceberg)), tls) as server:
        checked = check(service, "rest", {"uri": server.url})
        expect(checked, "tls", "is not trusted: self-signed certificate", "REQUESTS_CA_BUNDLE")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", f"{certificate}.crt")
        trusted = service.admin.post("/catalogs/c/check").json()
        assert (trusted["ok"], trusted["steps"][ORDER.index("tls")]["status"]) == (True, "ok"), trusted


def test_a_server_without_tls(service: Running) -> None:
    with answering({}) as server:
        checked = check(service, "rest", {"uri": server.url.replace("http:", "https:")})
    expect(checked, "tls", "does not speak TLS", "http://")


def test_a_secret_that_is_not_there(service: Running) -> None:
    checked = check(service, "rest", {"uri": "http://127.0.0.1:1", "token": "env:NOT_SET_ANYWHERE"})
    expect(checked, "secrets", "NOT_SET_ANYWHERE is not set", "available")


def test_a_warehouse_that_is_missing(service: Running) -> None:
    place = f"file://{service.settings.data_dir}/nowhere"
    expect(check(service, "hadoop", {"warehouse": place}), "warehouse", "does not exist", "Check `warehouse`")


def test_the_index_warehouse_is_tried_with_the_credentials_that_are_for_it(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_INDEX_KEY", "secret")
    service.settings.allowed_locations = ("s3://indexes",)
    of_tables = {"s3.access-key-id": "tables", "s3.region": "here"}
    with answering({}) as server:
        of_index = {
            "index.s3.endpoint": server.url,
            "index.s3.access-key-id": "indexes",
            "index.s3.secret-access-key": "env:CATALOG_INDEX_KEY",
            "index.s3.region": "here",
        }
        given = iceberg.properties | of_tables | of_index
        checked = check(service, "sql", given, name="c", index_warehouse="s3://indexes/i")
    # This store has no such bucket, but was asked.
    assert [step["name"] for step in checked["steps"] if step["status"] == "failed"] == ["index_warehouse"]
    assert server.requests
    for asked, headers in server.requests:
        assert "Credential=indexes/" in headers["authorization"]
        assert asked.startswith(("GET ", "HEAD ")), "a check writes nothing"


def test_an_index_warehouse_that_cannot_be_written(service: Running, iceberg: IcebergCatalog) -> None:
    (service.settings.data_dir / "file").touch()
    place = f"file://{service.settings.data_dir}/file/index"
    service.settings.allowed_locations = (place,)
    checked = check(service, "sql", iceberg.properties, name="c", index_warehouse=place)
    assert checked["explanation"] != ""
    expect(
        service.admin.post("/catalogs/c/check").json(),
        "index_warehouse",
        "cannot be written",
        "index_warehouse",
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("user", "failed", "words", "remedy"),
    [
        ("reader:wrong", "credentials", "password authentication failed", "user and password"),
        ("reader:right", "credentials", "permission denied", "Grant SELECT"),
        ("icestream:any@nowhere", "credentials", "does not exist", "database's name"),
        ("icestream:any", "credentials", "holds no Iceberg catalog", "database's name"),
    ],
)
def test_a_database_that_refuses(
    service: Running,
    postgresql: str,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    failed: str,
    words: str,
    remedy: str,
) -> None:
    name, _, password = user.partition(":")
    password, _, missing = password.partition("@")
    engine = create_engine(f"{postgresql}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        hba = Path(str(connection.execute(text("SHOW hba_file")).scalar()))
        rules = "host all reader 127.0.0.1/32 scram-sha-256\n"
        if rules not in hba.read_text():
            hba.write_text(rules + hba.read_text())
            connection.execute(text("CREATE ROLE reader LOGIN PASSWORD 'right'"))
            connection.execute(text("SELECT pg_reload_conf()"))
        if name == "reader":
            SqlCatalogBaseTable.metadata.create_all(connection)
        else:
            SqlCatalogBaseTable.metadata.drop_all(connection)
    engine.dispose()
    server = postgresql.partition("@")[2]
    uri = f"postgresql+psycopg://{name}:{password}@{server}/{missing or 'postgres'}"
    monkeypatch.setenv("CATALOG_URI", uri)
    warehouse = f"file://{service.settings.data_dir}/w"
    checked = check(service, "sql", {"uri": "env:CATALOG_URI", "warehouse": warehouse})
    expect(checked, failed, words, remedy)
    assert password not in str(checked).replace(f"{password} authentication", "")
