"""Questions about keys, and answers."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, JsonValue, ValidationInfo, field_validator
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.records.reports import Amount, Place, SnapshotId

KEYS_AT_MOST = 10_000
"""Of one question."""
SNAPSHOTS_AT_MOST = 100
"""Of one history."""
COLUMNS_AT_MOST = 1_000


class KeyOptions(Message):
    """Of which snapshot somebody asks, and for what."""

    branch: str | None = ModelField(default=None, min_length=1, max_length=1_000)
    """The question is about this branch or tag; without it, about the branch that the table is enrolled
    with."""
    snapshot_id: SnapshotId | None = None
    """The question is about this snapshot, instead of a branch; without it, about the newest of the
    branch."""
    select: list[Place] | None = ModelField(default=None, min_length=1, max_length=COLUMNS_AT_MOST)
    """These columns of the rows are returned, by their dotted names; without any, only places are."""

    @field_validator("snapshot_id")
    @classmethod
    def _stands_alone(cls, snapshot_id: int | None, others: ValidationInfo) -> int | None:
        if snapshot_id is not None and others.data.get("branch") is not None:
            raise ValueError("name either a branch or tag, or a snapshot")
        return snapshot_id


class LookupOptions(KeyOptions):
    """What is asked about keys, whatever they are."""

    # In the query of a question in Arrow, a word that is misspelt would have another snapshot answered.
    model_config = ConfigDict(extra="forbid", strict=False)

    schema_id: int | None = ModelField(default=None, ge=0, le=2**31 - 1)
    """The columns to tell are those of this schema of the table, such as that of another answer; without it,
    of the table's own for a branch, and for a snapshot or tag of the one that the snapshot was written
    with."""
    max_staleness_seconds: float = ModelField(default=1, ge=0, le=3_600)
    """The catalog is not asked for the table's head again if it was within this many seconds."""


class LookupRequest(LookupOptions):
    """This is what is asked about keys."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra=example({"keys": [{"id": 17}], "key_columns": ["id"], "select": ["id"]}),
    )

    keys: list[dict[str, JsonValue]] = ModelField(min_length=1, max_length=KEYS_AT_MOST)
    """Each key has a value for each key column, as Iceberg writes single values in JSON; integers may be text
    too."""
    key_columns: list[Place] | None = ModelField(default=None, min_length=1, max_length=COLUMNS_AT_MOST)
    """These columns make the key; they must be named where the table has several key sets."""


class Match(Message):
    """This is a place of a row that has the key."""

    data_file: str
    """The row is in the data file at this path."""
    position: Amount
    """The row has this position in the file, counted from 0."""
    partition: dict[str, JsonValue]
    """The file is of this partition, by the fields of its partition spec."""
    data_sequence_number: Amount
    """The file has this data sequence number."""
    live: bool
    """Readers of the snapshot see the row if this is true."""
    deleted_by: str | None
    """The row is hidden by the delete file at this path; null for a live one."""
    row: dict[str, JsonValue] | None = None
    """The row has the columns that were selected."""


class KeyMatches(Message):
    """This is what rows there are that have one key."""

    key: dict[str, JsonValue]
    """The key is given as the question has it."""
    matches: list[Match]
    """The matches are all rows with the key in data files of the snapshot, deleted ones too."""


class LookupAnswer(Message):
    """This is what is known of all keys of a question."""

    snapshot_id: int | None
    """The answer is about this snapshot; none for a table without any."""
    schema_id: int
    """The columns are of this schema of the table."""
    head_age_seconds: float
    """The catalog was asked for the table's head this many seconds ago."""
    key_columns: list[str]
    """The key is made of these columns."""
    data_files_from_index: Amount
    """This many data files of the snapshot were answered for by the index."""
    data_files_scanned: Amount
    """This many data files of the snapshot were read, since the index does not cover them."""
    rows_scanned: Amount
    """This many rows were read: of data files that the index does not cover, and for the keys that pending
    deletes of another key have."""
    results: list[KeyMatches]
    """There is one result for each key, in the order of the question."""


