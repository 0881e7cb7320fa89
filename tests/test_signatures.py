"""REST catalogs that want requests signed by AWS: each of the service and of the worker is signed right."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.catalogs.clients import open_catalog
from service.catalogs.iceberg import IcebergCatalogs
from service.errors import UnreachableError
from service.records.catalogs import Catalog, CatalogType
from service.settings import Settings
from tests.aws import KINDS, SHOWN, aws, environment
from tests.http_server import Answer, Answers, HttpServer, Request, answering, rest_catalog
from tests.sigv4 import RefusedError, Signatures, signed_only
from trust.egress import Egress
from worker.table.catalogs import CatalogUnreachableError, load_table
from worker.table.rest_gateway import RestGateway

LOOPBACK = ("*", "127.0.0.0/8", "::1")
SIGNED = {"rest.sigv4-enabled": "true", "rest.signing-name": "glue", "rest.signing-region": "eu-central-1"}
RECORD = SIGNED | {"client.access-key-id": "AKIDRECORD", "client.secret-access-key": "secret/of+record"}
PREFIX = "/v1/catalogs/123456789012%3As3tablescatalog%2Flake"
"""As Glue names the catalog of a bucket of S3 Tables."""


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine has no identity but that which a test gives it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def answers() -> Answers:
    return rest_catalog() | {
        "/v1/config": Answer({"defaults": {}, "overrides": {"prefix": PREFIX.removeprefix("/v1/")}}),
        f"{PREFIX}/namespaces": Answer({"namespaces": [["db"]]}),
        f"{PREFIX}/namespaces/a%1Fb%20c%2F%C3%A4/tables": Answer({"identifiers": []}),
    }


@contextmanager
def catalog(signatures: Signatures) -> Iterator[tuple[str, HttpServer]]:
    with answering(answers()) as behind, signed_only(behind.url, signatures) as url:
        yield url, behind


def by_service(properties: dict[str, str]) -> None:
    settings = Settings(_env_file=None, allowed_hosts=LOOPBACK)
    opened = open_catalog(settings, CatalogType.REST, "c", properties)
    assert opened.list_namespaces() == [("db",)]
    opened.list_namespaces(("a b", "c/d"))
    assert opened.list_tables(("a", "b c/ä")) == []


def by_worker(properties: dict[str, str]) -> None:
    gateway = RestGateway("c", properties, Egress(LOOPBACK))
    # As Iceberg's Java asks.
    for method, path, body in (
        ("GET", "v1/config?warehouse=a+b%2Fc", b""),
        ("GET", f"{PREFIX[1:]}/namespaces?pageToken=&parent=a%1Fb&x=*", b""),
        ("GET", f"{PREFIX[1:]}/namespaces/a%1Fb%20c%2F%C3%A4/tables", b""),
        ("POST", f"{PREFIX[1:]}/namespaces", b""),
        ("POST", f"{PREFIX[1:]}/namespaces", '{"namespace": ["ä"]}'.encode()),
    ):
        headers = {"Content-Type": "application/json", "X-Client-Version": "Apache  Iceberg 1.12"}
        assert gateway.ask(method, path, headers, body)[0] == 200


@pytest.mark.parametrize("ask", [by_service, by_worker])
def test_each_request_is_signed_as_it_is_sent(ask: Callable[[dict[str, str]], None]) -> None:
    signatures = Signatures()
    with catalog(signatures) as (url, _):
        ask(RECORD | {"uri": url, "warehouse": "123456789012:s3tablescatalog/a b", "rest-page-size": "7"})
    assert signatures.refused == []
    assert len(signatures.seen) > 3


EXPECTED = {
    "secret": "Check `client.secret-access-key`",
    "key": "Check `client.access-key-id`",
    "token": "`client.session-token`, without which",
    "expired": "Renew `client.access-key-id`",
    "region": "Set `rest.signing-region`, and `rest.signing-name`",
    "service": "Set `rest.signing-region`, and `rest.signing-name`",
    "slow clock": "Set the clock of this machine right",
    "fast clock": "Set the clock of this machine right",
    "unsigned": "Set `rest.sigv4-enabled`, `rest.signing-name`",
    "no region": "Set `rest.signing-region` in the record",
    "no keys": "or this machine an identity: AWS_ACCESS_KEY_ID",
}


def told_by_service(properties: dict[str, str]) -> tuple[str, str]:
    settings = Settings(_env_file=None, allowed_hosts=LOOPBACK)
    record = Catalog(name="c", type="rest", properties=properties)
    with pytest.raises(UnreachableError) as caught, IcebergCatalogs(settings).open(record) as source:
        source.namespaces()
    return str(caught.value.detail), str(caught.value.remedy)


def told_by_worker(properties: dict[str, str]) -> tuple[str, str]:
    with pytest.raises(CatalogUnreachableError) as caught:
        load_table(None, "rest", "c", properties, ("db", "t"), egress=Egress(LOOPBACK))
    return caught.value.detail, caught.value.remedy


@pytest.mark.parametrize("told", [told_by_service, told_by_worker])
@pytest.mark.parametrize("what", EXPECTED)
def test_what_is_not_signed_right_is_refused_with_words_that_help(
    told: Callable[[dict[str, str]], tuple[str, str]], what: str
) -> None:
    signatures = Signatures()
    record = dict(RECORD)
    if what == "secret":
        record["client.secret-access-key"] = "another"
    elif what == "key":
        record["client.access-key-id"] = "AKIDNOBODY"
    elif what == "token":
        signatures.tokens["AKIDRECORD"] = "token"
    elif what == "expired":
        signatures.expired.add("AKIDRECORD")
    elif what == "region":
        record["rest.signing-region"] = "eu-north-1"
    elif what == "service":
        del record["rest.signing-name"]
    elif what == "slow clock":
        signatures.ahead = timedelta(minutes=6)
    elif what == "fast clock":
        signatures.ahead = timedelta(minutes=-6)
    elif what == "unsigned":
        record = {}
    elif what == "no region":
        del record["rest.signing-region"]
    elif what == "no keys":
        record = dict(SIGNED)
    with catalog(signatures) as (url, behind):
        detail, remedy = told(record | {"uri": url})
        assert EXPECTED[what] in remedy, (detail, remedy)
        assert behind.requests == []
    assert len(signatures.refused) == (0 if what in ("no region", "no keys") else 1)


def signed_request(record: dict[str, str] = RECORD) -> tuple[str, str, dict[str, str], bytes]:
    """Method, target, headers in lower case and body of a commit that the gateway sent."""
    sent: list[Request] = []

    def remember(request: Request) -> Answer:
        sent.append(request)
        return Answer({})

    path = f"{PREFIX}/namespaces/a%1Fb/tables/t"
    with answering(rest_catalog() | {path: remember}) as server:
        gateway = RestGateway("c", record | {"uri": server.url, "header.X-Team": "lake"}, Egress(LOOPBACK))
        gateway.ask("POST", f"{path[1:]}?a=1&b=2", {"Content-Type": "application/json"}, b'{"updates": []}')
    return "POST", f"{path}?a=1&b=2", dict(sent[0].headers), sent[0].body.encode()


def test_a_signature_is_for_one_request_with_its_body_and_headers() -> None:
    method, target, headers, body = signed_request()
    server = Signatures()
    assert server.check(method, target, headers, body) == "AKIDRECORD"

    def changed(name: str, value: str) -> dict[str, str]:
        return headers | {name: value}

    others: list[tuple[str, str, dict[str, str], bytes]] = [
        ("GET", target, headers, body),
        (method, target.replace("a%1Fb", "a%2Fb"), headers, body),
        (method, target.replace("a=1", "a=2"), headers, body),
        (method, target, headers, b'{"updates": [1]}'),
        (method, target, headers, b""),
        (method, target, changed("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), body),
        (method, target, changed("x-amz-added", "later"), body),
        (method, target, changed("host", "elsewhere.example"), body),
        (method, target, changed("x-team", "pond"), body),
        (method, target, changed("content-type", "text/plain"), body),
    ]
    for other in others:
        with pytest.raises(RefusedError):
            server.check(*other)


def test_the_server_of_these_tests_agrees_with_the_example_that_aws_publishes() -> None:
    from datetime import UTC, datetime

    server = Signatures("iam", "us-east-1", {"AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"})
    server.ahead = datetime(2015, 8, 30, 12, 36, tzinfo=UTC) - datetime.now(UTC)
    signature = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    headers = {
        "host": "iam.amazonaws.com",
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "x-amz-date": "20150830T123600Z",
        "authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, "
        f"SignedHeaders=content-type;host;x-amz-date, Signature={signature}",
    }
    target = "/?Action=ListUsers&Version=2010-05-08"
    assert server.check("GET", target, headers, b"") == "AKIDEXAMPLE"


def test_what_is_sent_again_is_signed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then, the keys of the machine may be others."""

    def expire(_: Request) -> Answer:
        if len(signatures.seen) > 2:
            return Answer({"namespaces": []})
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEXT")
        return Answer("", 401)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDMACHINE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    signatures = Signatures(secrets={"AKIDMACHINE": "of the machine", "AKIDNEXT": "of the machine"})
    with catalog(signatures) as (url, behind):
        behind.answers[f"{PREFIX}/namespaces"] = expire
        given = {"rest.sigv4-enabled": "true", "rest.signing-name": "glue", "uri": url}
        gateway = RestGateway("c", given, Egress(LOOPBACK))
        assert gateway.ask("GET", f"{PREFIX[1:]}/namespaces", {}, b"")[0] == 200
    assert [key for _, _, key in signatures.seen] == ["AKIDMACHINE", "AKIDMACHINE", "AKIDNEXT"]


