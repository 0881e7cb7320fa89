"""The pages of policies, catalogs, API keys, the audit log and workers: what people do by their forms."""

import base64
import html
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import update
from standardwebhooks import Webhook as Signer

from service.auth.models import Scope
from service.db.database import utc_now
from service.records.api_keys import Role
from service.records.workers import Worker
from service.scheduling.models import PolicyReplay
from service.scheduling.replay import replay
from service.ui import formats
from service.ui import policies as policy_pages
from service.ui.policy_form import read_setting
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Page, Person
from tests.service.test_replay import history, store


def test_a_policy_is_made_changed_attached_detached_and_deleted_on_its_pages(
    service: Running, admin: Person
) -> None:
    admin.open("/policies/new")
    made = admin.send(
        "/policies/new",
        name="nightly",
        description="Converts at night",
        settings__convert__enabled="on",
        settings__convert__age_seconds="2 h",
        settings__convert__bytes="512 MB",
        settings__compact__dead_ratio="30%",
        settings__schedule__windows="sat, sun 22:00-06:00",
    )
    stored = service.admin.get("/policies/nightly").json()
    assert stored["settings"] == {
        "index": {},
        "convert": {"enabled": True, "age_seconds": 7200, "bytes": 512_000_000},
        "publish": {},
        "expire_snapshots": {},
        "rewrite_data_files": {},
        "rewrite_position_delete_files": {},
        "rewrite_manifests": {},
        "compact": {"dead_ratio": 0.3},
        "verify": {},
        "schedule": {"windows": [{"days": ["sat", "sun"], "start": "22:00", "end": "06:00"}]},
        "retries": {},
        "resources": {},
        "budget": {},
    }
    assert "At this age of the oldest 2 h" in made.text.replace("\N{NO-BREAK SPACE}", " ")

    changing = admin.follow("Change")
    filled = dict(changing.form("/edit").fields)
    assert filled["settings.convert.age_seconds"] == "2 h"
    assert filled["settings.convert.bytes"] == "512 MB"
    assert filled["settings.schedule.windows"] == "sat, sun 22:00-06:00"
    admin.send("/edit", name="nights", settings__convert__age_seconds="")
    stored = service.admin.get("/policies/nights").json()
    assert stored["settings"]["convert"] == {"enabled": True, "bytes": 512_000_000}

    attached = admin.send("/attach", {"namespace": ""}, catalog="local", namespace="db")
    assert "Namespace db of local" in attached.text
    assert "cannot be deleted" in attached.text
    assert "nights" in admin.open("/catalogs/local").text
    assert "namespace db of local" in admin.open("/policies").text
    admin.follow("nights")
    assert "Nowhere yet" in admin.send("/attach", {"detach": "yes"}).text
    admin.send("/delete")
    assert service.admin.get("/policies/nights").status_code == 404


