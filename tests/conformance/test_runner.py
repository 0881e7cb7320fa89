"""Any command is a reader: what it prints, refuses or fails to say is told apart."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.asking import Answer, Conversation, OneShot, reader_of
from conformance.case import Reading
from conformance.cases import ALL
from conformance.runner import Result, chosen, run, write_all
from service.command.main import app
from tests.patience import wait_until

CASE = "null-is-equal-to-null"
RIGHT = "cat {table}/../expected.jsonl"


@pytest.fixture
def readings(tmp_path: Path) -> list[Reading]:
    return write_all(chosen(ALL, [CASE]), tmp_path / "cases", versions=[2])


def program(code: str) -> str:
    """A command that gets the place of the metadata as its first argument."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{metadata}}"


def results(command: str, readings: Sequence[Reading], seconds: float = 30) -> list[Result]:
    reader = reader_of(command, seconds)
    try:
        return list(run(reader, readings, lambda _: True))
    finally:
        reader.close()


def outcomes(command: str, readings: Sequence[Reading], seconds: float = 30) -> set[tuple[str, str]]:
    return {(one.outcome, one.reason) for one in results(command, readings, seconds)}


def test_a_reader_that_prints_the_rows_passes(readings: Sequence[Reading]) -> None:
    assert [one.state for one in readings] == ["written", "converted"]
    assert outcomes(RIGHT, readings) == {("pass", "")}


ROWS = ['{"id": 0, "k": 1}', '{"id": 2, "k": 0}']


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (ROWS, ("pass", "")),
        ([f"[{', '.join(ROWS)}]"], ("pass", "")),
        (['{"id": 2, "k": "0"}', '{"k": 1, "id": 0}'], ("pass", "")),
        (ROWS[:1], ("deviates", "lacks id 2")),
        ([*ROWS, '{"id": 1}'], ("deviates", "shows id 1")),
        ([*ROWS, ROWS[0]], ("deviates", "shows id 0")),
        ([ROWS[0], '{"id": 2, "k": 5}'], ("deviates", "shows id 2; lacks id 2")),
        ([], ("deviates", "lacks id 0, 2")),
        (['{"id": 0, "j": 1}'], ("deviates", "there is a column 'j', which the table does not have")),
        (['{"id": 0, "k": "x"}'], ("deviates", "the value 'x' of column 'k' is no int")),
        (["1"], ("deviates", "a row is no JSON object: 1")),
        (['{"id": 0}', '{"id": 2}'], ("deviates", "no row has the column 'k', not even a null")),
    ],
)
def test_rows_are_compared_as_a_multiset(
    readings: Sequence[Reading], printed: Sequence[str], told: tuple[str, str]
) -> None:
    assert outcomes(program(f"print({chr(10).join(printed)!r})"), readings[:1]) == {told}


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("import sys; print(1); sys.exit('no\\n\\nequality  deletes')", "refused", "equality deletes"),
        ("raise SystemExit(3)", "refused", "ended with code 3"),
        ("import os; os.kill(os.getpid(), 11)", "crashed", "ended by SIGSEGV"),
        ("print('{')", "crashed", "what it printed is no JSON"),
        ("print('x' * (17 << 20))", "crashed", "it printed more than 16 MiB"),
        ("import sys; sys.exit(sys.argv[1])", "refused", "TABLE/metadata/00001-written.metadata.json"),
    ],
)
def test_a_refusal_is_told_from_a_crash(
    readings: Sequence[Reading], code: str, outcome: str, reason: str
) -> None:
    (one,) = results(program(code), readings[:1])
    assert (one.outcome, one.reason[: len(reason)]) == (outcome, reason)


def test_what_a_reader_has_started_ends_with_it(readings: Sequence[Reading], tmp_path: Path) -> None:
    known = tmp_path / "process"
    code = (
        "import subprocess, sys; sleeper = subprocess.Popen([sys.executable, '-c',"
        f" 'import time; time.sleep(600)']); open({str(known)!r}, 'w').write(str(sleeper.pid))"
    )
    assert outcomes(program(code), readings[:1]) == {("deviates", "lacks id 0, 2")}
    state = Path(f"/proc/{known.read_text()}/stat")
    wait_until(lambda: not state.exists() or state.read_text().split()[2] == "Z", "the end of the sleeper")