def test_nothing_is_sent_again_behind_the_back_of_who_asks() -> None:
    """A server could name any time until when to wait, and the signature would be over by then."""
    signatures = Signatures()
    with catalog(signatures) as (url, behind):
        gateway = RestGateway("c", RECORD | {"uri": url}, Egress(LOOPBACK))
        behind.answers[f"{PREFIX}/namespaces"] = Answer("", 503, {"Retry-After": "3600"})
        assert gateway.ask("GET", f"{PREFIX[1:]}/namespaces", {}, b"")[0] == 503
    assert len(signatures.seen) == 2


OWN = {"AWS_ACCESS_KEY_ID": "AKIDMACHINE", "AWS_SECRET_ACCESS_KEY": "of the machine"}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, "AKIDMACHINE"),
        ({"s3.access-key-id": "AKIDSTORE", "s3.secret-access-key": "of the store"}, "AKIDMACHINE"),
        (RECORD, "AKIDRECORD"),
        (
            RECORD
            | {
                "rest.access-key-id": "AKIDREST",
                "rest.secret-access-key": "of the catalog",
                "client.session-token": "not of this key",
            },
            "AKIDREST",
        ),
    ],
    ids=["machine", "store", "client", "rest"],
)
def test_keys_of_the_record_for_catalogs_go_before_those_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], key: str
) -> None:
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    signatures = Signatures()
    signatures.secrets |= {"AKIDMACHINE": "of the machine", "AKIDREST": "of the catalog"}
    with catalog(signatures) as (url, _):
        record = SIGNED | given | {"uri": url}
        by_service(record)
        gateway = RestGateway("c", record, Egress(LOOPBACK))
    assert {used for _, _, used in signatures.seen} == {key}
    java = gateway.java_properties(record)
    assert not {name for name in java if name.startswith("rest.") and "key" in name}


