"""Steps that write files anew, by jobs, with another writer just before one of their commits."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

from tests.soak.drawing import SERIAL, Step
from tests.soak.steps.writes import WriteSteps
from worker.contract.control_plane import AnnouncedPlan
from worker.process.errors import JobError

OTHERS = ("upsert", "delete", "append", "delete_positions", "end_rewrite", "drop_file", "roll_back")


class RewriteSteps(WriteSteps):
    """Jobs of kind `rewrite_data_files` and `rewrite_position_delete_files`."""

    def rewrite_data_files(self, rng: Random) -> str:
        parameters: dict[str, Any] = {
            "min_input_files": rng.choice([2, 2, 3]),
            "delete_ratio_threshold": rng.choice([0.1, 0.5, 1.0]),
            "max_bytes": rng.choice([10**9, 3_000]),
        }
        if rng.random() < 0.2 and SERIAL in {column.field_id for column in self.schema.fields}:
            order = {"column": self.schema.find_column_name(SERIAL), "direction": "desc"}
            parameters |= {"strategy": "sort", "sort_order": [order]}
        said, told = self._rewritten(rng, "rewrite_data_files", parameters)
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        self.table.refresh()
        self.passing |= self.table.snapshot_ids - self.model.snapshots.keys()
        if self.table.snapshot_id in self.passing:
            self._learn(self.model.head, expected)
        if told is not None:
            figures = told["data_files"]
            said += f"{figures['data_files_rewritten']} files became {figures['data_files_added']}, "
        self._check_files_are_there()
        return said + self._check(rng)

    def rewrite_position_delete_files(self, rng: Random) -> str:
        said, told = self._rewritten(rng, "rewrite_position_delete_files", {"min_input_files": 2})
        self._note_new_snapshots()
        if told is not None:
            figures = told["delete_files"]
            said += f"{figures['delete_files_rewritten']} files became {figures['delete_files_added']}, "
            self.may_conflict |= bool(told["commits"])
        self._check_files_are_there()
        return said + self._check(rng)

    def _rewritten(
        self, rng: Random, kind: str, parameters: dict[str, Any]
    ) -> tuple[str, dict[str, Any] | None]:
        """What was said, and the result of a job that did not fail."""
        between = Step(rng.choice(OTHERS), rng.getrandbits(32)) if rng.random() < 0.4 else None
        reporter, at, said = self.jobs.reporter, rng.randint(1, 2), ""
        announce = reporter.announce

        def announced(plan: AnnouncedPlan) -> None:
            nonlocal at, said
            announce(plan)
            at -= plan.removes is not None  # about to be committed
            if between is not None and plan.removes is not None and at == 0:
                self._note_new_snapshots()
                said = f"overtaken by {between.kind} ({self.do(between)}), "

        try:
            with patch.object(reporter, "announce", announced):
                result = self.jobs.run(kind, parameters=parameters).result
        except JobError as error:
            # Spark can't read UUIDs in files that don't call them that.
            if error.code != "data_files_not_rewritten" or "uuid" not in self.kinds.values():
                raise
            return f"{said}{error.code}, ", None
        return said, result
