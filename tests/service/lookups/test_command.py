"""Keys from the command line and from files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from icestream import client, connection
from service.auth.buckets import too_many
from service.auth.models import Principal
from service.command.main import app as commands
from service.lookups.key_limits import KeyLimits
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
    made = {"name": "k", "role": "viewer", "scopes": ["lookups:read"]}
    monkeypatch.setenv("ICESTREAM_API_KEY", service.admin.post("/api-keys", json=made).json()["key"])
    monkeypatch.setenv("COLUMNS", "400")
    iceberg.delete_keys("db.t", [2])

    def look_up(*arguments: str, column: str = "id", given: bytes = b"") -> Result:
        command = ["tables", "lookup", "db.t", "--key-column", column, *arguments]
        return CliRunner().invoke(commands, command, input=given)

    shown = look_up("--key", "id=2", "--key", '{"id": 3}', "--key", "id=9", "--select", "region")
    assert shown.exit_code == 0, shown.output
    heading, deleted, live, absent = shown.stdout.splitlines()[:4]
    assert {"key.id", "live", "row.region"} <= {*heading.split()}
    assert (deleted.split()[:2], live.split()[:2]) == (["2", "no"], ["3", "yes"])
    assert absent.split()[0] == "9"
    assert "eu" in live
    # A key without a row comes first, and a column of the row has the name of the key's.
    first_absent = look_up("--key", "id=9", "--key", "id=3", "--select", "id", "--select", "region").stdout
    heading, absent, live = first_absent.splitlines()[:3]
    assert {"key.id", "row.id", "row.region"} <= {*heading.split()}
    assert (absent.split()[-2:], live.split()[-2:]) == (["-", "-"], ["3", "eu"])
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
    keys.write_bytes(b"\xef\xbb\xbfid\r\n3\r\n")  # as Excel writes it
    command = ["tables", "lookup", "local/db.t", "--file", str(keys)]  # the key may list no tables
    told = CliRunner().invoke(commands, [*command, "--key-column", "id"])
    assert (told.exit_code, "yes" in told.stdout) == (0, True), told.output
    unnamed = CliRunner().invoke(commands, command)
    assert (unnamed.exit_code, "--key-column" in unnamed.stderr) == (1, True), unnamed.output
    for mistake in (("--key", "id"), ("--key", "{"), ()):
        refused = look_up(*mistake)
        assert (refused.exit_code, bool(refused.stderr)) == (2, True), mistake
    for content, why in (
        (b"region\n\xe4\n", "no UTF-8"),
        (b"id,region\n1\n", "Line 2"),
        (b"region\n" + b"x" * 200_000, "no CSV: field larger"),
        (b'{"id":' + b"[" * 100_000, "no JSON"),
        (b'[{"id": 1}]', "a list of JSON"),
        (b'{"id": 1, "id": 2}', "stands twice"),
    ):
        keys.write_bytes(content)
        refused = look_up("--file", str(keys))
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.stderr


def test_a_file_of_any_size_is_asked_in_calls_that_the_service_takes(
    service: Running, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each within the bytes of a body; and once more when the service says when to come again."""
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setattr(client, "_BODY_BYTES", 2_000)
    refused, sizes = [1], list[int]()
    take = KeyLimits.take

    def limited(self: KeyLimits, caller: Principal, count: int) -> None:
        sizes.append(count)
        if len(sizes) == 3 and refused.pop():
            raise too_many("You asked for keys", 1, 0.1)
        take(self, caller, count)

    monkeypatch.setattr(KeyLimits, "take", limited)
    waits: list[float] = []
    monkeypatch.setattr(connection, "sleep", waits.append)
    keys = tmp_path / "keys.csv"
    texts = [f"{at:x>800}" for at in range(5)] + ["eu"]
    keys.write_text("\n".join(["region", *texts]))
    command = ["tables", "lookup", "db.t", "--key-column", "region", "--file", str(keys), "-o", "json"]
    told = CliRunner().invoke(commands, command)
    assert told.exit_code == 0, told.output
    results = json.loads(told.stdout)["results"]
    assert [one["key"]["region"] for one in results] == texts
    assert len(results[-1]["matches"]) == 3
    assert (len(sizes) > 3, sum(sizes) > len(texts), len(waits)) == (True, True, 1)