def test_what_is_typed_into_a_policy_is_tried_on_a_table_before_it_is_saved(
    service: Running, iceberg: IcebergCatalog, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[PolicyReplay] = []

    def noted(*asked: Any) -> PolicyReplay:
        replayed.append(replay(*asked))
        return replayed[-1]

    monkeypatch.setattr(policy_pages, "replay", noted)
    iceberg.create("db.tried")
    table = service.enroll("db.tried")
    store(service.database, table["id"], history(30, utc_now() - timedelta(hours=6)))
    made = service.admin.post("/policies", json={"name": "p", "settings": {}}).json()
    edit = f"/policies/{made['id']}/edit"
    settings = {"settings.convert.age_seconds": "1 h", "settings.convert.delete_files": "1000"}
    alone = []
    for path in (edit, "/policies/new?like=standard"):
        assert "if the policy were attached to it" in admin.open(path).text, "it holds for no table"
        (action,) = re.findall(r'formaction="([^"]*/try)"', admin.page.html)
        fields = dict(admin.page.forms[-1].fields) | {"table": "db.tried"} | settings
        tried = Page(admin.http.post(action, data=fields))
        assert tried.status == 200, tried.text
        alone.append(tried.html.partition('id="tried-title"')[2].partition("</section>")[0])
    place = {"level": "table", "table_id": table["id"], "policy": "p"}
    service.admin.put("/policy-attachments", json=place).raise_for_status()
    page = admin.open(edit)
    fields = dict(page.form("/edit").fields)
    assert '<option value="local.db.tried">' in page.html
    typed = fields | {"table": "local.db.tried"} | settings
    tried = Page(admin.http.post(f"/policies/{made['id']}/try", data=typed))
    assert tried.status == 200
    assert "Jobs: convert 30 in" in tried.text.replace("\N{NO-BREAK SPACE}", " ")
    assert all("Jobs: convert" in one for one in alone)
    assert "A full read by Spark, on average" in tried.text
    rows = {
        head: re.findall(r"<td[^>]*>([^<]*)</td>", values)
        for head, values in re.findall(r'<td class="head">([^<]*)</td>(.*?)</tr>', tried.html)
    }
    outcomes = [replayed[-1].happened, replayed[-1].present, replayed[-1].edited]
    assert rows["Bytes written by jobs"] == [formats.size(one.bytes_written) for one in outcomes]
    assert rows["Vectors and position deletes written"] == [
        formats.count(one.delete_files_written) for one in outcomes
    ]
    assert rows["Those in the place of another"] == [
        formats.count(one.delete_files_rewritten) for one in outcomes
    ]
    for each in ("Bytes written by jobs", "Those in the place of another"):
        assert rows[each][0] != rows[each][2], "hourly conversions write other figures"
    assert "What jobs cost is told by those that ran: 30 index, 30 convert." in tried.text
    assert dict(tried.form("/edit").fields)["settings.convert.age_seconds"] == "1 h"
    drawn = [json.loads(told) for told in re.findall("data-plot='([^']*)'", tried.html)]
    assert [[line["name"] for line in one["lines"]] for one in drawn] == [
        ["Happened", "Present policy, replayed", "As typed below"]
    ] * 4
    pending = [max(line["values"]) for line in drawn[0]["lines"]]
    assert pending[:2] == [100, 100], "each commit is converted before the next one"
    assert pending[2] > 100
    assert "Lag: As typed below" in tried.text
    assert len(tried.html) <= 150_000
    assert service.admin.get("/policies/p").json() == made, "nothing is saved"
    unknown = Page(admin.http.post(f"/policies/{made['id']}/try", data=typed | {"table": "db.none"}))
    assert unknown.status == 404
    assert "There is no enrolled table 'db.none'." in unknown.text
    wrong = admin.http.post(
        f"/policies/{made['id']}/try", data=typed | {"settings.convert.age_seconds": "soon"}
    )
    assert wrong.status_code == 422
    assert "This takes a number" in wrong.text


def test_a_form_that_is_refused_keeps_what_was_typed_and_says_what_is_wrong_beside_the_field(
    admin: Person,
) -> None:
    admin.open("/policies/new")
    refused = admin.send(
        "/policies/new",
        name="bad name",
        settings__convert__age_seconds="soon",
        settings__schedule__time_zone="Mars/Olympus",
        settings__retries__backoff_seconds="1 h",
        settings__retries__max_backoff_seconds="1 min",
    )
    assert refused.status == 422
    filled = dict(refused.form("/policies/new").fields)
    assert filled["name"] == "bad name"
    assert filled["settings.convert.age_seconds"] == "soon"
    assert filled["settings.schedule.time_zone"] == "Mars/Olympus"
    for field, words in (
        ("name", "letters, digits, dots, hyphens and underscores"),
        ("settings.convert.age_seconds", "This takes a number"),
        ("settings.schedule.time_zone", "no IANA time zone"),
        ("settings.retries.backoff_seconds", "must not be larger than"),
    ):
        beside = refused.html.partition(f'id="{field}-wrong">')[2].partition("</p>")[0]
        assert words in beside, field
        assert f'id="{field}" name="{field}" aria-invalid="true"' in refused.html
    # By the names that the form has, and with what a person can do.
    assert "The request is not valid" in refused.text
    assert "At this age of the oldest: This takes a number." in refused.text
    assert "send the form again" in refused.text
    assert "/docs" not in refused.text


def test_limits_of_a_form_are_told_with_labels_units_and_whole_numbers(admin: Person) -> None:
    admin.open("/policies/new")
    refused = admin.send(
        "/policies/new",
        name="p",
        settings__verify__age_seconds="-1 s",
        settings__convert__bytes="-1 B",
        settings__convert__delete_files="-1",
        settings__schedule__windows="someday 22:00-06:00",
    )
    for words in (
        "Or this long after the last job: This must be 60 seconds or more.",
        "At this size of delete files: This must be 1 byte or more.",
        "At this many delete files: This must be 1 or more.",
        "Only within: This is one of 'mon'",
    ):
        assert words in refused.text


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("/jobs", {"kind": "convert", "priority": "high"}, "Priority: This takes a whole number."),
        ("/jobs", {"kind": "convert", "priority": "101"}, "Priority: This must be 100 or less."),
        ("/jobs", {"kind": "mend"}, "Kind: This is one of 'index', 'convert', 'publish'"),
        ("/jobs", {"kind": "index", "run_at": "soon"}, "Run at: This takes a date and a time"),
        ("/jobs", {}, "Kind: This is needed."),
    ],
)
def test_a_form_without_fields_of_its_own_is_refused_in_words_of_people(
    service: Running, admin: Person, path: str, data: dict[str, str], words: str
) -> None:
    table = service.admin.get("/tables?limit=1").json()["items"] or [service.enroll("db.t")]
    admin.open(f"/tables/{table[0]['id']}")
    token = dict(admin.page.forms[0].fields)["csrf_token"]
    answer = admin.http.post(f"/tables/{table[0]['id']}{path}", data={**data, "csrf_token": token})
    assert answer.status_code == 422
    assert words in html.unescape(answer.text)
    for of_programs in ("Input should", "Field required", "JSON", "/docs"):
        assert of_programs not in html.unescape(answer.text).partition("<main")[2]


