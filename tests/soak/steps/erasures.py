"""Steps that erase rows: others stay as they are, and no file that is left has a key that is told as gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.soak.drawing import MEASURE
from tests.soak.steps.writes import WriteSteps
from tests.soak.table import local_path
from tests.soak.values import in_json
from worker.process.errors import JobError


class EraseSteps(WriteSteps):
    """Jobs of kind `erase`."""

    def erase(self, rng: Random) -> str:
        head = self.model.head
        usable = [key_set for key_set in self.usable_key_sets(self.schema) if MEASURE not in key_set]
        if not usable:
            return "no key"
        if any(self.model.files[path].file_format != "parquet" for path in head.files):
            return "not Parquet, which alone is read back"
        key_set = rng.choice(usable)
        rows = self._some_rows(rng, self.schema, 4)
        keys = sorted({tuple(row[field_id] for field_id in key_set) for row in rows}, key=repr)
        gone = [
            position for position in self.model.visible(head) if self.model.row(position, key_set) in keys
        ]
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(head, fields)
        expected.subtract(Counter(self.model.row(position, fields) for position in gone))
        before, said = self.table.snapshot_id, f"{len(keys)} keys by {tuple(key_set)}"
        try:
            report = self._report_of_erasure(rng, key_set, keys)
            said += f", {report['counts']}"
        except JobError as error:
            refusals = self._refusals() | ({"data_file_not_rewritten"} if head.live_twice else set())
            if error.code not in refusals:
                raise
            report, said = None, f"{said}, {error.code}"
        self.table.refresh()
        if self.table.snapshot_id != before:
            self._learn(head.with_positions(gone, self.table.sequence_number), +expected)
        for snapshot_id in self.model.snapshots.keys() - self.table.snapshot_ids:
            del self.model.snapshots[snapshot_id]
        self.passing |= self.table.snapshot_ids - self.model.snapshots.keys()
        if report is not None:
            self._check_files(key_set, _said_to_be_gone(report, keys))
        return said

    def _report_of_erasure(
        self, rng: Random, key_set: Sequence[int], keys: Sequence[tuple[Any, ...]]
    ) -> dict[str, Any]:
        names = [self.schema.find_field(field_id).name for field_id in key_set]
        sent = [{name: in_json(value) for name, value in zip(names, key, strict=True)} for key in keys]
        parameters = {"key_columns": names, "erasure_id": "e", "expire_snapshots": rng.random() < 0.5}
        told: dict[str, Any] = self.jobs.run("erase", rows=sent, parameters=parameters).result["erasure"]
        return told

    def _check_files(self, key_set: Sequence[int], gone: set[tuple[Any, ...]]) -> None:
        for path, file in self.model.files.items():
            if local_path(path).exists():
                found = {self.model.key(file, row, key_set) for row in file.rows} & gone
                assert not found, f"{found} is said to be gone, and {path} has it"


def _said_to_be_gone(report: dict[str, Any], keys: Sequence[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    named = {
        *report["unknown"],
        *report["invisible"],
        *(key for one in report["held"] for key in one["keys"]),
    }
    assert report["counts"]["gone"] == len(keys) - len(named)
    return {key for number, key in enumerate(keys) if number not in named}
