"""Steps of Spark, whose procedures and plans read the table as users do."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pyarrow.parquet as pq

from tests.soak.checks import assert_same
from tests.soak.drawing import SERIAL
from tests.soak.model import State
from tests.soak.modelled import ModelledTable
from tests.soak.table import local_path
from tests.soak.values import shown


class SparkSteps(ModelledTable):
    """What Spark writes is read back: the model can't know its files before."""

    def spark_merge(self, rng: Random) -> str:
        """MERGE INTO, which reads the table: its rows must be the model's."""
        if SERIAL not in {column.field_id for column in self.schema.fields}:
            return "no serial"
        name = self.schema.find_column_name(SERIAL)
        if not self._spark_reads:
            return "not for Spark"
        visible = list(self.model.visible(self.model.head))
        chosen = rng.sample(visible, min(len(visible), rng.randint(1, 4)))
        old = [self.model.row(position, [SERIAL])[0] for position in chosen]
        pairs = [(serial, next(self.serial)) for serial in old if serial is not None]
        if not pairs:
            return "no rows"
        values = ", ".join(f"({serial}L, {new}L)" for serial, new in pairs)
        self.world.spark.sql(
            f"MERGE INTO {self.table.identifier} t USING (VALUES {values} AS v(old, new)) s"
            f" ON t.{name} = s.old WHEN MATCHED THEN UPDATE SET {name} = s.new"
        )
        fields = [column.field_id for column in self.schema.fields]
        at = fields.index(SERIAL)
        renamed = dict(pairs)
        expected: Counter[tuple[Any, ...]] = Counter()
        for row, times in self.model.rows(self.model.head, fields).items():
            expected[(*row[:at], renamed.get(row[at], row[at]), *row[at + 1 :])] += times
        gone = [position for position in visible if self.model.row(position, [SERIAL])[0] in renamed]
        self.table.refresh()
        self._learn(self.model.head.with_positions(gone, self.table.sequence_number), expected)
        return f"{pairs}"

    def spark_rewrite(self, rng: Random) -> str:
        """`rewrite_data_files` of all files."""
        if not self.model.head.files:
            return "no data files"
        if not self._spark_reads:
            return "not for Spark"
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        self.table.compact()
        self._learn(self.model.head, expected)
        return f"{sum(expected.values())} rows in {len(self.model.head.files)} files"

    @property
    def _spark_reads(self) -> bool:
        """Whether Spark sees the rows that it is about to write anew."""
        fields = [column.field_id for column in self.schema.fields]
        return self.java_reads(self.live_deletes(), fields) and not self.model.head.live_twice

    def _learn(self, state: State, expected: Counter[tuple[Any, ...]]) -> None:
        """Take over the data files that Spark wrote, once their rows are what they should be."""
        self.table.refresh()
        self.may_conflict = True
        live = self.table.live(deletes=False)
        state = state.without_files(sorted(state.files.keys() - {file.path for file in live}))
        for file in live:
            if file.path in state.files:
                continue
            spec = self.table.metadata.specs()[file.file.json["spec-id"]]
            partition = file.file.json["partition"]
            if isinstance(partition, dict):
                partition = list(partition.values())
            self.table.knows(file.path, spec.spec_id, partition)
            read = pq.read_table(local_path(file.path), partitioning=None)
            ids = [int(column.metadata[b"PARQUET:field_id"]) for column in read.schema]
            read = read.select([at for at, field_id in enumerate(ids) if field_id in self.kinds])
            ids = [field_id for field_id in ids if field_id in self.kinds]  # not of row lineage
            columns = [
                [shown(self.kinds[field_id], value) for value in column.to_pylist()]
                for field_id, column in zip(ids, read.columns, strict=True)
            ]
            rows = [dict(zip(ids, values, strict=True)) for values in zip(*columns, strict=True)]
            self._know(
                file.file,
                rows,
                frozenset(ids),
                (spec.spec_id, json.dumps(partition)),
                self._constants(self.schema, spec, partition),
            )
            state = state.with_files([file.path], file.sequence_number)
        self._note(state)
        fields = [column.field_id for column in self.schema.fields]
        assert_same(self.model.rows(state, fields), expected, "what Spark wrote")