def placeholders(admin: Person, path: str) -> dict[str, str]:
    """What fields of the policy editor show while they are empty, by setting."""
    page = admin.open(path).html
    found = re.findall(r'<input id="settings\.([a-z_.]+)"[^>]* placeholder="([^"]*)"', page)
    chosen = re.findall(r'<select id="settings\.([a-z_.]+)".*?<option value="" selected>([^<]*)<', page, re.S)
    return dict(found) | dict(chosen)


def test_an_empty_setting_shows_what_is_inherited_where_the_policy_holds(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    api = service.admin
    iceberg.create("levels.t")
    table = service.enroll("levels.t")["id"]
    for name, settings in (
        ("of-system", {"convert": {"age_seconds": 7200}}),
        ("of-catalog", {"convert": {"deletes": 123_456}, "index": {"enabled": False}}),
        ("of-namespace", {"retries": {"max_attempts": 9}}),
        ("of-table", {}),
        ("of-two", {}),
    ):
        assert api.post("/policies", json={"name": name, "settings": settings}).status_code == 201
    places: list[tuple[str, dict[str, Any]]] = [
        ("of-system", {"level": "system"}),
        ("of-catalog", {"level": "catalog", "catalog": "local"}),
        ("of-namespace", {"level": "namespace", "catalog": "local", "namespace": ["levels"]}),
        ("of-table", {"level": "table", "table_id": table}),
        ("of-two", {"level": "namespace", "catalog": "local", "namespace": ["elsewhere"]}),
    ]
    before = api.get("/policy-attachments").json()["items"]
    system = next(one["policy"] for one in before if one["level"] == "system")
    for policy, place in places:
        answer = api.put("/policy-attachments", json={**place, "policy": policy})
        assert answer.status_code in (200, 201), answer.text
    try:
        names = ("convert.age_seconds", "convert.deletes", "index.enabled", "retries.max_attempts")
        built_in = api.get("/policies/standard").json()["settings"]
        standard = {name: built_in[name.partition(".")[0]][name.partition(".")[2]] for name in names}

        def shown(policy: str) -> list[Any]:
            known = api.get(f"/policies/{policy}").json()["id"]
            empty = placeholders(admin, f"/policies/{known}/edit")
            return [read_setting(name, empty[name].removeprefix("inherited: ")) for name in names]

        assert shown("of-system") == list(standard.values())
        assert shown("of-catalog") == [
            7200,
            standard["convert.deletes"],
            True,
            standard["retries.max_attempts"],
        ]
        assert shown("of-namespace") == [7200, 123_456, False, standard["retries.max_attempts"]]
        assert shown("of-table") == [7200, 123_456, False, 9]
        # What is attached nowhere yet would hold below the whole system.
        assert placeholders(admin, "/policies/new")["convert.age_seconds"] == "2 h"
    finally:
        for _, place in places[1:]:
            api.put("/policy-attachments", json={**place, "policy": None})
        api.put("/policy-attachments", json={"level": "system", "policy": system})


def test_a_change_that_somebody_else_overtook_saves_nothing(service: Running, admin: Person) -> None:
    made = service.admin.post("/policies", json={"name": "shared", "settings": {}}).json()
    admin.open(f"/policies/{made['id']}/edit")
    service.admin.patch(
        f"/policies/{made['id']}", json={"description": "theirs"}, headers={"If-Match": "*"}
    ).raise_for_status()
    refused = admin.send("/edit", description="mine")
    assert refused.status == 412
    assert "It has been changed in the meantime" in refused.text
    assert "There now: theirs" in refused.text
    assert 'aria-describedby="description-there "' in refused.html
    assert dict(refused.form("/edit").fields)["description"] == "mine"
    assert service.admin.get("/policies/shared").json()["description"] == "theirs"
    # Who has seen what is there now may put the own in its place.
    admin.send("/edit")
    assert service.admin.get("/policies/shared").json()["description"] == "mine"


def made(service: Running, iceberg: IcebergCatalog, kind: str) -> tuple[str, dict[str, Any]]:
    """Something that can be deleted: its path, and a change that somebody else makes of it."""
    body: dict[str, Any]
    change: dict[str, Any]
    match kind:
        case "catalogs":
            body = {"name": "doomed", "type": "sql", "properties": iceberg.properties}
            change = {"max_running_jobs": 3}
        case "policies":
            body, change = {"name": "doomed", "settings": {}}, {"description": "theirs"}
        case "patterns":
            body, change = {"catalog": "local", "pattern": "doomed.*"}, {"pattern": "more.*"}
        case _:
            iceberg.create("db.doomed")
            body = {"catalog": "local", "identifier": ["db", "doomed"], "branch": "main"}
            change = {"policy": "manual"}
    answer = service.admin.post(f"/{kind}", json=body)
    assert answer.status_code == 201, answer.text
    return f"/{kind}/{answer.json()['id']}", change


@pytest.mark.parametrize("kind", ["catalogs", "policies", "patterns", "tables"])
def test_nothing_is_deleted_that_somebody_else_has_just_changed(
    service: Running, admin: Person, iceberg: IcebergCatalog, kind: str
) -> None:
    path, change = made(service, iceberg, kind)
    admin.open(path)
    service.admin.patch(path, json=change, headers={"If-Match": "*"}).raise_for_status()
    blind = admin.post(f"{path}/delete")
    refused = admin.send(f"{path}/delete")
    for page in (blind, refused):
        assert page.status == 412
        assert "It has been changed in the meantime" in page.text
    assert service.admin.get(path).status_code == 200
    admin.send(f"{path}/delete")
    assert service.admin.get(path).status_code == 404


def test_a_policy_takes_the_place_only_of_the_one_that_was_shown(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("taken.t")
    place = {"level": "namespace", "catalog": "local", "namespace": ["taken"]}

    def there() -> str | None:
        found = service.admin.get("/policy-attachments", params={"level": "namespace"}).json()["items"]
        return next((one["policy"] for one in found if one["namespace"] == ["taken"]), None)

    def attach(policy: str | None) -> None:
        service.admin.put("/policy-attachments", json=place | {"policy": policy}).raise_for_status()

    for name in ("first", "second"):
        service.admin.post("/policies", json={"name": name, "settings": {}}).raise_for_status()
    attach("first")
    admin.open("/policies/second")
    asked = admin.send("/attach", {"namespace": ""}, catalog="local", namespace="taken")
    assert (asked.status, there()) == (412, "first")
    assert "first is attached there since" in asked.text
    attach("manual")
    asked = admin.send("/attach", {"namespace": "taken"})
    assert (asked.status, there()) == (412, "manual")
    assert "manual is attached there since" in asked.text
    assert "in the meantime" not in asked.text, "it is a question, and says what is there"
    admin.send("/attach", {"namespace": "taken", "catalog": "local"})
    assert there() == "second"
    # The button detaches this policy, not what somebody has attached instead.
    attach("first")
    refused = admin.send("/attach", {"detach": "yes"})
    assert (refused.status, there()) == (412, "first")
    attach(None)
    for name in ("first", "second"):
        service.admin.delete(f"/policies/{name}").raise_for_status()


def test_a_catalog_is_registered_checked_paused_changed_and_removed_on_its_pages(
    service: Running, admin: Person, tmp_path: Path
) -> None:
    iceberg = IcebergCatalog(service.settings.data_dir, "second")
    admin.open("/catalogs/new")
    said = "\n".join(f"{name} = {value}" for name, value in iceberg.properties.items())
    shown = admin.send("/catalogs/new", name="second", type="sql", properties=said)
    assert iceberg.properties["uri"] in shown.text
    checked = admin.send("/check")
    assert "data-events" not in checked.html, "what is read again by GET is at another address"
    assert checked.status == 200
    assert "What the check found warning" in checked.text
    assert "Set the property catalog_name to 'local'" in checked.text
    assert "Index warehouse ok" in checked.text

    assert "No job of its tables starts" in admin.send("/pause").text
    assert "second" in admin.open("/catalogs?paused=true").text
    admin.open("/catalogs/second")
    admin.send("/resume")
    admin.follow("Change")
    admin.send("/edit", max_running_jobs="2", properties=f"{said}\ninit_catalog_tables = false\n")
    changed = service.admin.get("/catalogs/second").json()
    assert changed["max_running_jobs"] == 2
    assert changed["properties"] == {**iceberg.properties, "init_catalog_tables": "false"}
    admin.open("/catalogs/second/edit")
    admin.send("/edit", max_running_jobs="", properties=said)
    changed = service.admin.get("/catalogs/second").json()
    assert changed["max_running_jobs"] is None
    assert changed["properties"] == iceberg.properties
    admin.open("/catalogs/second")
    admin.send("/delete")
    assert service.admin.get("/catalogs/second").status_code == 404
    iceberg.close()


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("uri = sqlite:////tmp/x.db", "warehouse"),
        ("uri", "no name and = stand before a value"),
        (
            "token = hunter2hunter2\nuri = sqlite:////x.db\nwarehouse = file:///x",
            "must not be stored in clear",
        ),
    ],
)
def test_properties_that_do_not_do_are_refused_beside_them(
    admin: Person, properties: str, words: str
) -> None:
    admin.open("/catalogs/new")
    refused = admin.send("/catalogs/new", name="third", type="sql", properties=properties)
    assert refused.status == 422
    assert dict(refused.form("/catalogs/new").fields)["properties"] == properties
    assert words in refused.text
    assert 'id="properties-wrong"' in refused.html