def test_a_reader_without_an_answer_is_not_waited_for(readings: Sequence[Reading]) -> None:
    sleeps = "import time; time.sleep(600)"
    told = Answer(crashed="no answer within 0.2 s")
    assert outcomes(program(sleeps), readings[:1], 0.2) == {("crashed", told.crashed)}
    with conversation(sleeps, 0.04) as reader:
        assert [reader.ask({}), reader.ask({})] == [told, told]


def test_a_reader_that_prints_on_and_on_is_ended(readings: Sequence[Reading]) -> None:
    told = Answer(crashed="it printed more than 16 MiB")
    for stream in ("stdout", "stderr"):
        prints = (
            f"import sys, time; sys.{stream}.write('x' * (17 << 20)); sys.{stream}.flush(); time.sleep(600)"
        )
        assert outcomes(program(prints), readings[:1]) == {("crashed", told.crashed)}
        with conversation(prints) as reader:
            assert reader.ask({}) == told


def test_what_a_reader_says_beside_its_answers_does_not_add_up() -> None:
    code = """
import sys
for line in sys.stdin:
    sys.stderr.write("x" * (9 << 20))
    print('{"rows": []}', flush=True)
"""
    with conversation(code) as reader:
        assert [reader.ask({}) for _ in range(3)] == [Answer([])] * 3


def test_a_reader_that_closes_its_output_and_stays_is_ended() -> None:
    with conversation("import os, time; os.close(1); time.sleep(600)", 0.04) as reader:
        told = Answer(crashed="it closed its output, and did not end within 0.2 s")
        assert [reader.ask({}), reader.ask({})] == [told, told]


def test_a_directory_holds_one_state_of_a_table(tmp_path: Path) -> None:
    """Also where its path has blanks, which URIs spell otherwise."""
    readings = write_all(chosen(ALL, [CASE]), tmp_path / "the cases", versions=[2])
    newest = "import glob, sys; sys.exit(*glob.glob('metadata/*.metadata.json', root_dir=sys.argv[1]))"
    command = program(newest).replace("{metadata}", "{table}")
    assert [one.reason for one in results(command, readings)] == [
        "metadata/00001-written.metadata.json",
        "metadata/00002-converted.metadata.json",
    ]
    assert outcomes(RIGHT, readings) == {("pass", "")}


def test_a_program_may_have_the_name_of_a_reader_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = tmp_path / "duckdb"
    duckdb.write_text('#!/bin/sh\ncat "${2%/metadata/*}/../expected.jsonl"\n')
    duckdb.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = ["conformance", CASE, "--reader", "duckdb -json {metadata}"]
    ended = CliRunner().invoke(app, command, env={"COLUMNS": "200", "TERM": "dumb"})
    assert "Of 4 tables, 4 passed." in ended.output


