"""Who asks AWS is the same whatever library asks: an identity of the machine, or a role of a record."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import ClientError

from service.catalogs.clients import open_catalog
from service.records.catalogs import CatalogType
from service.settings import Settings
from stores.aws import CredentialsError, Identity, Keys
from tests.aws import KINDS, ROLE, SHOWN, Aws, aws, environment, vended
from tests.patience import PATIENCE_SECONDS
from trust.locations import LocationNotAllowedError
from trust.rest_answers import SESSION_END
from worker.io.storage import ALLOWED_LOCATIONS, PLACES, DryStorage, Storage
from worker.jobs.foreign_errors import meaning_of
from worker.process.errors import StorageError


@pytest.fixture
def server() -> Iterator[Aws]:
    with aws() as server:
        server.files["lake/a"] = b"content"
        yield server


def become(*kinds: str, server: Aws, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has these identities."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for kind in ("none", *kinds):
        for name, value in environment(kind, server, directory).items():
            monkeypatch.setenv(name, value)


def record(server: Aws, **further: str) -> dict[str, str]:
    return {"s3.endpoint": server.url, "s3.region": "eu-central-1", **further}


def by_arrow(server: Aws, further: dict[str, str]) -> None:
    """As the service reads, and a worker writes large files."""
    filesystem, path = Storage(record(server) | further).resolve("s3://lake/a")
    assert filesystem.open_input_file(path).read() == b"content"


def by_obstore(server: Aws, further: dict[str, str]) -> None:
    """As a worker reads, and an index is committed."""
    assert Storage(record(server) | further).read("s3://lake/a") == b"content"
    assert Storage(record(server) | further).create("s3://lake/b", b"new")


def by_glue(server: Aws, further: dict[str, str]) -> None:
    settings = Settings(_env_file=None, allowed_hosts=("127.0.0.0/8",))
    given = {"glue.endpoint": server.url, "glue.region": "eu-central-1", "glue.max-retries": "1"}
    catalog: Any = open_catalog(settings, CatalogType.GLUE, "c", given | further)
    server.used.append(catalog.glue._get_credentials().access_key)


READERS = (by_arrow, by_obstore, by_glue)


@pytest.mark.parametrize("kind", KINDS)
def test_each_identity_of_a_machine_is_found_whatever_asks(
    kind: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(kind, server=server, directory=tmp_path, monkeypatch=monkeypatch)
    for ask in READERS:
        server.used.clear()
        ask(server, {})
        assert server.used[-1].startswith(SHOWN[kind]), (ask.__name__, server.used)
    assert server.refused == []
    # One of them asked for all.
    assert len(server.given) <= 1


def test_a_task_asks_as_the_machine_that_it_runs_on(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sends it as a pickle; its machine is a process here."""
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    (tmp_path / "task").write_bytes(pickle.dumps(Storage(record(server))))
    become("web identity", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    # It ends as Spark's own do: Python's way out waits for no thread of obstore's, and may abort in one.
    program = (
        "import os, pickle, sys\n"
        "print(pickle.load(open(sys.argv[1], 'rb')).read('s3://lake/a'), flush=True)\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "task")]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"b'content'\n"
    assert server.used[-1].startswith(SHOWN["web identity"])


@pytest.mark.parametrize("first", [kind for kind in KINDS if kind != "profile with a role"])
def test_identities_are_tried_in_one_order(
    first: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for profile in ("profile", "profile with a role"):
        order = [kind for kind in KINDS if not kind.startswith("profile") or kind == profile]
        if first in order:
            kinds = order[order.index(first) :]
            become(*kinds, server=server, directory=tmp_path, monkeypatch=monkeypatch)
            by_arrow(server, {})
            assert server.used[-1].startswith(SHOWN[first])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if SHOWN[kind].endswith("-")])
def test_what_ends_is_renewed(
    kind: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(kind, server=server, directory=tmp_path, monkeypatch=monkeypatch)
    server.lifetime = timedelta(minutes=5)
    storage = Storage(record(server))
    for round_ in range(3):
        assert storage.read("s3://lake/a") == b"content"
        assert storage.create(f"s3://lake/{round_}", b"new")
        server.over()
        # Of an instance's, botocore takes that for longer.
        monkeypatch.setattr(RefreshableCredentials, "_seconds_remaining", lambda _: 300)
    assert server.refused == []
    assert len(set(server.used)) >= 3


def test_keys_in_a_file_that_was_written_anew_are_used(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("profile", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    monkeypatch.setattr("stores.aws._KEPT_SECONDS", 0.0)
    storage = Storage(record(server))
    storage.read("s3://lake/a")
    file = tmp_path / "credentials"
    file.write_text(file.read_text().replace("= profile", "= another"))
    storage.read("s3://lake/a")
    assert (server.used[0], server.used[-1]) == ("profile", "another")


def test_what_could_not_be_renewed_is_looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys by which a role is assumed may be others by now."""

    def refused() -> None:
        raise ClientError({"Error": {"Code": "InvalidClientTokenId"}}, "AssumeRole")

    found = [SimpleNamespace(get_frozen_credentials=refused), Credentials("new", "key")]
    monkeypatch.setattr("stores.aws._look_for", lambda identity: found.pop(0))
    identity = Identity(role=f"{ROLE}/renewed")
    with pytest.raises(CredentialsError, match="InvalidClientTokenId"):
        identity.keys()
    assert identity.keys() == Keys("new", "key")


ROLES = {
    "PyIceberg's": ({"client.role-arn": f"{ROLE}/of-record"}, "role-of-record-"),
    "of S3 alone": (
        {"client.role-arn": f"{ROLE}/of-catalog", "s3.role-arn": f"{ROLE}/of-store"},
        "role-of-store-",
    ),
    "Java's": (
        {"client.assume-role.arn": f"{ROLE}/guarded", "client.assume-role.external-id": "external"},
        "role-guarded-",
    ),
}


@pytest.mark.parametrize("how", ROLES)
def test_the_identity_of_the_machine_assumes_the_role_of_a_record(
    how: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("web identity", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    given, shown = ROLES[how]
    for ask in (by_arrow, by_obstore):
        ask(server, given)
        assert server.used[-1].startswith(shown)
        assert server.asked_by[server.used[-1]].startswith("web-irsa-")
    assert len(server.asked_by) == 1
    by_glue(server, given)
    assert server.used[-1].startswith("role-")


def test_keys_for_a_catalog_alone_go_beside_a_role_for_s3_alone(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    keys = {"rest.access-key-id": "of-catalog", "rest.secret-access-key": "secret"}
    with pytest.raises(CredentialsError, match=r"keys and a role\.") as caught:
        Identity.of(keys | {"client.role-arn": f"{ROLE}/of-store"}, "rest").keys()
    assert "is `s3.role-arn`" in caught.value.remedy
    given = keys | {"s3.role-arn": f"{ROLE}/of-store"}
    assert Identity.of(given, "rest").keys() == Keys("of-catalog", "secret")
    by_arrow(server, given)
    assert server.used[-1].startswith("role-of-store-")


def test_nothing_is_asked_for_without_an_identity_unless_a_record_says_so(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("none", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    for ask in (by_arrow, by_obstore, by_glue):
        with pytest.raises(CredentialsError, match="no credentials of AWS here") as caught:
            ask(server, {})
        told = meaning_of(caught.value)
        assert told is not None
        assert (told.code, told.retryable) == ("storage_error", True)
        assert "AWS_ACCESS_KEY_ID, a web identity, a profile" in told.remedy
    assert server.used == []
    by_arrow(server, {"s3.anonymous": "true"})
    by_obstore(server, {"s3.anonymous": "true"})
    assert set(server.used) == {""}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client.role-arn": f"{ROLE}/guarded"}, "could not be had: ClientError: .*AccessDenied.*AssumeRole"),
        ({"client.profile-name": "nobody"}, r"could not be had: ProfileNotFound: .*nobody"),
        (
            {"client.role-arn": f"{ROLE}/x", "s3.access-key-id": "a", "s3.secret-access-key": "b"},
            "has keys and a role. Take one of them out",
        ),
    ],
)
def test_what_gives_no_credentials_is_told(
    given: dict[str, str], words: str, server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    with pytest.raises(CredentialsError, match=words):
        by_arrow(server, given)
    assert server.used == []


def test_what_a_catalog_vends_is_had_anew_in_time(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    clock = time.time()
    asked: list[float] = []

    def fail() -> dict[str, str]:
        asked.append(clock)
        raise StorageError("away")

    monkeypatch.setattr("worker.io.storage.time", SimpleNamespace(time=lambda: clock))

    def renewed() -> dict[str, str]:
        return record(server) | vended(server)

    storage = Storage(renewed(), renew=renewed)
    before = hash(storage)
    assert storage.read("s3://lake/a") == storage.read("s3://lake/a")
    assert server.given == ["vended-1"]
    clock += 1801
    # A task that begins now has what is good for longer, as has all that is opened from now on.
    task: Storage = pickle.loads(pickle.dumps(storage))
    dry = DryStorage(storage)
    assert server.given == ["vended-1", "vended-2"]
    server.ends["vended-1"] -= timedelta(hours=2)
    for one in (task, dry, storage):
        assert one.read("s3://lake/a") == b"content"
        assert one.create(f"s3://lake/{id(one)}", b"new")
    assert (server.used[-1], server.refused, hash(storage)) == ("vended-2", [], before)
    # A catalog that is away then is asked again, until the session is over.
    away = Storage(record(server) | vended(server), renew=fail)
    for seconds in (901, 1, 9):
        clock += seconds
        away.read("s3://lake/a")
    assert len(asked) == 2
    clock += 100_000
    with pytest.raises(StorageError, match="away"):
        away.read("s3://lake/a")
    # Without its end, nobody knows when.
    endless = {name: value for name, value in vended(server).items() if "expires" not in name}
    Storage(record(server) | endless, renew=renewed).read("s3://lake/a")
    assert server.given == [f"vended-{number}" for number in range(1, 5)]


def test_a_session_whose_end_is_past_is_asked_for_from_time_to_time(
    server: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog that tells what is not so, or a worker whose clock is ahead."""
    clock = time.time()
    asked: list[float] = []

    def renewed() -> dict[str, str]:
        asked.append(clock)
        return record(server) | vended(server, told=timedelta(hours=-1))

    monkeypatch.setattr("worker.io.storage.time", SimpleNamespace(time=lambda: clock))
    storage = Storage(record(server) | vended(server, told=timedelta(hours=-1)), renew=renewed)
    for _ in range(3):
        for _ in range(5):
            assert storage.read("s3://lake/a") == b"content"
        clock += 11
    assert len(asked) == 3


def test_no_keys_of_the_machine_go_where_a_catalog_led_with_its_own(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint comes with keys, and then there are neither."""
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    limits = {ALLOWED_LOCATIONS: "s3://lake"}
    with aws() as elsewhere:
        led = record(elsewhere) | vended(elsewhere, told=timedelta(seconds=-1)) | limits
        without = {"s3.region": "eu-central-1"}
        assert Storage(led, renew=lambda: without).io.current()[0] == without | limits
        storage = Storage(led, renew=lambda: record(server))
        assert storage.create("s3://lake/b", b"new")
        assert (elsewhere.used, elsewhere.refused) == ([], [])
    assert set(server.used) == {"environment"}
    with pytest.raises(LocationNotAllowedError):
        storage.read("s3://pond/a")


def test_keys_go_with_the_endpoint_that_they_came_with(
    server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a catalog names one between the moment that they are looked for and that they are used."""
    become("environment", server=server, directory=tmp_path, monkeypatch=monkeypatch)
    with aws() as elsewhere:
        nameless = record(server) | {SESSION_END: str(round(time.time() * 1000) + 3_600_000)}
        storage = Storage(nameless, renew=lambda: record(elsewhere) | vended(elsewhere))
        found = Identity.keys

        def keys(identity: Identity) -> Keys:
            monkeypatch.setattr(storage.io, "_renew_at", 0.0)
            storage.io.current()
            return found(identity)

        monkeypatch.setattr(Identity, "keys", keys)
        assert storage.read("s3://lake/a") == b"content"
        storage = Storage(nameless, renew=lambda: record(elsewhere) | vended(elsewhere))
        assert storage.create("s3://lake/b", b"new")
        assert (elsewhere.used, elsewhere.refused) == ([], [])


def test_each_place_is_opened_with_what_was_vended_for_it(server: Aws) -> None:
    server.files["lake/table/a"] = server.files["lake/data/a"] = b"content"
    given: list[str] = []

    def renewed() -> dict[str, str]:
        table, data = (record(server) | vended(server) for _ in range(2))
        given[:] = [one["s3.access-key-id"] for one in (table, data)]
        places = {"s3://lake/": table, "s3://lake/data/": data}
        return table | {PLACES: json.dumps(places)}

    storage = Storage(renewed(), renewed)

    def keys_used() -> list[str]:
        server.used.clear()
        for place in ("table", "data"):
            task: Storage = pickle.loads(pickle.dumps(storage))
            for one in (storage, task):
                assert one.read(f"s3://lake/{place}/a") == b"content"
                assert one.create(f"s3://lake/{place}/{id(one)}", b"new")
                with one.io.new_input(f"s3://lake/{place}/a").open() as file:
                    assert file.read() == b"content"
        return list(dict.fromkeys(server.used))

    assert keys_used() == given == ["vended-1", "vended-2"]
    # The one that ends first is the one that counts.
    server.ends["vended-2"] -= timedelta(hours=2)
    places = {"s3://lake/data/": {SESSION_END: "1"}}
    storage = Storage(storage.properties | {PLACES: json.dumps(places)}, renewed)
    assert keys_used() == given == ["vended-3", "vended-4"]


def test_threads_that_begin_together_look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Identity] = []
    together = threading.Barrier(8)

    def look(identity: Identity) -> Credentials:
        looked.append(identity)
        time.sleep(0.05)
        return Credentials("key", "secret")

    def ask() -> None:
        together.wait(PATIENCE_SECONDS)
        assert identity.keys() == Keys("key", "secret")

    monkeypatch.setattr("stores.aws._look_for", look)
    identity = Identity(role=f"{ROLE}/looked-for")
    with ThreadPoolExecutor(8) as threads:
        for asked in [threads.submit(ask) for _ in range(8)]:
            asked.result()
    assert looked == [identity]