def test_a_token_beside_a_signature_is_told_in_no_refusal_either() -> None:
    def repeat(request: Request) -> Answer:
        return Answer({"message": f"not {request.headers['original-authorization'].split()[1]}"}, 403)

    with answering({"/v1/config": repeat}) as server:
        record = RECORD | {"uri": server.url, "token": "token-of-the-record"}
        with pytest.raises(CatalogUnreachableError) as caught:
            load_table(None, "rest", "c", record, ("db", "t"), egress=Egress(LOOPBACK))
    assert "not ***" in caught.value.detail


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_identity_of_a_machine_signs_is_let_through(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most have a session, whose token has to be signed too."""
    with aws() as server:
        for name, value in (
            environment("none", server, tmp_path) | environment(kind, server, tmp_path)
        ).items():
            monkeypatch.setenv(name, value)

        class Known(Signatures):
            def check(self, *request: Any) -> str:
                self.secrets = dict.fromkeys(("environment", "profile", *server.given), "secret")
                self.tokens = {key: f"token-of-{key}" for key in server.given}
                return super().check(*request)

        signatures = Known()
        with catalog(signatures) as (url, _):
            for ask in (by_service, by_worker):
                ask(SIGNED | {"uri": url})
    assert signatures.refused == []
    assert {key.startswith(SHOWN[kind]) for _, _, key in signatures.seen} == {True}


def test_the_token_of_a_session_is_part_of_what_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (OWN | {"AWS_SESSION_TOKEN": "token"}).items():
        monkeypatch.setenv(name, value)
    method, target, headers, body = signed_request(SIGNED)
    server = Signatures(secrets={"AKIDMACHINE": "of the machine"}, tokens={"AKIDMACHINE": "token"})
    assert server.check(method, target, headers, body) == "AKIDMACHINE"
    server.tokens["AKIDMACHINE"] = "another"
    with pytest.raises(RefusedError, match="does not match"):
        server.check(method, target, headers | {"x-amz-security-token": "another"}, body)


@pytest.mark.parametrize("told", [told_by_service, told_by_worker])
def test_no_session_is_told_of_in_a_refusal(
    told: Callable[[dict[str, str]], tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS repeats what it has calculated a signature of, the session's token included."""
    for name, value in (OWN | {"AWS_SESSION_TOKEN": "token-of-the-session"}).items():
        monkeypatch.setenv(name, value)
    echo: dict[str, Any] = {}

    def repeat(request: Request) -> Answer:
        echo.update(request.headers)
        said = f"x-amz-security-token:{request.headers['x-amz-security-token']}"
        return Answer(json.dumps({"message": said}), 403)

    with answering({"/v1/config": repeat}) as server:
        detail, remedy = told(SIGNED | {"uri": server.url})
    assert echo["x-amz-security-token"] == "token-of-the-session"
    assert "x-amz-security-token:***" in detail
    assert "token-of-the-session" not in detail + remedy
