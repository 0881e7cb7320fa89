"""An index that can't be read is given up and made anew, and no conversion waits for that."""

from __future__ import annotations

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, equality_delete_files, garble
from worker import footers

pytestmark = pytest.mark.integration


def indexed(exactly: Exactness) -> TableBuilder:
    """Five deletes of a hundred rows, all of them indexed."""
    table = exactly.table(format_version=3)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(100)], files=2)
    table.delete_keys([{"id": i} for i in range(0, 100, 20)])
    exactly.jobs.run("index")
    return table


def damage(exactly: Exactness, part: str, how: str) -> None:
    pattern = {
        "entries": "entries_1_g1/bucket-0/*.parquet",
        "dictionary": "files_1_g1/bucket-0/*.parquet",
        "manifest": "files_1_g1/manifest/manifest-list-*",
        "snapshot": "entries_1_g1/snapshot/snapshot-*",
    }
    damaged = list(exactly.jobs.index.glob(f"*.db/{pattern[part]}"))
    assert damaged
    for file in damaged:
        if how == "missing":
            file.unlink()
        elif file.suffix == ".parquet":
            garble(file)
        else:
            file.write_bytes(b"garbled")
    footers.footer.cache_clear()


DAMAGES = pytest.mark.parametrize(
    ("part", "how"),
    [
        ("entries", "missing"),
        ("entries", "garbled"),
        ("dictionary", "missing"),
        ("dictionary", "garbled"),
        ("manifest", "missing"),
        ("manifest", "garbled"),
        ("snapshot", "garbled"),
    ],
)


@DAMAGES
def test_a_conversion_scans_and_a_damaged_index_is_not_used_again(
    exactly: Exactness, part: str, how: str
) -> None:
    table = indexed(exactly)
    damage(exactly, part, how)
    before = exactly.spark_rows(table)
    converted = exactly.jobs.run("convert")
    assert [one["source"] for one in converted.result["key_sets"]] == ["scan"]
    assert any("the index can't be used" in sentence for sentence in converted.result["decisions"])
    assert (exactly.spark_rows(table), equality_delete_files(exactly.spark, table.identifier)) == (before, [])
    (anew,) = converted.health["key_sets"]
    assert (anew["generation"], anew["coverage"]) == (2, 0.0)
    (filled,) = exactly.jobs.run("index").health["key_sets"]
    assert (filled["generation"], filled["coverage"]) == (2, 1.0)
    assert [path.name for path in exactly.jobs.index.glob("*.db/entries_*")] == ["entries_1_g2"]


@pytest.mark.parametrize("part", ["dictionary", "manifest"])
def test_an_index_job_makes_a_damaged_index_anew(exactly: Exactness, part: str) -> None:
    table = indexed(exactly)
    damage(exactly, part, "garbled")
    told = exactly.jobs.run("compact")
    assert "The next index job makes a new one" in " ".join(told.result["decisions"])
    assert told.health["key_sets"][0]["coverage"] == 0.0
    (anew,) = exactly.jobs.run("index").health["key_sets"]
    assert (anew["generation"], anew["coverage"]) == (2, 1.0)
    before = exactly.spark_rows(table)
    assert exactly.jobs.run("convert").result["key_sets"][0]["source"] == "index"
    assert exactly.spark_rows(table) == before