def test_a_key_is_shown_once_rotated_and_revoked(service: Running, admin: Person) -> None:
    admin.open("/api-keys/new")
    made = admin.send("/api-keys/new", name="grafana", role="viewer", expires_at="2099-01-01")
    (listed,) = service.admin.get("/api-keys", params={"search": "grafana"}).json()["items"]
    assert listed["expires_at"] == "2099-01-01T00:00:00Z"

    def secret() -> str:
        return admin.page.html.partition("<code>ice_")[2].partition("<")[0]

    def is_good(key: str) -> bool:
        answer = service.client_with({"Authorization": f"Bearer ice_{key}"}).get("/me")
        return answer.status_code == 200

    first = secret()
    assert "only time that the key is shown" in made.text
    assert is_good(first)
    assert first not in admin.open("/api-keys?search=grafana").html
    admin.send(f"/{listed['id']}/rotate", grace_seconds="0")
    second = secret()
    assert (is_good(first), is_good(second)) == (False, True)
    admin.open("/api-keys?search=grafana")
    rotation = {"grace_seconds": 3600}
    service.admin.post(f"/api-keys/{listed['id']}/rotate", json=rotation).raise_for_status()
    overtaken = admin.send(f"/{listed['id']}/rotate", grace_seconds="0")
    assert overtaken.status == 409
    assert "The key has been rotated in the meantime" in overtaken.text
    assert is_good(second)
    admin.open("/api-keys?search=grafana")
    revoked = admin.send(f"/{listed['id']}/revoke")
    assert not is_good(second)
    assert not revoked.offers(f"/{listed['id']}/rotate")
    assert admin.open("/api-keys?state=active&search=grafana").text.count("grafana") == 0