def test_no_shell_reads_the_command(readings: Sequence[Reading], tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert outcomes(f"{RIGHT}; touch {made}", readings[:1]).pop()[0] == "refused"
    assert outcomes(f"cat $(touch {made}) `touch {made}` {{table}}", readings[:1]).pop()[0] == "refused"
    assert not made.exists()
    assert outcomes("/no/such/reader {metadata}", readings[:1]) == {
        ("crashed", "/no/such/reader can't be started: No such file or directory")
    }


def conversation(code: str, seconds: float = 30) -> Conversation:
    reader = reader_of(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}", seconds)
    assert isinstance(reader, Conversation)
    return reader


def test_a_command_without_places_answers_lines() -> None:
    code = """
import json, os, sys
for number, line in enumerate(sys.stdin):
    metadata = json.loads(line)["metadata"]
    if metadata == "rows":
        print(json.dumps({"rows": [{"id": number}]}), flush=True)
    if metadata == "refused":
        print(json.dumps({"refused": "a  b"}), flush=True)
    if metadata == "ends":
        sys.exit("it broke")
    if metadata == "killed":
        os.kill(os.getpid(), 9)
    if metadata == "other":
        print("hello", flush=True)
"""
    with conversation(code) as reader:
        asked = ["rows", "rows", "refused", "ends", "rows", "killed", "rows", "other", "rows"]
        answers = [reader.ask({"metadata": one}) for one in asked]
    assert answers == [
        Answer([{"id": 0}]),
        Answer([{"id": 1}]),
        Answer(refused="a b"),
        Answer(crashed="ended with code 1: it broke"),
        Answer([{"id": 0}]),
        Answer(crashed="ended by SIGKILL"),
        Answer([{"id": 0}]),
        Answer(crashed="the answer is no object with rows or a refusal: b'hello\\n'"),
        Answer([{"id": 0}]),
    ]


def test_what_the_spec_leaves_open_passes_either_way(tmp_path: Path) -> None:
    readings = write_all(chosen(ALL, ["float-keys"]), tmp_path)
    assert {one.state for one in readings} == {"written"}
    assert {one[0] for one in outcomes(RIGHT, readings)} == {"pass"}
    assert outcomes(program("raise SystemExit('no')"), readings) == {("pass", "no")}
    for open_row in ('{"id": 2, "k": 0}', '{"id": 1, "k": "NaN"}'):
        rows = [open_row, '{"id": 4, "k": 2.5}', '{"id": 5, "k": null}']
        assert outcomes(program(f"print({chr(10).join(rows)!r})"), readings) == {("pass", "")}
        assert outcomes(program(f"print({open_row!r})"), readings) == {("deviates", "lacks id 4, 5")}
    assert outcomes(program("print('1')"), readings) == {("deviates", "a row is no JSON object: 1")}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([CASE, "--reader", RIGHT], 0, "Of 4 tables, 4 passed."),
        ([CASE, "--reader", "false {metadata}", "--format-version", "3"], 1, "Of 2 tables, 2 were refused."),
        (["time-travel-*", "--reader", RIGHT], 0, "Of 4 tables, 4 were skipped."),
        (["time-travel-*", "--reader", f"{RIGHT} /dev/stdin{{snapshot}}"], 1, "Of 4 tables, 4 were refused."),
        ([CASE, "--list"], 0, f"{CASE}  [Equality Delete Files]\n    A null in a delete column"),
        ([], 2, "Name a reader by --reader"),
        (["no-such-*", "--list"], 2, "No case is named like no-such-*"),
        ([CASE, "--reader", "cat 'x"], 2, "No closing quotation"),
        ([CASE, "--reader", RIGHT, "--location", "s3://b"], 2, "--location is of files that --write keeps"),
    ],
)
def test_the_command_ends_with_what_it_found(arguments: Sequence[str], code: int, said: str) -> None:
    ended = CliRunner().invoke(app, ["conformance", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert said in ended.output
    assert ended.exit_code == code


def test_what_is_not_installed_is_named() -> None:
    code = "import sys; sys.modules['fastavro'] = None; from service.command.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "conformance", "--list"], capture_output=True, text=True, check=False
    )
    said = "The tables are written with fastavro: pip install 'icestream[conformance]'.\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def test_tables_are_written_for_a_place_elsewhere(tmp_path: Path) -> None:
    folder, report = tmp_path / "cases", tmp_path / "report.json"
    arguments = ["conformance", CASE, "--write", str(folder)]
    there = ["--location", "s3://bucket/suite/"]
    assert CliRunner().invoke(app, [*arguments, *there]).exit_code == 0
    described = json.loads((folder / CASE / "v3" / "case.json").read_text())
    place = f"s3://bucket/suite/{CASE}/v3/converted"
    assert described["readings"]["converted"]["metadata"] == f"{place}/metadata/00002-converted.metadata.json"
    assert described["rule"]
    metadata = (folder / CASE / "v3" / "converted" / "metadata" / "00002-converted.metadata.json").read_text()
    assert json.loads(metadata)["location"] == place
    assert "file:" not in metadata
    again = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert again.exit_code == 2
    assert "is not empty" in again.output
    run = ["conformance", CASE, "--reader", "false {metadata}", "--format-version", "2"]
    assert CliRunner().invoke(app, [*run, "--report", str(report)]).exit_code == 1
    told = json.loads(report.read_text())
    assert told["counts"] == {"refused": 2}
    assert told["others"][f"{CASE}/v2/written"] == {"outcome": "refused", "reason": "ended with code 1"}


def test_the_same_bytes_are_written_every_time(tmp_path: Path) -> None:
    cases = chosen(
        ALL,
        ["key-of-type-decimal-38-10", "a-vector-re*", "*-was-replaced", "avro-*", "orc-*", "*-of-its-own"],
    )
    assert len(cases) == 7
    contents = []
    for name in ("first", "second"):
        write_all(cases, tmp_path / name, "s3://bucket/suite")
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        contents.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert len(contents[0]) > 100


def test_a_command_is_split_as_a_shell_does() -> None:
    reader = reader_of("duckdb -c \"SELECT '{metadata}'\" {snapshot}", 1)
    assert isinstance(reader, OneShot)
    assert vars(reader)["_command"] == ["duckdb", "-c", "SELECT '{metadata}'", "{snapshot}"]
    with pytest.raises(ValueError, match="empty"):
        reader_of(" ", 1)
