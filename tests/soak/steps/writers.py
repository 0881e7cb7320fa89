"""Steps of the writers of rows: batch and streaming ones."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from tests.factories import WrittenFile
from tests.soak.drawing import SERIAL
from tests.soak.model import EqualityDelete
from tests.soak.modelled import ModelledTable


class WriterSteps(ModelledTable):
    """Rows that come, change and go."""

    last_upsert: tuple[list[WrittenFile], list[tuple[WrittenFile, EqualityDelete]]] | None = None

    def append(self, rng: Random) -> str:
        schema, spec = self._schema_and_spec(rng)
        rows = [self._new_row(rng, schema) for _ in range(rng.randint(1, 14))]
        files = self._data_files(rng, rows, schema, spec)
        self._commit(files)
        return f"{len(rows)} rows in {len(files)} files, schema {schema.schema_id}, spec {spec.spec_id}"

    def upsert(self, rng: Random) -> str:
        """Rows and the deletes of their keys in one commit; repeated keys among them as Flink writes them."""
        schema, spec = self._schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        if not key_sets:
            return "no key"
        key_set = rng.choice(key_sets)
        rows = []
        for row in self._some_rows(rng, schema, 5):
            for _ in range(rng.choice([1, 1, 1, 2])):
                fresh = self._new_row(rng, schema)
                rows.append({**row, **{i: value for i, value in fresh.items() if i not in key_set}})
        deletes = self._equality_deletes(rng, rows, key_set, schema, spec)
        files = self._data_files(rng, rows, schema, spec)
        positions: dict[str, list[int]] = {}
        if rng.random() < 0.5:
            for file in files:
                last = {}
                for at, kept in enumerate(self.model.files[file.path].rows):
                    last[tuple(kept.get(i) for i in key_set)] = at
                older = set(range(len(self.model.files[file.path].rows))) - set(last.values())
                if older:
                    positions[file.path] = sorted(older)
        self._commit(files, deletes, positions)
        self.last_upsert = None if positions else (files, deletes)
        return f"{len(rows)} rows by {key_set}, schema {schema.schema_id}, spec {spec.spec_id}" + (
            f", positions {list(positions.values())}" if positions else ""
        )

    def append_again(self, rng: Random) -> str:
        """Some live files once more, as a writer does that does not know of its first commit."""
        paths = [path for path in self.model.files if path in self.model.head.files]
        chosen = rng.sample(paths, min(len(paths), rng.randint(1, 2)))
        if not chosen or not self._may_come_again(chosen):
            return "no files"
        self._commit([self.written[path] for path in chosen])
        return f"{chosen}"

    def upsert_again(self, rng: Random) -> str:
        """The last upsert, with its deletes."""
        if self.last_upsert is None:
            return "no upsert"
        files, deletes = self.last_upsert
        live = self.table.live_equality_deletes()
        if not all(delete.path in live for _, delete in deletes):
            return "its deletes are gone"
        if not self._may_come_again([file.path for file in files]):
            return "its files are gone"
        self._commit(files, deletes)
        return f"{[file.path for file in files]}"

    def _may_come_again(self, paths: list[str]) -> bool:
        """Java can't read a file that is newer than its deletion vector."""
        if not self.model.head.files.keys() >= set(paths):
            return False
        return self.version < 3 or not any(
            live.referenced in paths and live.file.json["file-format"].lower() == "puffin"
            for live in self.table.live(deletes=True)
        )

    def delete(self, rng: Random) -> str:
        """Equality deletes of one or two key sets in one commit."""
        schema, spec = self._schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        deletes = []
        for key_set in rng.sample(key_sets, min(len(key_sets), rng.choice([1, 1, 2]))):
            rows = self._some_rows(rng, schema, 6)
            deletes += self._equality_deletes(rng, rows, key_set, schema, spec)
        if not deletes:
            return "no key"
        self._commit(equality=deletes)
        return "; ".join(
            f"{delete.fields} in {sorted(delete.keys, key=repr)} of {delete.scope or 'all'}"
            for _, delete in deletes
        )

    def delete_positions(self, rng: Random) -> str:
        """Positions, also of rows that are deleted already."""
        positions = self._some_positions(rng)
        if not positions:
            return "no data files"
        merges = rng.random() < 0.5
        self._commit(positions=positions, merges=merges)
        return f"{positions} {'merged' if merges else 'by partition'}"

    def _some_positions(self, rng: Random) -> dict[str, list[int]]:
        live = self._live_files()
        chosen = rng.sample(live, min(len(live), rng.randint(1, 3)))
        return {path: self._sample_rows(rng, path) for path in chosen}

    def _sample_rows(self, rng: Random, path: str) -> list[int]:
        rows = len(self.model.files[path].rows)
        return sorted(rng.sample(range(rows), rng.randint(1, min(3, rows))))

    def merge(self, rng: Random) -> str:
        """Visible rows replaced as Spark's MERGE does: their positions and new data files in one commit."""
        twice = self.model.head.live_twice
        visible = [one for one in self.model.visible(self.model.head) if one[0] not in twice]
        if not visible:
            return "no rows"
        chosen = rng.sample(visible, min(len(visible), rng.randint(1, 5)))
        schema, spec = self.schema, self.table.metadata.spec()
        ids = [column.field_id for column in schema.fields]
        rows = []
        positions: dict[str, list[int]] = defaultdict(list)
        for position in chosen:
            positions[position[0]].append(position[1])
            row = dict(zip(ids, self.model.row(position, ids), strict=True))
            if rng.random() < 0.8:
                rows.append(row | ({SERIAL: next(self.serial)} if SERIAL in row else {}))
        files = self._data_files(rng, rows, schema, spec)
        self._commit(files, positions=positions)
        return f"{len(chosen)} rows of {len(positions)} files, {len(rows)} again"