def test_a_key_is_made_for_some_parts_of_its_role_or_for_all_of_it(service: Running, admin: Person) -> None:
    admin.open("/api-keys/new")
    assert admin.page.form("/api-keys/new").choices["scopes"] == [scope.value for scope in Scope]
    chosen = ["health:read", "tables:read"]
    refused = admin.send("/api-keys/new", name="x" * 201, scopes=chosen)
    assert (refused.status, "name-wrong" in refused.html) == (422, True)
    kept = [value for name, value in refused.form("/api-keys/new").fields if name == "scopes"]
    assert kept == chosen
    made = admin.send("/api-keys/new", name="scoped-by-form")
    assert "Only for health:read, tables:read" in made.text
    admin.open("/api-keys/new")
    assert "Only for" not in admin.send("/api-keys/new", name="unscoped-by-form").text
    listed = service.admin.get("/api-keys", params={"search": "scoped-by-form"}).json()["items"]
    assert {key["name"]: key["scopes"] for key in listed} == {
        "scoped-by-form": chosen,
        "unscoped-by-form": None,
    }


def test_the_audit_log_is_filtered_and_paged(service: Running, admin: Person) -> None:
    service.client(Role.VIEWER).post("/tables/nope/pause")
    service.admin.post("/policies", json={"name": "audited", "settings": {}})
    shown = admin.open("/audit")
    assert "POST /tables/{table_id}/pause" in shown.text
    assert "policy.create" in shown.text
    denied = admin.send("/audit", outcome="denied", principal="viewer")
    assert "reason: forbidden" in denied.text
    assert "policy.create" not in denied.text
    assert "No entry fits these filters" in admin.open("/audit?principal=nobody").text
    assert "policy.create" in admin.open("/audit?since=2020-01-01T00:00").text
    admin.send("/audit", since="2020-01-01T00:00", until="2020-01-01T00:01")
    assert "No entry fits these filters" in admin.page.text
    assert 'value="2020-01-01T00:01"' in admin.page.html
    first = admin.open("/audit?limit=1")
    second = admin.follow("Next page")
    assert first.text != second.text
    assert "First page" in second.links


