"""Readers of the table against the model."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from tests.faults.tables import look_for
from tests.soak.lookups import LookupChecks
from worker.io.storage import Storage


class Checks(LookupChecks):
    """What readers show must be the rows of the model."""

    def _check(self, rng: Random, *, before: bool = False) -> str:
        """The head's rows, by one reader."""
        if self.table.snapshot_id is None:
            return "no snapshot"
        fields = [column.field_id for column in self.schema.fields]
        kinds = [str(column.field_type) for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        when = "before the conversion" if before else "after it"
        deletes = self.live_deletes()
        # DuckDB 1.5.5 hides rows with null keys where equality deletes apply.
        if self._suits_duckdb and not deletes and rng.random() < 0.7:
            assert_same(self.table.duckdb_rows(kinds), expected, f"what DuckDB shows {when}")
        elif self.java_reads(deletes, fields):
            assert_same(
                self.table.java_rows(dict(zip(fields, kinds, strict=True))),
                expected,
                f"what Java shows {when}",
            )
        return f"{sum(expected.values())} rows"

    @property
    def _suits_duckdb(self) -> bool:
        """Whether DuckDB reads all that may be in the table."""
        is_parquet = self.setup.file_format == "parquet" and not self.setup.other_formats
        return (
            is_parquet
            and not self.model.defaults
            and not self.setup.leaves_out
            and not self.model.head.live_twice
        )

    def _check_past(self, rng: Random) -> str:
        """A kept snapshot's rows."""
        snapshot_id = rng.choice(list(self.model.snapshots))
        state = self.model.snapshots[snapshot_id]
        fields = [column.field_id for column in self.table.schema_of(snapshot_id).fields]
        if not self.java_reads(state.deletes, fields):
            return "an older snapshot is not for Java"
        expected = self.model.rows(state, fields)
        shown_by_java = self.table.java_rows({i: self.kinds[i] for i in fields}, snapshot_id)
        assert_same(shown_by_java, expected, f"what Java shows of snapshot {snapshot_id}")
        return f"an older snapshot shows {sum(expected.values())} rows"

    def _check_files_are_there(self) -> None:
        """Each that a snapshot or the index names."""
        self.table.refresh()
        self.table.forget()
        gone = look_for(self.table.metadata_location, Storage(), [self.jobs.index_location]).gone
        assert not gone, f"needed, and gone: {gone}"


def assert_same(shown_rows: Counter[tuple[Any, ...]], expected: Counter[tuple[Any, ...]], what: str) -> None:
    if shown_rows != expected:
        more, fewer = list((shown_rows - expected).elements()), list((expected - shown_rows).elements())
        raise AssertionError(
            f"{what}: {len(more)} rows too many {more[:5]}, {len(fewer)} missing {fewer[:5]}"
        )
