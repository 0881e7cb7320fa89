"""Keys from the command line and from files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.command.main import app as commands
from tests.service.conftest import (
    ADMIN_KEY,
    Running,
    alike_on_both,
)
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both


def test_keys_of_the_command_line_and_of_files_are_looked_up(
    service: Running, table: str, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("COLUMNS", "400")
    iceberg.delete_keys("db.t", [2])

    def look_up(*arguments: str, column: str = "id", given: bytes = b"") -> Result:
        command = ["tables", "lookup", "db.t", "--key-column", column, *arguments]
        return CliRunner().invoke(commands, command, input=given)

    shown = look_up("--key", "id=2", "--key", '{"id": 3}', "--key", "id=9", "--select", "region")
    assert shown.exit_code == 0, shown.output
    heading, deleted, live, absent = shown.stdout.splitlines()[:4]
    assert "region" in heading
    assert (deleted.split()[:2], live.split()[:2]) == (["2", "no"], ["3", "yes"])
    assert absent.split()[0] == "9"
    assert "eu" in live
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n3\n" + "7\n" * 10_000)
    lines = tmp_path / "keys.jsonl"
    lines.write_text('{"id": 3}\n\n{"id": "7"}\n')
    for file, count in ((keys, 10_001), (lines, 2)):
        found = json.loads(look_up("--file", str(file), "--branch", "main", "-o", "json").stdout)
        assert [len(one["matches"]) for one in found["results"]] == [1] + [0] * (count - 1)
    texts = ["a\nb", "a\r\nb", "a\u2028b", "ä"]
    for text in (
        "region\r\n" + "\r\n".join(f'"{text}"' for text in texts),
        "\n".join(json.dumps({"region": text}, ensure_ascii=False) for text in texts),
    ):
        keys.write_bytes(text.encode())
        for source in (str(keys), "-"):
            told = look_up("--file", source, "-o", "json", column="region", given=text.encode())
            results = json.loads(told.stdout)["results"]
            assert [one["key"]["region"] for one in results] == texts
    for mistake in (("--key", "id"), ("--key", "{"), ()):
        refused = look_up(*mistake)
        assert (refused.exit_code, bool(refused.stderr)) == (2, True), mistake
    for content, why in (
        (b"region\n\xe4\n", "no UTF-8"),
        (b"id,region\n1\n", "Line 2"),
        (b"region\n" + b"x" * 200_000, "no CSV: field larger"),
        (b'{"id":' + b"[" * 100_000, "no JSON"),
    ):
        keys.write_bytes(content)
        refused = look_up("--file", str(keys))
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.stderr
