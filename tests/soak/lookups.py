"""Where lookups find the keys of a table, against the model."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from pyiceberg.serializers import FromInputFile

from tests.soak.drawing import MEASURE
from tests.soak.model import Position, State
from tests.soak.modelled import ModelledTable
from tests.soak.values import in_json, shown
from worker.index.key_set_index import database_name, open_index
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.keys.schema_fields import resolve_key_set
from worker.query.errors import UnreadableError
from worker.query.json_keys import keys_of_json
from worker.query.places import Coverage, Places
from worker.query.rows import rows_at
from worker.query.snapshot import TableSnapshot, snapshot_of

_KEPT_BYTES = 2**20
Found = tuple[tuple[Any, ...], str, int, bool]  # key, data file, position, live


class LookupChecks(ModelledTable):
    """A lookup finds each row of a key, says whether it is live, and finds nothing else."""

    def look_up(self, rng: Random) -> str:
        """Asks for every key of a key set that some row of a snapshot has."""
        snapshot_id, state = self.table.snapshot_id, self.model.head
        usable = [key_set for key_set in self.usable_key_sets(self.schema) if MEASURE not in key_set]
        if snapshot_id is None or not usable:
            return "nothing to look up"
        fields = rng.choice(usable)
        if rng.random() < 0.3:
            snapshot_id = rng.choice(list(self.model.snapshots))
            state = self.model.snapshots[snapshot_id]
        storage = Storage()
        metadata = FromInputFile.table_metadata(storage.io.new_input(self.table.metadata_location))
        key_set = resolve_key_set(metadata, fields)
        # Fields are in ascending order in a key set.
        expected = self._expected(state, key_set.equality_field_ids)
        asked = [*{key: None for key, *_ in expected}]
        keys = [
            {column.name: in_json(value) for column, value in zip(key_set.columns, key, strict=True)}
            for key in asked
        ]
        database = database_name(str(metadata.table_uuid), "main")
        index = open_index(IndexWarehouse(self.jobs.index_location, storage), database, key_set)
        try:
            snapshot = TableSnapshot(
                storage, metadata, snapshot_of(metadata, snapshot_id=snapshot_id), Cache(_KEPT_BYTES)
            )
            places = Coverage(snapshot, key_set, index).find(keys_of_json(key_set, keys))
        except UnreadableError as error:
            # Float keys, and timestamps in ORC, can't be told.
            if any(MEASURE in one.fields for one in state.deletes) or self._has_orc_files(state):
                return f"no lookup: {error}"
            raise
        files = places.data_files.select(places.ordinals)
        found = Counter(
            (asked[key], file.path, position, deleted is None)
            for key, file, position, deleted in zip(
                places.keys.tolist(), files, places.positions.tolist(), places.deleted_by, strict=True
            )
        )
        if found != expected:
            more, fewer = [*(found - expected).elements()], [*(expected - found).elements()]
            raise AssertionError(
                f"a lookup of {key_set} at {snapshot_id}: {len(more)} too many {more[:5]}, "
                f"{len(fewer)} missing {fewer[:5]}"
            )
        rows = self._check_found_rows(snapshot, places)
        return f"{len(keys)} keys of {key_set} looked up, {places.data_files_scanned} files scanned, {rows}"

    def _check_found_rows(self, snapshot: TableSnapshot, places: Places) -> str:
        """What the rows hold, in the columns that the snapshot had."""
        schema = snapshot.schema
        try:
            rows = rows_at(snapshot, places, schema)
        except UnreadableError as error:
            if self.setup.other_formats or self.setup.file_format != "parquet":
                return f"no rows: {error}"
            raise
        kinds = [str(field.field_type) for field in schema.fields]
        fields = [field.field_id for field in schema.fields]
        files = places.data_files.select(places.ordinals)
        for row, file, position in zip(rows.to_pylist(), files, places.positions.tolist(), strict=True):
            found = tuple(shown(kind, value) for kind, value in zip(kinds, row.values(), strict=True))
            expected = self.model.row((file.path, position), fields)
            assert found == expected, f"row {position} of {file.path} is {found}, not {expected}"
        return f"{rows.num_rows} rows"

    def _expected(self, state: State, fields: tuple[int, ...]) -> Counter[Found]:
        expected: Counter[Found] = Counter()
        for path, sequence_numbers in state.files.items():
            file = self.model.files[path]
            for sequence_number in sequence_numbers:
                visible: set[Position] = set(self.model.visible_of(state, path, sequence_number))
                for position, row in enumerate(file.rows):
                    key = self.model.key(file, row, fields)
                    expected[key, path, position, (path, position) in visible] += 1
        return expected

    def _has_orc_files(self, state: State) -> bool:
        return any(self.model.files[path].file_format == "orc" for path in state.files) or any(
            delete.file_format == "orc" for delete in state.deletes
        )
