"""Steps of the writers of rows and of the table's maintenance."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, VoidTransform
from pyiceberg.types import NestedField

from tests.lookups.modelled import ModelledTable
from tests.soak.drawing import KEY, SERIAL
from tests.soak.model import applies
from tests.soak.values import KEY_TYPES, VALUES, WIDER, WITH_DEFAULTS, in_json


class WritingSteps(ModelledTable):
    """Rows that come, change and go, and files that are replaced."""

    def append(self, rng: Random) -> str:
        ref, (schema, spec) = self.branch(rng), self.schema_and_spec(rng)
        rows = [self.new_row(rng, schema) for _ in range(rng.randint(1, 4))]
        files = self.data_files(rng, rows, schema, spec)
        self.commit(rng, ref, files)
        return f"{len(rows)} rows in {len(files)} files of spec {spec.spec_id} on {ref}"

    def append_again(self, rng: Random) -> str:
        """A live file once more, or twice, as a writer does that does not know of its first commit."""
        ref = self.branch(rng)
        state = self.state(ref)
        paths = [path for path in self.live_once(state) if path not in state.vectors]
        if not paths:
            return "no files"
        path, times = rng.choice(paths), rng.choice([1, 1, 2])
        self.commit(rng, ref, [self.written[path]] * times)
        return f"{path} {times} times on {ref}"

    def upsert(self, rng: Random) -> str:
        """Rows and the deletes of their keys in one commit."""
        ref, (schema, spec) = self.branch(rng), self.schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        if not key_sets:
            return "no key"
        key_set = rng.choice(key_sets)
        rows = self.some_rows(rng, self.state(ref), schema)
        deletes = self.equality_deletes(rng, rows, key_set, schema, spec)
        self.commit(rng, ref, self.data_files(rng, rows, schema, spec), deletes)
        return f"{len(rows)} rows by {key_set} of spec {spec.spec_id} on {ref}"

    def delete(self, rng: Random) -> str:
        """Equality deletes of one or two key sets in one commit."""
        ref, (schema, spec) = self.branch(rng), self.schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        deletes = []
        for key_set in rng.sample(key_sets, min(len(key_sets), rng.choice([1, 1, 2]))):
            rows = self.some_rows(rng, self.state(ref), schema)
            deletes += self.equality_deletes(rng, rows, key_set, schema, spec)
        if not deletes:
            return "no key"
        self.commit(rng, ref, equality=deletes)
        return f"on {ref}: " + "; ".join(
            f"{delete.fields} in {sorted(delete.keys, key=repr)} of {delete.scope or 'all'}"
            for _, delete in deletes
        )

    def delete_positions(self, rng: Random) -> str:
        """Positions, also of rows that are deleted already."""
        ref = self.branch(rng)
        live = self.live_once(self.state(ref))
        positions = {}
        for path in rng.sample(live, min(len(live), rng.randint(1, 2))):
            rows = len(self.model.files[path].rows)
            positions[path] = sorted(rng.sample(range(rows), rng.randint(1, min(2, rows))))
        if not positions:
            return "no data files"
        self.commit(rng, ref, positions=positions)
        return f"{positions} on {ref}"

    def hand_off(self, rng: Random) -> str:
        """A conversion: some equality deletes go, and the rows that they delete are deleted by position."""
        ref = self.branch(rng)
        state = self.state(ref)
        chosen = rng.sample(state.deletes, min(len(state.deletes), rng.randint(1, 3)))
        if not chosen:
            return "no equality deletes"
        positions: dict[str, set[int]] = defaultdict(set)
        for path, numbers in state.files.items():
            file = self.model.files[path]
            deletes = [one for one in chosen if any(applies(one, file, number) for number in numbers)]
            for at, row in enumerate(file.rows):
                if any(self.model.key(file, row, one.fields) in one.keys for one in deletes):
                    positions[path].add(at)
        if positions.keys() & state.live_twice:
            return "files of one path can't be told apart"
        self.commit(rng, ref, positions=positions, without=chosen)
        places = {path: sorted(of_file) for path, of_file in positions.items()}
        return f"{len(chosen)} deletes became {places} on {ref}"

    def rewrite(self, rng: Random) -> str:
        """A compaction of data files: its files keep the sequence number of the snapshot that it read."""
        ref = self.branch(rng)
        state, head = self.state(ref), self.table.head(ref)
        live = self.live_once(state)
        if head is None or not live:
            return "no data files"
        old = set(rng.sample(live, rng.randint(1, len(live))))
        schema, spec = self.table.schema, self.table.spec
        ids = [column.field_id for column in schema.fields]
        visible = [place for place in self.model.visible(state) if place[0] in old]
        rows = [dict(zip(ids, self.model.row(place, ids), strict=True)) for place in visible]
        rng.shuffle(rows)
        new = self.data_files(rng, rows, schema, spec)
        removed = self.entries_of(ref, old)
        if rng.random() < 0.8:  # or else its vectors dangle
            removed += self.vectors_of(ref, old)
        number = head.described["sequence-number"]
        self.table.commit(rng, ref, new, removed, data_sequence_number=number)
        state = state.without_files(sorted(old)).with_files([file.path for file in new], number)
        self.note(ref, replace(state, vectors=state.vectors - old))
        return f"{sorted(old)} became {[file.path for file in new]}, number {number}, on {ref}"

    def drop_file(self, rng: Random) -> str:
        ref = self.branch(rng)
        state = self.state(ref)
        live = self.live_once(state)
        if not live:
            return "no data files"
        path = rng.choice(live)
        self.table.commit(rng, ref, [], self.entries_of(ref, [path]) + self.vectors_of(ref, [path]))
        self.note(ref, replace(state.without_files([path]), vectors=state.vectors - {path}))
        return f"{path} on {ref}"

    # Snapshots

    def roll_back(self, rng: Random) -> str:
        """To any kept snapshot, back or forth."""
        return self._set_ref("main", "branch", rng)

    def make_branch(self, rng: Random) -> str:
        return self._set_ref("dev", "branch", rng)

    def make_tag(self, rng: Random) -> str:
        return self._set_ref(rng.choice(["v1", "v2"]), "tag", rng)

    def _set_ref(self, name: str, kind: str, rng: Random) -> str:
        if not self.table.snapshots:
            return "no snapshot"
        known = list(self.table.snapshots)
        at = known[-1] if rng.random() < 0.5 else rng.choice(known)
        self.table.change(refs={**self.table.refs, name: (kind, at)})
        return f"{name} is at snapshot {known.index(at)} of {len(known)}"

    def fast_forward(self, rng: Random) -> str:
        """Main becomes what a branch is, if it is a later one."""
        head, main = self.table.head("dev"), self.table.head("main")
        later = head
        while later is not None and later is not main:
            parent = later.parent_id
            later = None if parent is None else self.table.snapshots.get(parent)
        if head is None or main is None or later is None:
            return "nothing to follow"
        self.table.change(refs={**self.table.refs, "main": ("branch", head.snapshot_id)})
        return "to dev"

    def expire(self, rng: Random) -> str:
        """Snapshots that no branch and no tag is at, with the files that only they need."""
        if len(self.table.refs) > 1 and rng.random() < 0.3:
            name = rng.choice([name for name in self.table.refs if name != "main"])
            self.table.change(refs={ref: at for ref, at in self.table.refs.items() if ref != name})
        needed = {at for _, at in self.table.refs.values()}
        others = [snapshot_id for snapshot_id in self.table.snapshots if snapshot_id not in needed]
        expired = others if rng.random() < 0.6 else others[: rng.randint(0, len(others))]
        if not expired:
            return "nothing to expire"
        self.forget_past()
        self.table.expire(expired)
        return f"{len(expired)} snapshots"

    def forget_past(self) -> None:
        """What was known of the table may lead to files that are about to go."""
        raise NotImplementedError

    # Schemas and specs

    def _change_schema(self, fields: list[NestedField], last_column_id: int | None = None) -> None:
        table = self.table
        schema = Schema(*fields, schema_id=len(table.schemas))
        last = table.last_column_id if last_column_id is None else last_column_id
        table.change(schemas=[*table.schemas, schema], last_column_id=last)

    def add_column(self, rng: Random) -> str:
        """Now and then it makes a key."""
        field_id, kind = self.table.last_column_id + 1, rng.choice([*WITH_DEFAULTS, *KEY_TYPES])
        described = {"id": field_id, "name": f"c{field_id}", "type": kind, "required": False}
        default = None
        if self.table.version >= 3 and kind in WITH_DEFAULTS and rng.random() < 0.6:
            default = VALUES[kind][1]
            described |= {"initial-default": in_json(default), "write-default": in_json(default)}
        column = NestedField.model_validate(described)
        self._change_schema([*self.table.schema.fields, column], field_id)
        if default is not None:
            self.model.defaults[field_id] = default
        if rng.random() < 0.5:
            self.key_sets.append(rng.choice([(field_id,), (KEY, field_id)]))
        return f"{column.name} {kind} default {default!r}, key sets {self.key_sets}"

    def drop_column(self, rng: Random) -> str:
        """A column that no spec needs; equality deletes may."""
        sources = {part.source_id for spec in self.table.specs for part in spec.fields}
        fields = list(self.table.schema.fields)
        droppable = [column for column in fields if column.field_id not in sources]
        if len(fields) < 3 or not droppable:
            return "none left"
        column = rng.choice(droppable)
        self._change_schema([one for one in fields if one is not column])
        return column.name

    def rename_column(self, rng: Random) -> str:
        """Now and then to the former name of another column."""
        fields = list(self.table.schema.fields)
        column, taken = rng.choice(fields), {one.name for one in fields}
        former = {one.name for schema in self.table.schemas for one in schema.fields} - taken
        name = rng.choice([*sorted(former), f"{column.name}x"])
        if name in taken:
            return "taken"
        self._change_schema(
            [one.model_copy(update={"name": name}) if one is column else one for one in fields]
        )
        return f"{column.name} to {name}"

    def widen_column(self, rng: Random) -> str:
        fields = list(self.table.schema.fields)
        narrow = [column for column in fields if str(column.field_type) in WIDER]
        if not narrow:
            return "nothing to widen"
        column = rng.choice(narrow)
        described = column.model_dump(by_alias=True) | {"type": WIDER[str(column.field_type)]}
        wide = NestedField.model_validate(described)
        self._change_schema([wide if one is column else one for one in fields])
        return f"{column.name} from {column.field_type}"

    def change_spec(self, rng: Random) -> str:
        """To one or two fields, to none, or to one that is void, which is none as well."""
        columns = [one for one in self.table.schema.fields if one.field_id != SERIAL]
        chosen = rng.sample(columns, min(len(columns), rng.choice([0, 1, 1, 1, 1, 2])))
        spec_id = len(self.table.specs)
        fields, said = [], []
        for at, column in enumerate(chosen):
            transform = _transform(rng, str(column.field_type))
            if transform is not None:
                name, field_id = f"p{spec_id}_{column.field_id}", 1000 + 10 * spec_id + at
                fields.append(PartitionField(column.field_id, field_id, transform, name))
                said.append(f"{transform} of {column.name}")
        self.table.change(specs=[*self.table.specs, PartitionSpec(*fields, spec_id=spec_id)])
        return f"{spec_id} by {said}"

    def upgrade(self, rng: Random) -> str:
        self.table.change(version=3)
        return "to V3"


def _transform(rng: Random, kind: str) -> Transform[Any, Any] | None:
    if rng.random() < 0.1:
        return VoidTransform()
    if kind in ("int", "long", "string") and rng.random() < 0.6:
        return IdentityTransform()
    return None if kind == "boolean" else BucketTransform(rng.choice([1, 2]))
