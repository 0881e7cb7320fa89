"""What commands say: lists as wide as there is room, trees, JSON and YAML, help, and nothing that steers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from service.command.calls import _in_commands
from service.command.columns import columns, shown
from service.command.completion import names_of
from service.command.main import app
from service.command.operations import Output, load_document, operations
from service.command.printing import harmless, print_answer, rows_table
from service.quantities import brief

STEERING = "a\x1b[31mb\x9bc\u202ed\r"
"""Colours, an escape of C1, text from right to left, and a carriage return."""
OF_OWN = {"age", "bytes", "deletes", "delivered", "files", "lag", "oldest", "pending", "progress", "reads"}
OF_OWN |= {"answered", "heard", "latency", "requests", "seen", "since", "status", "table", "tables"}
OF_OWN |= {"took", "used", "last run", "ran on", "runs", "waiting"}
"""Headings of columns that are made of several fields, or of times."""
OF_ROWS = ("look_up_keys", "tell_key_history")
"""Calls whose answers have rows of tables, which are told whole."""
REASON = "2 equality delete files cannot be converted: the key column price is of type double."


def table(name: str = "shop.orders", **fields: Any) -> dict[str, Any]:
    return {
        "catalog": "lake",
        "name": name,
        "status": "blocked",
        "pending_equality_deletes": 123_456,
        "lag_seconds": 4_000.0,
        "created_at": "2020-01-01T00:00:00Z",
        "status_reason": REASON,
        "policy": None,
        "id": "0c5f2f0e-6b0e-4a55-9f5f-0a8e4b1f7c11",
        **fields,
    }


def lines(rows: list[dict[str, Any]], width: int | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Console(width=width or 500).print(rows_table(rows, "list_tables", width=width))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
@pytest.mark.parametrize("name", ["shop.orders", "shop." + "orders_of_all_the_world_" * 4, "店" * 60])
def test_a_list_has_a_line_for_each_row_that_fits(
    width: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = lines([table(name), table("b", status_reason="")], width, capsys)
    assert len(shown) == 3
    assert max(map(cell_len, shown)) <= width


def test_columns_go_before_the_reason_does_and_the_least_important_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    headings = {width: lines([table()], width, capsys)[0].split() for width in (60, 70, 80, 200)}
    assert headings[200] == ["table", "status", "pending", "lag", "age", "reason"]
    assert headings[80] == ["table", "status", "pending", "lag", "age", "reason"]
    assert headings[70] == ["table", "status", "pending", "lag", "reason"]
    assert headings[60] == ["table", "status", "pending", "reason"]
    whole, narrow = lines([table()], 200, capsys)[1], lines([table()], 80, capsys)[1]
    assert whole.split()[:5] == ["lake.shop.orders", "blocked", "123,456", "1h", narrow.split()[4]]
    assert whole.endswith(REASON)
    assert narrow.endswith("…")


def test_a_wide_column_keeps_out_no_narrow_one_and_a_part_of_a_name_is_better_than_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = table(kind="convert", status="running", progress={"stage": "lookup", "done": 120, "total": 298})
    Console(width=70).print(rows_table([job], "list_jobs", width=70))
    assert capsys.readouterr().out.split()[:5] == ["table", "kind", "status", "age", "reason"]
    entry = {"at": "2026-11-26T20:21:58Z", "principal": "bootstrap", "action": "table.enroll"}
    entry |= {"target": "shop." + "o" * 90, "outcome": "denied"}
    Console(width=80).print(rows_table([entry], "list_audit_entries", width=80))
    assert re.search(r" denied +table\.enroll +shop\.o+…", capsys.readouterr().out)
    entry |= {"action": "POST /senders/{sender_id}/" + "x" * 40}
    Console(width=80).print(rows_table([entry], "list_audit_entries", width=80))
    assert re.search(r" denied +POST /senders\S+…", capsys.readouterr().out)


def test_a_short_name_takes_no_room_from_other_columns(capsys: pytest.CaptureFixture[str]) -> None:
    health = {"status": "reachable", "since": "2026-11-26T20:21:58Z", "latency_seconds": 0.004}
    health["tables"] = {"healthy": 9, "degraded": 1, "blocked": 2}
    catalog = {"name": "lake", "type": "sql", "paused": False, "health": health}
    Console(width=80).print(rows_table([catalog], "list_catalogs", width=80))
    assert "…" not in capsys.readouterr().out


def test_in_a_pipe_and_where_all_is_asked_for_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    row = table("n" * 300, policy="nightly")
    print_answer({"items": [row]}, Output.TABLE, "list_tables")
    narrow = capsys.readouterr().out
    print_answer({"items": [row]}, Output.WIDE, "list_tables")
    wide = capsys.readouterr().out
    for told in (narrow, wide):
        assert row["name"] in told
        assert REASON in told
        assert len(told.splitlines()) == 2
    assert row["id"] in wide
    assert "nightly" in wide
    assert row["id"] not in narrow


def test_what_is_nested_is_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "kind": "convert",
        "attempts": [{"status": "failed", "stages": [{"name": "plan", "seconds": 2.5}]}],
        "result": {"bytes_read": 1_500_000, "rows_deleted": 12_345},
        "progress": None,
    }
    print_answer(job, Output.TABLE)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "kind      convert",
        "attempts",
        "└── 1",
        "    ├── status  failed",
        "    └── stages",
        "        └── 1 plan",
        "            ├── name     plan",
        "            └── seconds  2.5s",
        "result",
        "├── bytes read    1.5 MB",
        "└── rows deleted  12,345",
        "progress  -",
    ]


def examples() -> Iterator[tuple[str, Any]]:
    """Answers that are no lists, with the calls that they are of."""
    document = load_document()
    for operation in operations(document):
        answers = document["paths"][operation.path][operation.method.lower()]["responses"]
        contents = [said.get("content", {}) for status, said in answers.items() if status.startswith("2")]
        for content in contents:
            example = content.get("application/json", {}).get("example")
            if operation.page_items is None and isinstance(example, dict):
                yield operation.id, example


def many(part: Any) -> Any:
    """The same with a hundred times as many things in each list."""
    if isinstance(part, dict):
        return {name: many(value) for name, value in part.items()}
    if isinstance(part, list):
        return [many(one) for one in part] * (100 if any(isinstance(one, dict | int) for one in part) else 1)
    return part


def test_lists_within_an_answer_unfold_to_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    known = {name: example for name, example in examples() if name not in OF_ROWS}
    assert len(known) > 30
    for name, example in known.items():
        print_answer(many(example), Output.TABLE, name)
        # Things may have lists of their own.
        assert len(capsys.readouterr().out.splitlines()) < 1_000, name
    print_answer({"parts": [{"at": number} for number in range(84)], "ids": [1] * 500}, Output.TABLE)
    told = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert told[:3] == ["parts", "├── at", "│   0"]
    assert told[-2] == "└── and  64 more: -o json shows them"
    assert len(told) == 24
    # What to do is left out of no column.
    steps = [{"name": "connect", "status": "failed", "remedy": REASON}] * 6
    print_answer({"steps": steps}, Output.TABLE)
    assert capsys.readouterr().out.count(REASON) == 6


def test_what_matters_of_many_things_is_told_in_columns_or_below_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    duplicates = [
        {"key": {"order_id": number}, "live_rows": 2, "places": [{"row": 7}]} for number in range(9)
    ]
    refused = [{"table": f"t{number}", "refused_because": REASON} for number in range(9)]
    runs = [{"level": 5, "files": 777, "bytes": 3_000_000}] * 9
    print_answer({"duplicates": duplicates, "tables": refused, "runs": runs}, Output.TABLE)
    told = capsys.readouterr().out
    assert re.search(r"order_id +8\b", told)
    assert told.count(REASON) == 9
    assert re.search(r"level +files +bytes", told)
    assert len(re.findall(r"5 +777 +3\.0 MB", told)) == 9


def test_a_table_within_an_answer_is_as_wide_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    stage = {"name": "plan", "rows": 12_345, **{f"seconds_of_{part}": 90.0 for part in range(6)}}
    print_answer({"attempts": [{"status": "failed", "stages": [stage] * 6}]}, Output.TABLE)
    told = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
    assert len(told) == 11
    assert "plan  12,345  1m" in told[-1]
    assert max(map(len, told)) <= 60
    assert not any("…" in line for line in told)


def test_a_replay_is_told_on_a_screen_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    answer = dict(examples())["replay_table_policy"]
    for number, outcome in enumerate(("happened", "present", "edited"), 1):
        kinds = [{"kind": kind, "jobs": number, "seconds": 90.0} for kind in ("index", "convert")]
        over_time = {name: answer[outcome][name] * 84 for name in ("reads", "intervals")}
        figures = {"jobs": kinds, "write_amplification": 1.23456, **over_time}
        answer = answer | {outcome: answer[outcome] | figures}
    answer["edited"]["jobs"].pop(0)
    print_answer(answer, Output.TABLE, "replay_table_policy")
    told = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
    assert len(told) <= 24
    assert max(map(len, told)) <= 80
    assert "over time   84 intervals, 84 reads: -o json shows them" in told
    words = [line.split() for line in told]
    assert ["figure", "happened", "present", "edited", "off"] in words
    assert ["jobs", "2", "4", "3", "1.02x"] in words
    assert ["write", "amplification", "1.23", "1.23", "1.23", "-"] in words
    assert ["index", "seconds", "1m", "1m", "-", "-"] in words


def test_a_policy_has_a_line_for_each_setting_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    answer = dict(examples())["get_table_policy"]
    own = {"level": "table", "place": "enrolment of table sales.orders", "policy": None}
    window = {"days": ["mon"], "start": "01:00", "end": "02:00"}
    answer = answer | {
        "values": {
            **answer["values"],
            "publish.from": {"value": "staging", "source": own},
            "index.age_seconds": {"value": 90.0, "source": own | {"policy": "prompt"}},
            "schedule.windows": {"value": [window, window], "source": own | {"policy": "prompt"}},
        }
    }
    print_answer(answer, Output.TABLE, "get_table_policy")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["table", "id", answer["table_id"]],
        ["policy", "standard"],
        ["setting", "value", "level", "policy"],
        ["convert.delete_files", "10", "system", "standard"],
        ["publish.from", "staging", "table", "-"],
        ["index.age_seconds", "1m", "table", "prompt"],
        ["schedule.windows", "2", "windows", "table", "prompt"],
    ]
    print_answer(answer, Output.WIDE, "get_table_policy")
    assert "enrolment of table sales.orders" in capsys.readouterr().out


def test_a_timeline_tells_of_each_table_what_its_span_had(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"kind": "index", "status": "succeeded", "worker_name": "w1", "started_at": "2020-01-01T00:00:00Z"}
    runs = [run, {**run, "kind": "convert", "status": "running", "worker_name": "w2", "ended_at": None}]
    busy = {"catalog": "lake", "table": "shop.orders", "status": "lagging", "waiting_jobs": 2}
    busy |= {"pending_equality_deletes": [None, 7_000, 3], "lag_seconds": [None, 90.0, 30.0]}
    busy |= {"runs": runs, "has_more_runs": True}
    unseen = {"pending_equality_deletes": [None], "lag_seconds": [None], "runs": [], "has_more_runs": False}
    print_answer({"items": [busy, {**busy, **unseen}]}, Output.TABLE, "get_timeline")
    heading, first, second = capsys.readouterr().out.splitlines()
    assert " ".join(heading.split()) == "table status pending lag runs last run ran on waiting"
    assert re.fullmatch(
        r"lake\.shop\.orders +lagging +7,000 +1m +2\+ +convert running \S+ ago +w1, w2 +2", first.rstrip()
    )
    assert second.split() == ["lake.shop.orders", "lagging", "-", "-", "-", "-", "-", "2"]


def test_a_table_is_called_as_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = {"table": "sales.orders", "catalog": "lake", "kind": "convert"}
    enrolled = {"catalog": "lake", "identifier": ["sales", "orders"], "name": "sales.orders"}
    sender = {"name": "flink", "catalog": "lake"}
    print_answer({"job": job, "enrolled": enrolled, "sender": sender}, Output.TABLE)
    told = [line.lstrip("│└├─ ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["table", "lake.sales.orders"] in told
    assert ["name", "lake.sales.orders"] in told
    assert ["name", "flink"] in told
    assert told.count(["catalog", "lake"]) == 1, "of what is no table"


def test_what_needs_several_lines_stays_beside_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    print_answer({"status": "blocked", "status_reason": REASON}, Output.TABLE)
    first, second, *others = Text.from_ansi(capsys.readouterr().out).plain.splitlines()
    assert first.rstrip() == "status         blocked"
    assert second.startswith("status reason  2 equality")
    assert others
    assert all(line.startswith(" " * 15) and line[15:].strip() for line in others)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("iceberg_snapshot_id_before", 6051911820938456713, "6051911820938456713"),
        ("rows", 10_000, "10,000"),
        ("reads_per_day", 1_000.0, "1,000"),
        ("lag_seconds_max", 7_200, "2h"),
        ("table_bytes_per_day", 1_000_000, "1.0 MB"),
        ("delete_ratio_threshold", 0.3, "30%"),
        ("memory_fraction", 0.5, "0.5"),
        ("until_time", "2026-11-27T21:13:06.641212Z", "2026-11-27 21:13:06 UTC"),
        ("since", "2026-11-27T21:13:06.641212Z", "2026-11-27 21:13:06 UTC"),
        ("time", "no time", "no time"),
    ],
)
def test_figures_and_times_are_told_as_people_read_them(name: str, value: object, words: str) -> None:
    assert shown(name, value) == words


def test_a_table_tells_its_catalog_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer({"items": [{"catalog": "lake", "table": "shop.orders", "status": "healthy"}]}, Output.TABLE)
    assert capsys.readouterr().out.split() == ["table", "status", "lake.shop.orders", "healthy"]


def test_what_has_no_answer_is_said_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(None, Output.TABLE)
    assert capsys.readouterr() == ("", "Done.\n")


def test_values_of_a_table_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"wait_seconds": 90, "load_ratio": 0.337, "seen_at": "2026-01-01T00:00:00.000001", "is": True}
    place = {"key.seen_at": row["seen_at"], **{f"row.{name}": value for name, value in row.items()}}
    print_answer({"items": [place]}, Output.TABLE)
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("2026-01-01T00:00:00.000001", "90", "0.337", "2026-01-01T00:00:00.000001", "true")
    ]
    print_answer({"results": [{"key": {"id": 1000}, "matches": [{"row": row}]}]}, Output.TABLE)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "results",
        "└── 1",
        "    ├── key",
        "    │   └── id  1000",
        "    └── matches",
        "        └── 1",
        "            └── row",
        "                ├── wait_seconds  90",
        "                ├── load_ratio    0.337",
        "                ├── seen_at       2026-01-01T00:00:00.000001",
        "                └── is            true",
    ]


@pytest.mark.parametrize("output", list(Output))
def test_nothing_that_others_have_named_steers_the_terminal(
    output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = {STEERING: STEERING, "list": [STEERING, {STEERING: {"x": STEERING}}]}
    for answer in (
        {"items": [table(STEERING, status_reason=STEERING, policy=STEERING)]},
        {"items": [{STEERING: STEERING, "b": "2"}]},
        nested,
        {**nested, "items": "no list"},
        STEERING,
    ):
        print_answer(answer, output, "list_tables" if "items" in answer else "")
    said = capsys.readouterr().out
    assert "b" in said
    assert all(one.isprintable() or one == "\n" for one in said)


def test_a_row_stays_one_line_whatever_its_names_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines([table("a\nlake.b  healthy")], 100, capsys)) == 2
    assert harmless("a\nb") == "a\nb"


def test_yaml_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"items": [table("Ω: yes")], "next_cursor": None, "n": 1, "no": "no", "at": "2020-01-01"}
    print_answer(answer, Output.YAML)
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    print_answer(answer, Output.JSON)
    assert as_yaml == json.loads(capsys.readouterr().out) == answer


def test_each_column_of_a_list_is_a_field_of_its_items() -> None:
    document = load_document()
    lists = [one for one in operations(document) if one.page_items is not None]
    assert len(lists) > 10
    for operation in lists:
        content = document["paths"][operation.path]["get"]["responses"]["200"]["content"]["application/json"]
        (item,) = content["example"]["items"]
        shown = {one.heading for one in columns(operation.id, [item], wide=True)}
        assert shown <= {name.replace("_", " ") for name in item} | OF_OWN, operation.id
        assert len(columns(operation.id, [item], wide=False)) >= 2, operation.id


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (0.004, "4ms"),
        (0.25, "0.2s"),
        (45.6, "46s"),
        (60, "1m"),
        (7_199, "1h"),
        (86_400 * 3 + 5, "3d"),
    ],
)
def test_times_are_brief_in_columns(seconds: float, words: str) -> None:
    assert brief(seconds) == words


def test_help_speaks_of_what_people_do_and_not_of_http() -> None:
    of_http = re.compile(
        r"\b(HTTP|POST|GET|PUT|PATCH|DELETE|ETag|If-Match|merge patch|endpoints?|status code|[45]\d\d|route"
        r"|next_cursor|query|body|server-sent|idempoten\w+|X-Request-ID|null(?!(?s:.*) JSON))\b"
        r"|/docs|webhook-\w+|/check|the request|This request"
    )

    def told(group: Any, above: str = "") -> Iterator[tuple[str, str]]:
        for name, command in group.commands.items():
            yield above + name, command.help
            if hasattr(command, "commands"):
                yield from told(command, f"{above}{name} ")
            else:
                yield from ((f"{above}{name} {one.name}", getattr(one, "help", "")) for one in command.params)

    words = list(told(typer.main.get_command(app)))
    assert len(words) > 300
    assert [(where, text) for where, text in words if of_http.search(text or "")] == []


def test_help_has_no_types_of_python() -> None:
    def options(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
        yield from ((above, one) for one in group.params if "completion" not in one.name)
        for name, command in getattr(group, "commands", {}).items():
            yield from options(command, f"{above} {name}")

    found = list(options(typer.main.get_command(app)))
    assert len(found) > 300
    for where, one in found:
        # Beside arguments, help has the name of the type whatever stands for them.
        is_argument = one.param_type_name == "argument"
        kind = one.type.name if is_argument or one.metavar is None else one.metavar
        assert kind in ("choice", "boolean", "text") or kind.isupper(), (where, one.name, kind)
        # Typer calls an option itself what stands for its value, if they differ by case alone.
        assert is_argument or one.opts == [name.lower() for name in one.opts], where


def test_what_to_do_is_told_as_commands() -> None:
    words = "List them: GET /api/v1/webhooks/{id}/deliveries; or `POST /patterns`. See /docs, or GET /x."
    commands = "List them: `icestream webhooks list-deliveries`; or `icestream discovery create-pattern`."
    assert _in_commands(words) == f"{commands} See /docs, or GET /x."


def test_a_service_that_does_not_answer_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    line = typer.Context(typer.main.get_command(app))
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:1")
    assert names_of("/tables")(line, "lake") == []
    monkeypatch.delenv("ICESTREAM_API_KEY", raising=False)
    assert names_of("/tables")(line, "lake") == []
