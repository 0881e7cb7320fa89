"""What a REST catalog answers leads neither service nor worker astray, and tells nobody what they sent it."""

from collections.abc import Callable

import pytest

from service.catalogs.clients import GuardedRestCatalog, open_catalog
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.http_server import Answer, Request, answering, rest_catalog
from trust.egress import Egress
from worker.table.rest_gateway import RestGateway

LOOPBACK = ("*", "127.0.0.0/8", "::1")
ELSEWHERE = "http://169.254.169.254"
KEYS = {"s3.access-key-id": "vended", "s3.secret-access-key": "vended"}
TABLE = "/v1/namespaces/db/tables/t"


def told_by_service(properties: dict[str, str]) -> str:
    settings = Settings(_env_file=None, allowed_hosts=LOOPBACK)
    try:
        catalog = open_catalog(settings, CatalogType.REST, "c", properties)
        assert isinstance(catalog, GuardedRestCatalog)
        return catalog.load_if_changed(("db", "t"), None).text
    except Exception as error:
        return str(error)


def told_by_worker(properties: dict[str, str]) -> str:
    try:
        gateway = RestGateway("c", properties, Egress(LOOPBACK))
        _, _, content = gateway.ask("GET", TABLE.removeprefix("/"), {}, b"")
        return str(gateway.refusal or content.decode())
    except Exception as error:
        return str(error)


Told = Callable[[dict[str, str]], str]
by_both = pytest.mark.parametrize("told", [told_by_service, told_by_worker])


@by_both
def test_no_place_of_a_table_has_its_store_inside(told: Told) -> None:
    """Also one where the table at hand does not lie."""
    inside = {"prefix": "s3://other", "config": {"s3.endpoint": ELSEWHERE} | KEYS}
    outside = {"prefix": "s3://lake", "config": {"s3.endpoint": "http://127.0.0.1:1"} | KEYS}
    for places, is_refused in (([outside], False), ([outside, inside], True)):
        loaded = {"storage-credentials": places, "metadata-location": "s3://lake/metadata.json"}
        with answering(rest_catalog() | {TABLE: Answer(loaded)}) as server:
            said = told({"uri": server.url})
        assert ("'169.254.169.254' is not among the hosts" in said) == is_refused
        assert ("http://127.0.0.1:1" in said) != is_refused


@by_both
@pytest.mark.parametrize("where", ["refusal", "redirect", "token"])
def test_nothing_secret_that_was_sent_is_told(told: Told, where: str) -> None:
    def quote(request: Request) -> Answer:
        sent = " ".join((*request.headers.values(), request.body))
        if where == "redirect":
            return Answer("", 302, {"location": f"{ELSEWHERE}/?{sent}"})
        return Answer({"error": {"message": f"I got {sent}", "type": "Bad", "code": 400}}, 400)

    token = Answer({"access_token": "MARK-token", "token_type": "bearer"})
    with answering(rest_catalog() | {"/token": token, TABLE: quote}) as server:
        if where == "token":
            server.answers["/token"] = quote
        own = {"header.X-Key": "MARK-key", "header.Polaris-Realm": "realm-of-lake"}
        client = {"credential": "id:MARK/s", "oauth2-server-uri": f"{server.url}/token"}
        said = told({"uri": server.url} | own | client)
    assert "realm-of-lake" in said
    assert "***" in said
    assert "MARK" not in said


@by_both
@pytest.mark.parametrize("is_in_record", [False, True])
def test_no_catalog_has_requests_signed_with_credentials_of_this_machine(
    told: Told, monkeypatch: pytest.MonkeyPatch, is_in_record: bool
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "own")
    signing = {"rest.sigv4-enabled": "true", "rest.signing-region": "eu-1", "rest.signing-name": "glue"}
    answers = rest_catalog() | {"/v1/config": Answer({"defaults": signing, "overrides": signing})}
    with answering(answers) as server:
        assert "s3://nowhere/metadata.json" in told({"uri": server.url} | (signing if is_in_record else {}))
        # Unless its record says so.
        assert ("AWS4-HMAC" in str(server.requests)) == is_in_record
