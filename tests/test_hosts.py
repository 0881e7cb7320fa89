"""What is checked as the host of a property is what every program finds there, or the property is refused."""

import json
import socket
from pathlib import Path

import pytest
from pyiceberg.io import FileIO

from service.catalogs.allowlists import addresses_of, check_record
from service.catalogs.file_io import SETTINGS, GuardedFileIO
from service.errors import InvalidError, UnreachableError
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.http_server import answering
from trust.egress import AmbiguousHostError, Egress, HostNotAllowedError, hosts_of, origin
from trust.rest_answers import SESSION_END, RestAnswers, SentElsewhereError

ALLOWED = "10.9.9.9"
KEYS = {
    "s3.access-key-id": "vended",
    "s3.secret-access-key": "vended",
    "s3.region": "eu-1",
    "gcs.oauth2.token": "vended",
}
ODD = [
    "http://{inside}@{allowed}",
    "http://{inside}#@{allowed}",
    "http://{inside}?@{allowed}",
    "http://{inside}\\@{allowed}",
    "http://[::1]:80@{allowed}",
    "http://{allowed}@{inside}",
    "//{inside}",
    "/{inside}",
    "~{inside}",
    "file://{inside}",
    "file:{inside}",
    "sqlite://{inside}",
    "sqlite:////{inside}",
    "env:{inside}",
    "HTTP://{inside}",
    "{inside}#@{allowed}",
    "{inside}@{allowed}",
    "{inside}/x",
    "http://{allowed},http://{inside}",
    "http:///{inside}",
    "http://{allowed} {inside}",
    "::1",
    "s3://{inside}",
]
"""Where one program finds one host, and another program another one, or none."""


def spelled(odd: str) -> str:
    return odd.format(inside="127.0.0.1:1", allowed=ALLOWED)


@pytest.mark.parametrize("key", ["s3.endpoint", "gcs.service.host", "oauth2-server-uri", "index.s3.endpoint"])
@pytest.mark.parametrize("odd", ODD)
def test_what_programs_read_differently_is_no_host(odd: str, key: str) -> None:
    with pytest.raises(AmbiguousHostError, match=key):
        list(hosts_of({key: spelled(odd)}))


@pytest.mark.parametrize("odd", ODD)
def test_no_answer_of_a_catalog_and_no_record_names_a_store_so(odd: str) -> None:
    settings = Settings(_env_file=None, allowed_hosts=(ALLOWED, "127.0.0.1"))
    for key in ("s3.endpoint", "gcs.service.host"):
        given = {key: spelled(odd)} | KEYS
        with pytest.raises(HostNotAllowedError):
            Egress((ALLOWED, "127.0.0.1")).check(given)
        with pytest.raises(InvalidError, match=key):
            GuardedFileIO({SETTINGS: settings} | given)
        for answer in ({"config": given}, {"storage-credentials": [{"prefix": "s3://", "config": given}]}):
            with pytest.raises(SentElsewhereError, match=key):
                RestAnswers({"uri": "http://catalog"}).harmless(_json(answer))
        with pytest.raises(SentElsewhereError, match=key):
            RestAnswers({"uri": "http://catalog"}).harmless(_json({"overrides": given}))


def _json(said: object) -> bytes:
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://lake.example/v1", "http://Lake.example.:80/v2"),
        ("https://lake.example", "https://lake.example:443/"),
    ],
)
def test_a_port_that_is_not_named_is_the_schemes(url: str, same: str) -> None:
    assert origin(url) == origin(same) is not None
    others = {origin(f"{scheme}://lake.example:{port}") for scheme in ("http", "https") for port in (80, 443)}
    assert len(others) == 4 > len(others - {origin(url)}) == 3


