"""What is asked of a write of rows by key."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, JsonValue, model_validator
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.records.reports import Place

ROWS_AT_MOST = 1_000
"""Of one request."""
COLUMNS_AT_MOST = 1_000
FILES_AT_MOST = 1_000


class WriteRequest(Message):
    """What all writes have in common."""

    files: list[Place] | None = ModelField(default=None, min_length=1, max_length=FILES_AT_MOST)
    """These files of Parquet or Arrow IPC have it instead, with a column for each: their locations, in the
    store of the table and under the allowed ones. They are read when the job runs, and never deleted."""
    key_columns: list[Place] | None = ModelField(default=None, min_length=1, max_length=COLUMNS_AT_MOST)
    """These columns make the key, by their dotted names; without them, the table's identifier fields do, or
    else its only key set."""
    dry_run: bool = False
    """Write nothing: say what would be added and deleted."""
    priority: Annotated[int, ModelField(ge=-100, le=100)] | None = None
    """The job goes before or behind other waiting jobs; the policy's priority holds if left out."""

    @property
    def sent(self) -> list[dict[str, JsonValue]] | None:
        """What came with the request itself."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.sent is None) == (self.files is None):
            raise ValueError("what is written comes with the request, or from files")
        if self.files is not None and len(set(self.files)) < len(self.files):
            raise ValueError("a file is named twice")
        return self


class UpsertRequest(WriteRequest):
    """Rows to be written by key."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example({"rows": [{"id": 17, "region": "eu"}], "key_columns": ["id"]}),
    )

    rows: list[dict[str, JsonValue]] | None = ModelField(default=None, min_length=1, max_length=ROWS_AT_MOST)
    """Each row has a value for each column of the table, as Iceberg writes single values in JSON, or null;
    integers may be text too."""
    only_if_newer_than: Place | None = None
    """A row is written only if it has more in this column than each live row of its key; null is less than
    anything."""
    insert_only: bool = False
    """Rows whose keys have a live row are left out, and listed."""
    duplicates: Literal["refuse", "last"] = "refuse"
    """This says whether several rows with one key are refused, or the last of them counts."""

    @property
    def sent(self) -> list[dict[str, JsonValue]] | None:
        return self.rows

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.insert_only and self.only_if_newer_than is not None:
            raise ValueError("either rows that exist are left alone, or newer ones replace them")
        return self


class DeleteRequest(WriteRequest):
    """Keys whose rows are to be deleted."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra=example({"keys": [{"id": 17}], "key_columns": ["id"]})
    )

    keys: list[dict[str, JsonValue]] | None = ModelField(default=None, min_length=1, max_length=ROWS_AT_MOST)
    """Each key has a value for each key column, as Iceberg writes single values in JSON, or null; integers
    may be text too."""

    @property
    def sent(self) -> list[dict[str, JsonValue]] | None:
        return self.keys
