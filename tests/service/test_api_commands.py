"""The commands that call the API, against the service itself."""

import json
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from typer.testing import CliRunner, Result

from service.command.main import app
from service.command.operations import load_document, operations
from service.confirmations import may_ask
from service.db.database import new_id
from service.records.tables import EnrolledTable, add_table
from service.settings import Settings
from service.webhooks.signing import new_secret
from tests.service.conftest import ADMIN_KEY, Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.thorough import first_always

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"])
Call = Callable[..., Result]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    known = {"erasure_secret": SecretStr("e" * 32), "receipt_secret": SecretStr(new_secret())}
    return settings.model_copy(update=known)


@pytest.fixture
def call(service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command against a service that knows the catalog `local`."""
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("COLUMNS", "200")
    service.register(iceberg)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return run


def answer(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def enroll(call: Call) -> Any:
    identifier = ("--identifier", "db", "--identifier", "t")
    return answer(call("tables", "enroll", "--catalog", "local", *identifier, "-o", "json"))


def test_every_call_but_those_of_programs_is_a_command(call: Call) -> None:
    known = list(operations(load_document()))
    calls = [one["operationId"] for methods in load_document()["paths"].values() for one in methods.values()]
    of_workers = {"register_worker", "claim_job", "report_heartbeat", "reserve_addresses", "finish_attempt"}
    of_events = {"notify_by_event", "notify_signed"}
    assert {one.id for one in known} == set(calls) - of_workers - of_events
    assert len({(one.group, one.name) for one in known}) == len(known)
    for one in known:
        shown = call(one.group, one.name, "--help")
        assert shown.exit_code == 0, shown.output
        for field in one.fields:
            name = field.shown_name
            assert (name.upper() if field.place == "path" else f"--{name.replace('_', '-')}") in shown.output
            assert all(one in shown.output for one in re.findall(r"\[[a-z]+\]", field.description))


def test_a_table_is_enrolled_changed_and_removed_by_its_name(call: Call, service: Running) -> None:
    table = enroll(call)
    listed = call("tables", "list", "--search", "db.t")
    assert listed.exit_code == 0
    assert "local.db.t" in listed.stdout
    assert table["id"] in call("tables", "list", "-o", "wide").stdout
    keys = call("tables", "update", "local/db.t", "--key-sets", '[["id"]]', "-o", "json")
    assert answer(keys)["key_sets"] == [["id"]]
    wrong = call("tables", "update", "local/db.t", "--key-sets", '[["no"]]')
    assert wrong.exit_code == 1
    assert "The table has: id, region." in " ".join(wrong.stderr.split())
    job = answer(call("jobs", "request", "db.t", "--kind", "convert", "--dry-run", "-o", "json"))
    assert (job["kind"], job["dry_run"]) == ("convert", True)
    assert call("jobs", "cancel", job["id"]).exit_code == 0
    ended = call("jobs", "wait", job["id"])
    assert ended.exit_code == 1
    assert "cancelled" in ended.stdout
    assert call("tables", "delete", "db.t", "--yes").exit_code == 0
    assert "No table is named [b]x." in call("tables", "get", "[b]x").stderr, "brackets are no markup"
    gone = call("tables", "get", "db.t")
    assert gone.exit_code == 1
    assert "No table is named db.t." in gone.stderr


def test_where_there_is_one_catalog_a_table_is_enrolled_without_it(call: Call) -> None:
    assert answer(call("tables", "enroll", "db.t", "-o", "json"))["identifier"] == ["db", "t"]
    assert answer(call("tables", "get", "db.t", "-o", "json"))["catalog"] == "local"


@pytest.mark.parametrize("name", [(), ("db.t",), ("db", "t"), ('["db", "t"]',)])
def test_a_table_is_enrolled_by_its_name_with_dots_or_in_parts(call: Call, name: tuple[str, ...]) -> None:
    given = [word for part in name for word in ("--identifier", part)]
    named = ("--catalog", "local", *given) if name else ("local.db.t",)
    table = answer(call("tables", "enroll", *named, "-o", "json"))
    assert table["identifier"] == ["db", "t"]
    assert "local.db.t " in call("discovery", "find-candidates", "local", "--all-tables").stdout
    found = answer(call("discovery", "find-candidates", "local", "--all-tables", "-o", "json"))
    assert [one["identifier"] for one in found["items"]] == [["db", "t"]]


def test_candidates_of_many_pages_begin_with_those_whose_readers_pay_most(
    call: Call, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(25):
        iceberg.create(f"db.a{number:02}")
    iceberg.delete_keys("db.t", [1])
    listed = call("discovery", "find-candidates", "local", "--all-tables", "-o", "json")
    costs = [one["read_overhead_seconds"] for one in answer(listed)["items"]]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] == 0
    assert "Looked into" not in listed.stderr
    dearest = ("discovery", "find-candidates", "local", "--limit", "1", "-o", "json")
    assert [one["name"] for one in answer(call(*dearest))["items"]] == ["db.t"]
    # A catalog that takes more than one ranking.
    monkeypatch.setattr("service.discovery.candidates._RANKING_SECONDS", 0)
    monkeypatch.setattr("service.command.calls._CANDIDATES", 1)
    found = call(*dearest)
    assert [one["name"] for one in answer(found)["items"]] == ["db.t"]
    assert "Looked into 20 of 26 tables ..." in found.stderr


@first_always("name", ["db.t", "local.db.t", "local/db.t"])
def test_every_call_takes_a_tables_name_wherever_it_takes_its_id(call: Call, name: str) -> None:
    table = enroll(call)
    known = [one for one in operations(load_document()) if any(f.name == "table_id" for f in one.fields)]
    assert len(known) > 10
    assert answer(call("tables", "get", name, "-o", "json"))["id"] == table["id"]
    for one in known:
        if one.is_stream or one.method != "GET":
            continue
        place = next(field.place for field in one.fields if field.name == "table_id")
        if any(field.place == "path" and field.name != "table_id" for field in one.fields):
            continue  # of a webhook, which there is none of
        told = call(one.group, one.name, *(["--table"] if place == "query" else []), name)
        assert "is named" not in told.stderr, told.output
        assert told.exit_code == 0 or one.group == "health", told.output
    standard = ("--level", "table", "--policy", "standard")
    assert call("policies", "attach", "--table", name, *standard).exit_code == 0


def test_a_name_that_several_tables_have_is_told_with_their_ids(
    call: Call, service: Running, iceberg: IcebergCatalog
) -> None:
    one = enroll(call)
    wrong = {"name": "second", "type": "sql", "properties": iceberg.properties}
    assert service.admin.post("/catalogs", json=wrong).status_code == 201
    elsewhere = call("tables", "enroll", "--catalog", "second", "--identifier", "db.t")
    assert "as the catalog spells them" in elsewhere.stderr
    properties = {**iceberg.properties, "catalog_name": "local"}
    assert call("catalogs", "update", "second", "--properties", json.dumps(properties)).exit_code == 0
    assert call("tables", "enroll", "--catalog", "second", "--identifier", "db.t").exit_code == 0
    several = call("tables", "get", "db.t")
    assert several.exit_code == 1
    words = " ".join(several.stderr.split())
    assert "2 tables are named db.t." in words
    assert f"{one['id']} is db.t of catalog local on branch main" in words
    assert answer(call("tables", "get", "second.db.t", "-o", "json"))["catalog"] == "second"


def test_the_catalog_of_a_name_is_the_longest_that_there_is(
    call: Call, service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"name": "local.db", "type": "sql", "properties": iceberg.properties}
    assert service.admin.post("/catalogs", json=other).status_code == 201
    wrong = call("tables", "enroll", "local.db.x.t")
    assert "local.db" in wrong.stderr
    nowhere = call("tables", "enroll", "elsewhere.db.t")
    assert nowhere.exit_code == 1
    assert "No catalog's name begins elsewhere.db.t; there are: local, local.db." in nowhere.stderr
    assert "Write it first, as local.elsewhere.db.t." in nowhere.stderr
    assert call("tables", "enroll").exit_code == 2
    twice = call("tables", "enroll", "local.db.t", "--identifier", "db.t")
    assert (twice.exit_code, "Name the table once" in twice.stderr) == (2, True)
    asked = {"name": "enrols", "role": "operator", "scopes": ["tables:write"]}
    key = service.admin.post("/api-keys", json=asked).json()["key"]
    with monkeypatch.context() as narrow:
        narrow.setenv("ICESTREAM_API_KEY", key)
        assert answer(call("tables", "enroll", "local.db.t", "-o", "json"))["identifier"] == ["db", "t"]
    again = call("tables", "enroll", "db.t", "--catalog", "local")
    assert "of db.t is enrolled as" in " ".join(again.stderr.split())


def test_a_job_goes_by_its_table_if_it_is_the_newest(call: Call) -> None:
    enroll(call)
    assert "db.t has no job." in call("jobs", "get", "db.t").stderr
    for kind in ("index", "convert"):
        newest = answer(call("jobs", "request", "local.db.t", "--kind", kind, "-o", "json"))
    assert answer(call("jobs", "get", "local.db.t", "-o", "json"))["id"] == newest["id"]
    assert call("jobs", "cancel", "local.db.t").exit_code == 0
    waited = call("jobs", "wait", "local.db.t", "-o", "json")
    assert (waited.exit_code, json.loads(waited.stdout)["id"]) == (1, newest["id"])


def test_nothing_that_is_there_goes_without_a_yes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    enroll(call)
    asking = [one for one in operations(load_document()) if one.method == "DELETE" or may_ask(one.id)]
    assert all("--yes" in call(one.group, one.name, "--help").output for one in asking)
    unasked = call("tables", "delete", "local.db.t")
    assert unasked.exit_code == 2
    assert "say so with --yes" in " ".join(unasked.stderr.split())
    no_such = call("tables", "delete", "local.db.x")
    assert (no_such.exit_code, "is named local.db.x" in no_such.stderr) == (1, True)
    keys = ("--keys", '[{"id": 1}]', "--key-columns", "id")
    assert call("rows", "delete", "local.db.t", *keys).exit_code == 2
    assert call("rows", "delete", "local.db.t", *keys, "--dry-run").exit_code == 0
    # On a terminal, whoever is there is asked.
    for typed, is_there in (("n\n", True), ("\n", True), ("y\n", False)):
        terminal = StringIO(typed)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(SystemExit) as ended:
            app(["tables", "delete", "local.db.t"])
        assert ended.value.code == int(is_there)
        assert (call("tables", "get", "local.db.t").exit_code == 0) == is_there


def test_what_the_pages_ask_about_is_done_by_no_script_unasked(call: Call, service: Running) -> None:
    call("tables", "update", enroll(call)["id"], "--policy", "manual")
    service.admin.post("/api-keys", json={"name": "worker", "role": "worker"}).raise_for_status()
    here = ("--level", "namespace", "--catalog", "local", "--namespace", "db", "--policy", "manual")
    assert call("policies", "attach", *here).exit_code == 0, "nothing was there"
    assert call("policies", "attach", *here).exit_code == 0, "it is there already"
    for command in (
        "jobs request local.db.t --kind expire_snapshots",
        'jobs request local.db.t --kind publish --parameters {"skip":1}',
        'jobs request local.db.t --kind remove_orphan_files --parameters {"dry_run_job_id":"1"}',
        "catalogs pause local",
        "jobs pause-system",
        "auth rotate-api-key worker --grace-seconds 0",
        "policies attach --level system --policy manual",
        "policies attach --level table --table local.db.t --policy standard",
        "policies attach --level namespace --catalog local --namespace db --policy standard",
        "erasures create --tables db.t --keys []",
    ):
        unasked = call(*command.split())
        assert unasked.exit_code == 2, unasked.output
        assert "say so with --yes" in " ".join(unasked.stderr.split()), unasked.output
    assert service.admin.get("/jobs").json()["items"] == []
    for dry_run, done in ((True, 0), (False, 2)):
        made = ("jobs", "request", "db.t", "--kind", "expire_snapshots", "--yes", "-o", "json")
        job = answer(call(*made, *(["--dry-run"] if dry_run else [])))["id"]
        assert call("jobs", "cancel", job).exit_code == 0
        assert call("jobs", "retry", job).exit_code == done


def test_a_question_names_what_would_be_gone(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("tables", "update", enroll(call)["id"], "--policy", "manual")

    def asked(*arguments: str) -> str:
        told = StringIO()
        terminal = StringIO("n\n")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr("service.command.calls._err", Console(file=told, width=400))
        with pytest.raises(SystemExit):
            app(arguments)
        return told.getvalue()

    keys = ("--keys", '[{"id": 1}, {"id": 2}]')
    assert "2 keys, from 1 table: local.db.t." in asked("erasures", "create", "--pattern", "d*", *keys)
    assert "files of its index" in asked("tables", "delete", "db.t", "--drop-index")
    assert "files of its index" not in asked("tables", "delete", "db.t")
    assert "2 keys.\n" in asked("rows", "delete", "db.t", *keys)
    attach = ("policies", "attach", "--level", "table", "--table", "db.t", "--policy")
    assert "manual is attached there. The policy" in asked(*attach, "")


def test_a_pattern_goes_by_what_it_matches(call: Call) -> None:
    made = answer(call("discovery", "create-pattern", "--catalog", "local", "--pattern", "x.*", "-o", "json"))
    for name in ("x.*", "local.x.*", made["id"]):
        assert answer(call("discovery", "get-pattern", name, "-o", "json"))["id"] == made["id"]
    assert call("discovery", "update-pattern", "local.x.*", "--paused").exit_code == 0
    assert call("discovery", "delete-pattern", "x.*", "--yes").exit_code == 0
    assert "No pattern is named x.*." in call("discovery", "get-pattern", "x.*").stderr


def test_a_sender_goes_by_its_name(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_FLINK", new_secret())
    signs = ("--catalog", "local", "--secret", "env:WEBHOOK_FLINK")
    assert call("notifications", "create-sender", "--name", "flink", *signs).exit_code == 0
    assert call("notifications", "delete-sender", "flink", "--yes").exit_code == 0
    assert "No sender is named flink." in call("notifications", "delete-sender", "flink", "--yes").stderr
    assert "--output" not in call("jobs", "follow-events", "--help").output, "it is lines of JSON"


def test_an_empty_word_is_none_where_there_may_be_none(call: Call) -> None:
    enroll(call)
    assert answer(call("tables", "update", "db.t", "--policy", "manual", "-o", "json"))["policy"] == "manual"
    assert answer(call("tables", "update", "db.t", "--policy", "", "-o", "json"))["policy"] is None


def completed(typed: str) -> list[str]:
    """What a shell offers in place of the last word."""
    shell = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    asked = {"_ICESTREAM_COMPLETE": "complete_bash", **shell}
    return CliRunner().invoke(app, [], prog_name="icestream", env=asked).output.split()


def test_shells_complete_names_that_the_service_knows(
    call: Call, service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_FLINK", new_secret())
    for name in ("db.$(reboot)", "db.`x`", "db.a b"):
        iceberg.create(name)
        service.enroll(name)
    table = enroll(call)

    assert completed("icestream tables get lo") == ["local.db.t"]
    assert completed("icestream tables get local.db.") == ["local.db.t"]
    assert completed("icestream jobs wait local.") == ["local.db.t"]
    assert completed("icestream tables get db.") == ["db.t"]
    assert completed("icestream tables list --catalog l") == ["local"]
    assert completed("icestream accept --catalog l") == ["local"]
    assert completed("icestream policies get st") == ["standard"]
    signed = {"name": "flink", "catalog": "local", "secret": "env:WEBHOOK_FLINK"}
    service.admin.post("/notification-senders", json=signed).raise_for_status()
    assert completed("icestream notifications delete-sender ") == ["flink"], "as it is taken"
    service.admin.post("/patterns", json={"catalog": "local", "pattern": "x.y"}).raise_for_status()
    assert completed("icestream discovery get-pattern x") == []
    with service.database.write() as session:
        row = session.get_one(EnrolledTable, table["id"]).model_dump()
        for number in range(130):
            identifier = ["a", f"t{number:03}"]
            other = {"id": new_id(), "name": ".".join(identifier), "identifier": identifier}
            add_table(session, EnrolledTable(**row | other | {"namespace": "a", "table_uuid": new_id()}))
        add_table(session, EnrolledTable(**row | {"id": new_id(), "name": "z.x", "identifier": ["z", "x"]}))
    assert completed("icestream tables get local.z.") == ["local.z.x"]
    assert completed("icestream tables get local.a.t12") == [f"local.a.t12{end}" for end in range(10)]
    ends = completed("icestream tables get local.a.t")
    assert {"local.a.t000", "local.a.t129"} < set(ends), "a shell fills in what all have in common"


def test_shells_complete_tables_that_can_be_enrolled(
    call: Call, service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shop.orders", "shop.items", "shop.$(reboot)", "logs.clicks"):
        iceberg.create(name)
    enroll(call)
    service.enroll("shop.items")
    listed: list[object] = []
    tables = SqlCatalog.list_tables

    def list_tables(catalog: SqlCatalog, namespace: Any) -> Any:
        listed.append(namespace)
        return tables(catalog, namespace)

    monkeypatch.setattr(SqlCatalog, "list_tables", list_tables)

    def offered(typed: str) -> list[str]:
        return completed(f"icestream tables enroll {typed}")

    assert offered("local.shop.") == ["local.shop.orders"]
    assert listed == [("shop",)], "of what can't be meant, nothing is asked"
    assert offered("loc") == ["local.logs.clicks", "local.shop.orders"]
    assert offered("local.shop.$(") == offered("remote.") == []
    other = {"name": "local2", "type": "sql", "properties": iceberg.properties | {"catalog_name": "local"}}
    service.admin.post("/catalogs", json=other).raise_for_status()
    assert offered("") == ["local.", "local2."]
    # A catalog that the line names needs no other, and its tables don't have it before them.
    assert offered("--catalog local shop.") == ["shop.orders"]
    assert offered("--catalog local ") == ["logs.clicks", "shop.orders"]
    assert offered("--catalog none ") == []
    service.enroll("logs.clicks", catalog="local2")
    listed_jobs = "icestream jobs list --catalog {} --table "
    assert completed(listed_jobs.format("local2")) == ["local2.logs.clicks"]
    assert "local.db.t" in completed(listed_jobs.format("local"))
    service.start_worker()
    assert completed("icestream jobs list --worker w") == ["w1"]


def test_a_job_is_waited_for(call: Call, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    job = answer(call("jobs", "request", enroll(call)["id"], "--kind", "index", "-o", "json"))
    assignment = service.claim(service.start_worker())
    assert assignment is not None

    def finish(_: float) -> None:
        service.finish(assignment, result={"rows_deleted": 3})

    monkeypatch.setattr("service.command.calls.time", SimpleNamespace(sleep=finish))
    waited = call("jobs", "wait", job["id"], "-o", "json")
    assert answer(waited)["result"] == {"rows_deleted": 3}
    assert "running" in waited.stderr


def test_the_last_words_about_a_job_say_what_it_did_not_do(call: Call, service: Running) -> None:
    job = answer(call("jobs", "request", enroll(call)["id"], "--kind", "convert", "-o", "json"))
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    staying = {"file_path": "d.parquet", "reason": "floating", "remedy": "Change the key."}
    service.finish(assignment, result={"unconvertible": [staying]})
    waited = call("jobs", "wait", job["id"])
    assert waited.exit_code == 0
    last = waited.output.splitlines()[-1]
    assert last == "1 equality delete file cannot be converted: floating (d.parquet) Change the key."


def test_lists_say_why_and_leave_out_ids_of_what_they_name(
    call: Call, service: Running, iceberg: IcebergCatalog
) -> None:
    table = enroll(call)
    Path(iceberg.catalog.load_table("db.t").metadata_location.removeprefix("file://")).unlink()
    service.poll(table["id"])
    listed = call("tables", "list", "--status", "unknown")
    assert "metadata.json" in listed.stdout
    assert table["table_uuid"] not in listed.stdout
    assert table["catalog_id"] not in listed.stdout
    assert table["table_uuid"] in call("tables", "list", "-o", "json").stdout
    job = answer(call("jobs", "request", table["id"], "--kind", "index", "-o", "json"))
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    cause = {"code": "x", "title": "No", "detail": "The store said \x1b[31mno.", "remedy": "Ask again."}
    service.finish(assignment, status="failed", error=cause | {"retryable": False})
    failed = call("jobs", "list", "--status", "failed").stdout
    assert job["id"] in failed
    assert "The store said \N{REPLACEMENT CHARACTER}[31mno. Ask again." in failed
    assert table["id"] not in failed


def test_in_a_pipe_no_word_is_cut(call: Call) -> None:
    name = "n" * 190
    assert call("auth", "create-api-key", "--name", name, "--role", "viewer").exit_code == 0
    listed = call("auth", "list-api-keys").stdout
    assert name in listed
    assert max(map(len, listed.splitlines())) > 200


def test_lists_go_on_to_the_limit_that_is_asked_for(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        name = f"key{number}"
        assert call("auth", "create-api-key", "--name", name, "--role", "viewer").exit_code == 0
    found = answer(call("auth", "list-api-keys", "--search", "key", "--limit", "2", "-o", "json"))
    assert len(found["items"]) == 2
    assert found["next_cursor"]
    more = call("auth", "list-api-keys", "--limit", "2").stderr
    assert re.fullmatch(r"2 of (\d+) are shown: --limit tells how many\.\n", more)
    assert len(answer(call("auth", "list-api-keys", "--search", "key", "-o", "json"))["items"]) == 3
    several = call("auth", "revoke-api-key", "key1", "--yes")
    assert several.exit_code == 0, several.output
    assert "No API key is named key." in call("auth", "revoke-api-key", "key").stderr


def test_events_are_followed_until_somebody_interrupts(call: Call, service: Running) -> None:
    table = enroll(call)
    # A shell lets what it starts in the background ignore the signal.
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    begin = f"{heeded}; from service.command.main import main; main()"
    command = [sys.executable, "-c", begin, "jobs", "follow-events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        while not select.select([follower.stdout], [], [], 0.1)[0]:
            # Until it has connected, nobody hears of them.
            job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).json()
            service.admin.post(f"/jobs/{job['id']}/cancel").raise_for_status()
        line = json.loads(follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        follower.stdout.read()  # Else it may write what follows to a pipe that is closed.
    assert line["table_id"] == table["id"]
    assert follower.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("catalogs", "get", "nowhere"), "No such catalog\nThere is no catalog"),
        (("policies", "create", "--name", "p", "--settings", "{"), "--settings is not JSON"),
        (("policies", "create", "--name", "p", "--settings", "@nothing"), "--settings is not JSON"),
        (("policies", "create", "--name", "p", "--settings", '{"convert": {"files": -1}}'), "files"),
        (("jobs", "list", "--status", "odd"), "odd"),
    ],
)
def test_what_the_service_refuses_is_told(arguments: tuple[str, ...], words: str, call: Call) -> None:
    refused = call(*arguments)
    assert refused.exit_code in (1, 2)
    assert words in refused.stderr
    assert "Traceback" not in refused.output


def test_each_mistake_is_told_once_in_words(call: Call) -> None:
    refused = call("tables", "enroll", "--catalog", "local", "--identifier", "t").stderr
    assert refused.count("identifier: This takes at least 2 entries.") == 1
    assert not re.search(r"[{}]|body\.|List should|/docs|\(4\d\d\)", refused)
    assert refused.endswith("--help tells what there is.\n")
    enroll(call)
    no_dry_run = call("jobs", "request", "db.t", "--kind", "index", "--dry-run").stderr
    assert no_dry_run.count("leave dry_run out") == 1
    assert "{" not in no_dry_run


def test_who_cannot_ask_is_told_what_is_missing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_API_KEY", "a-wrong-key")
    assert call("tables", "list").stderr.startswith("This API key is not valid\n")
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:1")
    assert "ICESTREAM_URL says where it is" in call("tables", "list").stderr
    monkeypatch.delenv("ICESTREAM_API_KEY")
    told = call("tables", "list").stderr
    assert "ICESTREAM_API_KEY is not set" in told
    assert "ICESTREAM_BOOTSTRAP_KEY" in told