def test_hosts_are_found_wherever_they_are_named() -> None:
    for properties, hosts in (
        ({"uri": "https://catalog.example:8181/api/@x"}, ["catalog.example"]),
        ({"uri": "thrift://one.example:9083,thrift://[::1]:9083"}, ["one.example", "::1"]),
        ({"uri": "postgresql+psycopg://user:p:w@db.example:5432/c?sslmode=require"}, ["db.example"]),
        ({"uri": "sqlite:////data/catalog.db"}, []),
        ({"s3.endpoint": "store.example:9000"}, ["store.example"]),
        ({"s3.endpoint": "http://[::1]:9000/"}, ["::1"]),
        ({"s3.endpoint": ""}, []),
        ({"gcs.service.host": "http://store.example:4443"}, ["store.example"]),
        ({"hdfs.host": "name-node"}, ["name-node"]),
        ({"adls.connection-string.a": "BlobEndpoint=http://blobs.example;X=y"}, ["blobs.example"]),
        ({"table-default.write.data.path": "abfss://c@a.example/x"}, ["a.example"]),
        (
            {"warehouse": "s3://bucket/x", "scope": "http://x@y", "header.Referer": "//x", "y": "file:///x"},
            [],
        ),
    ):
        assert list(hosts_of(properties)) == hosts


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://u@127.0.0.1/@db.example/c",
        "postgresql://u:p@127.0.0.1@db.example/c",
        "postgresql:///c",
        "thrift://127.0.0.1:9083@one.example",
        "thrift://one.example,127.0.0.1:1",
        "sqlite://127.0.0.1:9083/x",
    ],
)
def test_an_odd_address_of_a_catalog_is_no_host(uri: str) -> None:
    with pytest.raises(AmbiguousHostError):
        list(hosts_of({"uri": uri}))


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        ("lake.example", ["lake.example", "Lake.example."], ["a.lake.example", "ake.example", ALLOWED]),
        ("*.example", ["lake.example", "a.lake.example"], ["example", "lakeexample", ALLOWED]),
        (ALLOWED, [ALLOWED, f"::ffff:{ALLOWED}"], ["10.9.9.8", "::1", "lake.example"]),
        ("10.9.9.0/24", [ALLOWED], ["10.9.8.9", "127.0.0.1", "lake.example"]),
        ("*", ["lake.example", ALLOWED], ["127.0.0.1", "::ffff:127.0.0.1"]),
    ],
)
def test_a_rule_allows_what_it_names_and_nothing_else(
    rule: str, allowed: list[str], refused: list[str]
) -> None:
    reach = Egress((rule,))
    for host in allowed:
        reach.check_host(host)
    for host in refused:
        with pytest.raises(HostNotAllowedError):
            reach.check_host(host)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("lake.example", "'lake.example' is"),
        ("127.0.0.1", "'127.0.0.1' is"),
        ("127.1", "'127.1', which is 127.0.0.1, is"),
    ],
)
def test_who_is_refused_is_told_the_address_that_was_written_otherwise(host: str, told: str) -> None:
    with pytest.raises(HostNotAllowedError, match=f"^{told} not among"):
        Egress(()).check_host(host)


@pytest.mark.parametrize(
    ("error", "words"),
    [(socket.gaierror(-2, "no such name"), "no such name"), (OSError("no server"), "no server")],
)
def test_a_host_that_is_not_found_is_told_in_the_words_of_who_looked(
    error: OSError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UnreachableError, match=f"'lake.example' cannot be resolved to an address: {words}."):
        addresses_of(Settings(_env_file=None), "lake.example", None)


def test_a_warehouse_is_a_place_but_where_a_rest_catalog_gives_it_a_name(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, data_dir=tmp_path, allowed_locations=("s3://b",))
    check_record(settings, CatalogType.REST, {"warehouse": "prod"})
    check_record(settings, CatalogType.GLUE, {"warehouse": ""})
    for kind, warehouse in ((CatalogType.REST, "s3://other"), (CatalogType.GLUE, "prod")):
        with pytest.raises(InvalidError, match=warehouse):
            check_record(settings, kind, {"warehouse": warehouse})