def test_a_list_keeps_its_filters_when_its_order_changes(service: Running, admin: Person) -> None:
    for name in ("order-a", "order-b", "order-c"):
        service.admin.post("/policies", json={"name": name, "settings": {}})
    admin.open("/policies?search=order-")

    def names() -> list[str]:
        return [words for words in admin.page.links if words.startswith("order-")]

    assert names() == ["order-a", "order-b", "order-c"]
    admin.follow("Policy ↑")
    assert names() == ["order-c", "order-b", "order-a"]
    assert 'aria-sort="descending"' in admin.page.html


def test_workers_are_found_by_name_and_whether_they_are_alive(service: Running, admin: Person) -> None:
    registered = service.admin.post(
        "/workers", json={"name": "of-late", "hostname": "h", "pid": 1, "version": "0"}
    )
    with service.database.write() as session:
        # However long ago other tests started theirs, and this one goes on.
        an_hour = timedelta(hours=1)
        session.execute(update(Worker).values(last_seen_at=utc_now() - an_hour))
        session.get_one(Worker, registered.json()["id"]).last_seen_at = utc_now() + an_hour
    assert "of-late" in admin.open("/workers?alive=true&search=late").text
    assert "No worker fits" in admin.open("/workers?alive=false&search=late").text
    assert "No worker fits" in admin.open("/workers?search=nobody").text
    why = "Spark's executors can't run this worker's tasks: pyarrow is missing."
    body = {"name": "unable", "hostname": "h", "pid": 1, "version": "0", "problem": why}
    assert service.admin.post("/workers", json=body).json()["alive"] is False
    assert "unable" not in admin.open("/workers?alive=true").text
    shown = admin.open("/workers?alive=false").text
    assert "unfit" in shown
    assert why in shown
    assert "icestream_workers_alive 1.0" in service.admin.get(f"{service.url}/metrics").text
    # Once it is mended, it needs nobody's attention: the overview of other tests says that all is well.
    assert "Worker unable cannot run jobs" in admin.open("/").text
    service.admin.post("/workers", json=body | {"problem": None})
    assert "Worker unable cannot run jobs" not in admin.open("/").text


