"""Catalogs are asked directly: no proxy of the environment comes between, and nothing of a .netrc is sent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.catalogs.clients import allowed_session, open_catalog
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.http_server import Answer, HttpServer, answering, rest_catalog
from trust.egress import Egress
from worker.table.rest_gateway import RestGateway

LOOPBACK = ("*", "127.0.0.0/8", "::1")
SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "eu-1",
    "client.access-key-id": "k",
    "client.secret-access-key": "k",
}
TOKEN = {"access_token": "t", "token_type": "bearer"}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HttpServer]:
    """Named by the environment, as a .netrc for loopback is."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login own password own")
    monkeypatch.setenv("NETRC", str(netrc))
    with answering({}) as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, server.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield server


def by_service(properties: dict[str, str]) -> None:
    settings = Settings(_env_file=None, allowed_hosts=LOOPBACK)
    catalog = open_catalog(settings, CatalogType.REST, "c", properties)
    assert catalog.list_namespaces() == [("db",)]


def by_worker(properties: dict[str, str]) -> None:
    answer = RestGateway("c", properties, Egress(LOOPBACK)).ask("GET", "v1/namespaces", {}, b"")
    assert answer[0] == 200


@pytest.mark.parametrize("ask", [by_service, by_worker])
@pytest.mark.parametrize("how", ["token", "credential", "signed"])
def test_a_rest_catalog_is_asked_through_no_proxy_and_with_nothing_of_a_netrc(
    proxy: HttpServer, ask: Callable[[dict[str, str]], None], how: str
) -> None:
    with answering(rest_catalog() | {"/token": Answer(TOKEN)}) as server:
        further = {
            "token": {"token": "t"},
            "credential": {"credential": "id:s", "oauth2-server-uri": f"{server.url}/token"},
            "signed": SIGNED,
        }[how]
        ask({"uri": server.url} | further)
        assert server.requests
        assert "Basic " not in str(server.requests)
    assert proxy.requests == []


def test_glue_is_asked_through_no_proxy(proxy: HttpServer) -> None:
    with answering({"/": Answer({"DatabaseList": [{"Name": "db"}]})}) as server:
        keys = {f"glue.{key}": "k" for key in ("access-key-id", "secret-access-key")}
        given = {"glue.endpoint": server.url, "glue.region": "eu-1"} | keys
        settings = Settings(_env_file=None, allowed_hosts=LOOPBACK)
        catalog = open_catalog(settings, CatalogType.GLUE, "c", given)
        assert catalog.list_namespaces() == [("db",)]
    assert proxy.requests == []


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_authorities_of_the_environment_are_trusted(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings(_env_file=None)
    with allowed_session(settings, 1) as brought:
        assert brought.verify is True
    monkeypatch.setenv(variable, "/authorities.pem")
    with allowed_session(settings, 1) as named:
        assert named.verify == "/authorities.pem"
