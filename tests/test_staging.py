"""What waits on a staging branch, told from metadata that anybody may have written."""

from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataV2

from staging.history import (
    BRANCH,
    SEQUENCE_NUMBER,
    SNAPSHOT_ID,
    Publication,
    PublicationUnreadableError,
    staged_snapshots,
)


def snapshot(snapshot_id: int, parent: int | None, **properties: str) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": snapshot_id,
        "timestamp-ms": snapshot_id,
        "manifest-list": f"file:///t/{snapshot_id}.avro",
        "summary": {"operation": "append", **properties},
    }


def metadata(*snapshots: dict[str, Any], **heads: int) -> TableMetadataV2:
    return TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "location": "file:///t",
            "last-column-id": 1,
            "last-sequence-number": 9,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "id", "type": "long", "required": True}],
                }
            ],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "snapshots": list(snapshots),
            "refs": {name: {"snapshot-id": head, "type": "branch"} for name, head in heads.items()},
        }
    )


def test_ancestors_that_go_round_in_a_circle_are_each_looked_at_once() -> None:
    found = metadata(snapshot(1, 3), snapshot(2, 1), snapshot(3, 2), main=1, ingest=3)
    assert staged_snapshots(found, "ingest", "main") == []


@pytest.mark.parametrize("wrong", [{SNAPSHOT_ID: "x"}, {}])
def test_a_property_that_tells_no_snapshot_stops_publication_until_it_is_told_once(
    wrong: dict[str, str],
) -> None:
    told = snapshot(4, 1, **{BRANCH: "ingest", SEQUENCE_NUMBER: "2"}, **wrong)
    found = metadata(snapshot(1, None), snapshot(2, 1), snapshot(3, 2), told, main=4, ingest=3)
    with pytest.raises(PublicationUnreadableError, match=SNAPSHOT_ID):
        staged_snapshots(found, "ingest", "main")
    with pytest.raises(PublicationUnreadableError):
        Publication.last(found, "ingest", "main")
    assert [one.snapshot_id for one in staged_snapshots(found, "ingest", "main", after=2)] == [3]