def test_what_a_role_may_not_do_is_not_offered_and_refused_if_tried(
    service: Running, iceberg: IcebergCatalog
) -> None:
    policy = service.admin.post("/policies", json={"name": "guarded", "settings": {}}).json()["id"]
    with Person(service, Role.VIEWER) as viewer, Person(service, Role.OPERATOR) as operator:
        for path in ("/policies", "/policies/guarded", "/catalogs", "/catalogs/local", "/workers"):
            page = viewer.open(path)
            assert page.status == 200
            assert [form.action for form in page.forms if form.method == "post"] == [
                f"{service.url}/logout"
            ], path
            assert not {"API keys", "Audit", "Change", "New policy"} & page.links.keys()
        for path in ("/policies/new", "/catalogs/new", "/api-keys", "/audit", f"/policies/{policy}/edit"):
            assert viewer.open(path).status == 403, path
        viewer.open("/policies")
        assert viewer.post(f"/policies/{policy}/delete").status == 403
        assert viewer.post("/policies/new", name="x").status == 403

        page = operator.open("/catalogs/local")
        assert page.offers("/check")
        assert not page.offers("/delete")
        page = operator.open("/policies/guarded")
        assert "the whole system" not in page.text
        assert operator.post(f"/policies/{policy}/attach", catalog="", namespace="").status == 403
        assert operator.post("/catalogs/local/delete").status == 403
    assert service.admin.get("/policies/guarded").status_code == 200


def test_a_filter_that_was_left_empty_is_none(service: Running) -> None:
    with Person(service) as admin:
        admin.open("/policies")
        assert admin.send("/policies", search="").status == 200
        assert admin.open("/api-keys?state=&role=&search=").status == 200
    assert httpx.get(f"{service.url}/policies?search=", timeout=PATIENCE_SECONDS).status_code == 303