def test_each_address_of_a_metastore_is_judged(tmp_path: Path) -> None:
    settings = Settings(_env_file=None, data_dir=tmp_path, allowed_hosts=("*.example",))
    one = "thrift://one.example:9083"
    check_record(settings, CatalogType.HIVE, {"uri": f"{one},thrift://two.example:9083"})
    for other in ("http://two.example", "thrift://", "thrift://elsewhere.test:9083"):
        with pytest.raises(
            InvalidError, match=r"has one of thrift, and a host|'elsewhere.test' is not among"
        ):
            check_record(settings, CatalogType.HIVE, {"uri": f"{one},{other}"})


def _guarded(properties: dict[str, str], tmp_path: Path) -> FileIO:
    settings = Settings(
        _env_file=None, data_dir=tmp_path, allowed_hosts=(ALLOWED,), allowed_locations=("s3://b", "gs://b")
    )
    return GuardedFileIO({SETTINGS: settings, "s3.connect-timeout": "1"} | properties)


@pytest.mark.parametrize(
    ("key", "odd", "place"),
    [
        ("s3.endpoint", "http://127.0.0.1:{port}@" + ALLOWED, "s3://b/x"),
        ("gcs.service.host", "//127.0.0.1:{port}", "gs://b/x"),
    ],
)
def test_arrow_asks_no_server_that_nobody_allowed(key: str, odd: str, place: str, tmp_path: Path) -> None:
    with answering({}) as inside:
        with pytest.raises(InvalidError, match=key):
            _guarded({key: odd.format(port=inside.port)} | KEYS, tmp_path).new_input(place).exists()
        assert inside.requests == []


S3_KEY = {"s3.sse.type": "custom", "s3.sse.key": "MARK"}
ELSEWHERE = {"s3.endpoint": "https://elsewhere.example"} | KEYS


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (S3_KEY, ELSEWHERE),
        ({"s3.sse.key": "MARK"}, ELSEWHERE | {"s3.sse.type": "Custom"}),
        (S3_KEY | {"s3.endpoint": "https://own.example"}, ELSEWHERE),
        ({"gcs.encryption-key": "MARK"}, {"gcs.service.host": "https://elsewhere.example"} | KEYS),
        ({"gcs.decryption-key": "MARK"}, {"gcs.service.host": "https://elsewhere.example"} | KEYS),
    ],
)
def test_the_keys_of_a_records_files_go_to_no_store_that_the_catalog_names(
    record: dict[str, str], said: dict[str, str]
) -> None:
    answers = RestAnswers({"uri": "http://catalog"} | record)
    for answer in ({"config": said}, {"storage-credentials": [{"prefix": "s3://", "config": said}]}):
        with pytest.raises(SentElsewhereError, match=r"it holds as (s3\.sse\.key|gcs\.\w+-key)") as caught:
            answers.harmless(_json(answer))
        assert "MARK" not in str(caught.value)


@pytest.mark.parametrize("end", ["1795632023545", "soon", "-1", "9" * 400])
def test_the_end_of_what_is_vended_is_a_time(end: str) -> None:
    said = KEYS | {"s3.session-token": "t", SESSION_END: end}
    answers = RestAnswers({"uri": "http://catalog"})
    content = answers.harmless(_json({"config": said}), lambda prefix: f"http://gateway/renewed/{prefix}")
    config = json.loads(content)["config"]
    is_known = end == "1795632023545"
    assert (config.get(SESSION_END) == end) == is_known
    assert ("client.refresh-credentials-endpoint" in config) == is_known


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (S3_KEY | {"s3.endpoint": "https://elsewhere.example/"}, ELSEWHERE),
        (S3_KEY, KEYS),
        (S3_KEY, ELSEWHERE | {"s3.sse.key": "theirs"}),
        ({"s3.sse.type": "kms", "s3.sse.key": "arn:aws:kms:key"}, ELSEWHERE),
    ],
)
def test_files_keep_their_keys_where_the_record_or_the_catalog_sends_its_own(
    record: dict[str, str], said: dict[str, str]
) -> None:
    config = json.loads(RestAnswers({"uri": "http://catalog"} | record).harmless(_json({"config": said})))[
        "config"
    ]
    assert {name: config[name] for name in said} == said
    assert config.get("s3.sse.key") == said.get("s3.sse.key")