class KeyHistoryRequest(KeyOptions):
    """This is what is asked about the history of a key."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example({"key": {"id": 17}, "key_columns": ["id"], "snapshots": 10}),
    )

    key: dict[str, JsonValue] = ModelField(min_length=1, max_length=COLUMNS_AT_MOST)
    """The key has a value for each key column, as in a lookup."""
    key_columns: list[Place] | None = ModelField(default=None, min_length=1, max_length=COLUMNS_AT_MOST)
    """These columns make the key; they must be named where the table has several key sets."""
    snapshots: int = ModelField(default=20, ge=1, le=SNAPSHOTS_AT_MOST)
    """At most this many snapshots are looked at: the one that is asked about, and those before it. Each
    counts as a key that is asked about."""


class KeyChange(StrEnum):
    """This is what a snapshot did to the live rows of a key. `appeared`: there were none, and are some.
    `deleted`: there were some, and are none. `added`: all that there were are still there, and more.
    `removed`: some of them are still there, and no others. `moved`: they lie in other places, by a snapshot
    that changes no row (its operation is `replace`). `replaced`: there are others, or they lie in other
    places. `unchanged`: they are the same rows in the same places."""

    APPEARED = "appeared"
    DELETED = "deleted"
    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class EarlierSnapshots(StrEnum):
    """This is what was before the oldest snapshot of a history. `none`: it is the table's first. `left_out`:
    more snapshots than were asked for. `expired`: snapshots that the table keeps no longer, if there were
    any."""

    NONE = "none"
    LEFT_OUT = "left_out"
    EXPIRED = "expired"


class NotTold(Message):
    """This is why nobody can tell what rows a key had in a snapshot."""

    code: str
    """Programs know the reason by its code: the name of a problem, such as `out-of-time`."""
    detail: str
    """The reason says what is the case, in words."""


class KeyInSnapshot(Message):
    """This is what rows a key had in a snapshot."""

    snapshot_id: int
    """The snapshot has this id."""
    committed_at: datetime | None
    """The snapshot was committed at this time, as its metadata says; null for what is no time."""
    operation: str | None
    """The snapshot has this operation, as its metadata says: `append`, `overwrite`, `delete` or `replace`."""
    change: KeyChange | None
    """The snapshot did this to the live rows of the key; null where its own rows or those before it are not
    known."""
    matches: list[Match] | None
    """These are all rows with the key in data files of the snapshot, deleted ones too; null where they are
    not known."""
    not_told: NotTold | None
    """The matches are not known for this reason; null where they are."""
    data_files_from_index: Amount | None
    """This many data files of the snapshot were answered for by the index; null where nothing is known."""
    data_files_scanned: Amount | None
    """This many data files of the snapshot were read, since the index does not cover them; null where nothing
    is known."""
    rows_scanned: Amount | None
    """This many rows were read: of data files that the index does not cover, and for the keys that pending
    deletes of another key have; null where nothing is known."""


class KeyHistory(Message):
    """This is what rows a key had in the newest snapshots."""

    key: dict[str, JsonValue]
    """The key is given as the question has it."""
    key_columns: list[str]
    """The key is made of these columns."""
    head_age_seconds: float
    """The catalog was asked for the table's metadata this many seconds ago."""
    snapshots: list[KeyInSnapshot]
    """These are the snapshots of the branch, the newest first: each is the parent of the one before it in the
    list."""
    earlier_snapshots: EarlierSnapshots
    """The oldest of these snapshots has others before it, or none, as this says."""


class ServerRefusal(Message):
    """Why a lookup server does not answer."""

    model_config = ConfigDict(extra="ignore")

    code: str = ModelField(max_length=100)
    """What is the case, for programs."""
    title: str = ModelField(max_length=200)
    """The same in few words."""
    detail: str = ""
    """The same with what it is about."""
    remedy: str = ""
    """The remedy says what to do about it."""
