"""Steps that change the schema, the partition spec or the format version."""

from __future__ import annotations

from random import Random

from tests.soak.drawing import KEY, MEASURE, REGION, SERIAL
from tests.soak.modelled import ModelledTable
from tests.soak.values import KEY_TYPES, PARTITION_TYPES, VALUES, WIDER, WITH_DEFAULTS


class SchemaSteps(ModelledTable):
    """Files keep what they were written with; those of later steps differ."""

    def add_column(self, rng: Random) -> str:
        kind = rng.choice([*WITH_DEFAULTS, *KEY_TYPES])
        name = f"c{self.table.metadata.last_column_id + 1}"
        iceberg = self.table.iceberg
        java_type = iceberg.types.Types.fromPrimitiveString(kind)
        update, default = self.table.java.updateSchema(), None
        if self.version >= 3 and kind in WITH_DEFAULTS and rng.random() < 0.6:
            default = rng.choice(VALUES[kind][1:])
            literal = iceberg.expressions.Expressions.lit(str(default) if kind == "date" else default)
            update.addColumn(name, java_type, None, literal.to(java_type)).commit()
        else:
            update.addColumn(name, java_type).commit()
        self.table.forget()
        field_id = self.schema.find_field(name).field_id
        if default is not None:
            self.model.defaults[field_id] = default
        if rng.random() < 0.5:
            self.key_sets.append(rng.choice([(field_id,), (KEY, field_id), (REGION, field_id)]))
        return f"{name} {kind} default {default!r}, key sets {self.key_sets}"

    def drop_column(self, rng: Random) -> str:
        """A column that no spec needs; equality deletes may."""
        sources = {part.source_id for spec in self.table.metadata.partition_specs for part in spec.fields}
        if any(MEASURE in key_set for key_set in self.key_sets):
            sources.add(MEASURE)  # its deletes stay, and Iceberg Java can't read them without the column
        names = [column.name for column in self.schema.fields if column.field_id not in sources]
        if len(self.schema.fields) < 3 or not names:
            return "none left"
        name = rng.choice(names)
        self.table.java.updateSchema().deleteColumn(name).commit()
        self.table.forget()
        return name

    def rename_column(self, rng: Random) -> str:
        """Now and then to the former name of another column."""
        column = rng.choice(self.schema.fields)
        taken = {one.name for one in self.schema.fields}
        former = {one.name for schema in self.table.metadata.schemas for one in schema.fields} - taken
        name = rng.choice([*sorted(former), f"{column.name}x"])
        if name in taken:
            return "taken"
        self.table.java.updateSchema().renameColumn(column.name, name).commit()
        self.table.forget()
        return f"{column.name} to {name}"

    def move_column(self, rng: Random) -> str:
        name = rng.choice(self.schema.fields).name
        self.table.java.updateSchema().moveFirst(name).commit()
        self.table.forget()
        return name

    def widen_column(self, rng: Random) -> str:
        narrow = [column for column in self.schema.fields if str(column.field_type) in WIDER]
        if not narrow:
            return "nothing to widen"
        column = rng.choice(narrow)
        wide = self.table.iceberg.types.Types.fromPrimitiveString(WIDER[str(column.field_type)])
        self.table.java.updateSchema().updateColumn(column.name, wide).commit()
        self.table.forget()
        return f"{column.name} from {column.field_type}"

    def change_spec(self, rng: Random) -> str:
        """Remove all fields, or some, and add one or two."""
        update = self.table.java.updateSpec()
        spec = self.table.metadata.spec()
        removed = [part for part in spec.fields if rng.random() < 0.8]
        for part in removed:
            update.removeField(part.name)
        left = {part.source_id for part in spec.fields}
        expressions = self.table.iceberg.expressions.Expressions
        added = []
        for column in rng.sample(self.schema.fields, rng.choice([0, 1, 1, 1, 2])):
            kind = str(column.field_type)
            if column.field_id in (SERIAL, MEASURE) or column.field_id in left or kind == "double":
                continue
            name = f"p{len(self.table.metadata.partition_specs)}_{column.field_id}"
            if kind in PARTITION_TYPES and rng.random() < 0.6:
                term, said = expressions.ref(column.name), "identity"
            elif kind == "boolean":
                continue
            else:
                buckets = rng.choice([1, 2, 3])
                term, said = expressions.bucket(column.name, buckets), f"bucket {buckets}"
            update.addField(name, term)
            added.append(f"{said} of {column.name}")
        if not removed and not added:
            return "nothing"
        update.commit()
        self.table.forget()
        return f"now {self.table.metadata.spec()}"

    def upgrade(self, rng: Random) -> str:
        if self.version >= 3:
            return "is V3"
        self.table.java.updateProperties().set("format-version", "3").commit()
        self.table.forget()
        self.may_conflict = True
        return "to V3"