def test_a_webhook_is_made_tried_changed_and_removed(
    service: Running, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_PAGE", "whsec_" + base64.b64encode(bytes(32)).decode())
    admin.open("/webhooks")
    admin.follow("New webhook")
    typed = {"name": "on-call", "url": "http://127.0.0.1:9/hook", "kinds": "job.failed, table"}
    refused = admin.send("/webhooks/new", **typed, secret="env:WEBHOOK_NOT_THERE")
    assert refused.status == 422
    assert "is not set" in refused.text
    assert dict(refused.form("/webhooks/new").fields)["kinds"] == typed["kinds"]
    shown = admin.send("/webhooks/new", **typed, secret="env:WEBHOOK_PAGE")
    assert "Nothing was sent yet" in shown.text
    path = shown.path
    tried = admin.send(f"{path}/test")
    assert "webhook.test" in tried.text
    assert "waiting" in tried.text
    assert admin.send(f"{path}/deliveries/1/resend").status == 200
    assert "No delivery fits" in admin.send(path, status="dead").text
    admin.open(path)
    assert "off" in admin.send(f"{path}/pause").text
    assert admin.page.offers(f"{path}/enable")
    stale = admin.page.form(f"{path}/edit")
    admin.send(f"{path}/enable")
    assert admin.http.post(stale.action, data=dict(stale.fields)).status_code == 412
    assert admin.http.post(f"{path}/delete", data=dict(stale.fields)).status_code == 412
    admin.send(f"{path}/edit", name="pager")
    assert "pager" in admin.open("/webhooks?search=page&enabled=true").text
    admin.open(path)
    assert admin.send(f"{path}/delete").path == "/webhooks"
    assert "There is no webhook yet" in admin.page.text


def test_a_sender_is_made_heard_refused_and_removed_on_its_pages(
    service: Running, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There is no sender yet" in admin.open("/senders").text
    made = admin.follow("New sender")
    (key,) = re.findall(r"<code>(whsec_[^<]*)<", made.html)
    typed = {"name": "flink", "catalog": "local"}
    refused = admin.send("/senders/new", **typed, secret=key)
    assert (refused.status, "is no reference" in refused.text) == (422, True)
    assert dict(refused.form("/senders/new").fields)["name"] == "flink"
    monkeypatch.setenv("WEBHOOK_PAGE", key)
    listed = admin.send("/senders/new", **typed, secret="env:WEBHOOK_PAGE")
    row = listed.text.partition("flink")[2]
    assert row.count("never") == 2
    assert key not in listed.html
    (address,) = re.findall(r'title="([^"]*/commit-events)"', listed.html)
    body, at = b'{"tables": ["db.none"]}', utc_now()
    signed = {
        "content-type": "application/json",
        "webhook-id": "m",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(key).sign("m", at, body.decode()),
    }
    answers = [
        httpx.post(address, content=body, headers=signed | wrong, timeout=PATIENCE_SECONDS).status_code
        for wrong in ({}, {"webhook-signature": "v1,eA=="}, {"webhook-signature": "x"})
    ]
    assert answers == [202, 401, 401]
    row = admin.open("/senders?catalog=local").text.partition("flink")[2]
    assert "never" not in row
    assert "No matching signature found." in row, "the first within a minute"
    (told,) = service.admin.get("/notification-senders").json()["items"]
    assert told["last_heard_at"] < told["last_refused_at"]
    path = f"/senders/{told['id']}/delete"
    assert "There is no sender yet" in admin.send(path).text
    assert httpx.post(address, content=body, headers=signed, timeout=PATIENCE_SECONDS).status_code == 401


def test_another_type_of_catalog_keeps_what_both_have_and_shows_no_secret(admin: Person) -> None:
    asked = admin.open("/catalogs/new?type=rest")
    # As its button says where it is sent.
    assert 'formaction="/catalogs/new?type=sql" formnovalidate name="what" value="type"' in asked.html
    typed = dict(asked.forms[-1].fields) | {
        "name": "lake2",
        "property.uri": "https://catalog.example.com",
        "property.warehouse": "lake",
        "property.credential": "env:CATALOG_CREDENTIAL",
        "properties": "s3.region = eu-central-1\ns3.secret-access-key = abc\ntoken = env:TOKEN\nunfinished",
        "index_warehouse": "s3://lake/index",
        "max_running_jobs": "3",
        "what": "type",
    }
    shown = Page(admin.http.post("/catalogs/new?type=sql", data=typed))
    kept = dict(shown.forms[-1].fields)
    assert (shown.status, kept.pop("csrf_token") != "") == (200, True)
    assert kept == {
        "name": "lake2",
        "type": "sql",
        "property.uri": "https://catalog.example.com",
        "property.warehouse": "lake",
        "properties": "s3.region = eu-central-1\ntoken = env:TOKEN\nunfinished",
        "index_warehouse": "s3://lake/index",
        "max_running_jobs": "3",
    }
    secret = typed | {"property.uri": "postgresql://ada:pw@host/lake"}
    assert "ada:pw" not in admin.http.post("/catalogs/new?type=hive", data=secret).text


def test_each_type_of_catalog_is_asked_for_what_it_needs_and_tried_before_it_is_registered(
    service: Running, admin: Person, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    for kind, needed in (
        ("sql", {"property.uri", "property.warehouse"}),
        ("rest", {"property.uri", "property.warehouse", "property.credential", "property.token"}),
        ("hive", {"property.uri"}),
        ("glue", {"property.glue.region"}),
        ("hadoop", {"property.warehouse"}),
    ):
        fields = dict(admin.open(f"/catalogs/new?type={kind}").form("/catalogs/new?type=" + kind).fields)
        assert {name for name in fields if name.startswith("property.")} == needed
        assert fields["type"] == kind
    form = admin.open("/catalogs/new?type=sql").html
    first = form.partition("<main")[2].partition("<button")[2].partition("</button>")[0]
    assert (first.partition(">")[2], "name=" in first) == ("Register", False), "Enter presses the first one"
    gone = {"property__uri": f"sqlite:///{service.settings.data_dir}/none.db"}
    place = {"name": "tried", "property__warehouse": iceberg.properties["warehouse"]}
    failed = admin.send("/catalogs/new?type=sql", **place, **gone, what="try")
    assert "What the check found unreachable" in failed.text
    assert dict(failed.forms[-1].fields)["property.uri"] == gone["property__uri"]
    said = {"property__uri": iceberg.properties["uri"], "properties": "catalog_name = local"}
    found = admin.send("/catalogs/new?type=sql", **place, **said, what="try")
    assert "What the check found ok" in found.text
    assert "db.t" in found.text
    assert service.admin.get("/catalogs/tried").status_code == 404
    admin.send("/catalogs/new?type=sql", name="tried")
    made = service.admin.get("/catalogs/tried").json()
    assert made["properties"] == {**iceberg.properties, "catalog_name": "local"}
    service.admin.delete("/catalogs/tried").raise_for_status()
