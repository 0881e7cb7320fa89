"""Steps of the worker: jobs of every kind, and the readers after a conversion."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

import pyarrow.parquet as pq

from tests.jobs import ONE_PER_TASK
from tests.soak.checks import Checks, assert_same
from tests.soak.drawing import MEASURE, Step
from tests.soak.model import Position, applies
from tests.soak.table import local_path
from worker.process.errors import JobError

LIVE_TWICE = "data_file_live_twice"
TICKS = ("timestamp", "timestamptz")


class JobSteps(Checks):
    """Jobs on the table, whose results must be what the model foresees."""

    def index(self, rng: Random) -> str:
        """Of the key sets of live equality deletes, and sometimes of those that are declared."""
        return self._index_job("index", rng)

    def rebuild(self, rng: Random) -> str:
        return self._index_job("rebuild", rng)

    def _index_job(self, kind: str, rng: Random) -> str:
        declared: dict[str, Any] = {}
        if rng.random() < 0.5:
            usable = [key_set for key_set in self.usable_key_sets(self.schema) if MEASURE not in key_set]
            declared["key_sets"] = [[self.schema.find_column_name(i) for i in key_set] for key_set in usable]
        try:
            result = self.jobs.run(kind, **declared).result
        except JobError as error:
            # A table without keys, or with float keys alone, has nothing to index.
            foreseen = {"no_key_set", "float_key"}
            if self._live_orc_ticks:
                foreseen.add("data_files_unreadable")  # if there is nothing else to index
            if error.code not in foreseen:
                raise
            return error.code
        return "; ".join(f"{one['columns']}: {one['files_indexed']} files" for one in result["key_sets"])

    def compact(self, rng: Random) -> str:
        result = self.jobs.run("compact").result
        return "; ".join(
            f"{one['columns']}: {one['sorted_runs_before']} runs became {one['sorted_runs_after']}"
            for one in result["key_sets"]
        )

    def verify(self, rng: Random) -> str:
        result = self.jobs.run("verify").result
        differences = [one["examples"] for one in result["key_sets"] if one["differences"]]
        assert not differences, f"the verify job found {differences}"
        return f"{len(result['key_sets'])} indexes"

    def report_duplicates(self, rng: Random) -> str:
        """Of all key sets that are known by now: the keys that several visible rows have, and no others."""
        state = self.model.head
        try:
            result = self.jobs.run("report_duplicates").result
        except JobError as error:
            # Float keys, and timestamps in ORC, can't be told.
            untold = any(MEASURE in one.fields for one in state.deletes) or self._has_orc_files(state)
            if error.code not in {"no_key_set", "float_key"} | ({"rows_undecided"} if untold else set()):
                raise
            return error.code
        usable = {tuple(sorted(key_set)) for key_set in self.usable_key_sets(self.schema)}
        checked = [one for one in result["key_sets"] if tuple(one["equality_field_ids"]) in usable]
        for one in checked:
            self._check_duplicates(one)
        return ", ".join(f"{one['columns']}: {one['duplicate_keys']} keys" for one in checked)

    def _check_duplicates(self, found: dict[str, Any]) -> None:
        """By the rows: what keys look like in a report is for other tests."""
        by_key: dict[tuple[Any, ...], list[Position]] = defaultdict(list)
        for position in self.model.visible(self.model.head):
            by_key[self.model.row(position, found["equality_field_ids"])].append(position)
        expected = Counter(tuple(sorted(places)) for places in by_key.values() if len(places) > 1)
        reported: Counter[tuple[Position, ...]] = Counter()
        pattern = local_path(found["report"])
        for path in pattern.parent.glob(pattern.name or "none"):
            for row in pq.read_table(path).to_pylist():
                places = tuple(sorted((one["data_file"], one["position"]) for one in row["examples"]))
                if row["live_rows"] > len(places):
                    (places,) = (known for known in expected if set(places) <= set(known))
                assert row["live_rows"] == len(places)
                reported[places] += 1
        assert reported == expected, f"reported: {reported - expected}, left out: {expected - reported}"

    def convert(self, rng: Random) -> str:
        """A conversion; sometimes with a dry run first, or with another writer just before its commit."""
        said = []
        if rng.random() < 0.15:
            said.append(self._check(rng, before=True))
        foretold = None
        if rng.random() < 0.2:
            foretold = self.jobs.run("convert", dry_run=True).result["rows_deleted"]
        between = None
        if rng.random() < 0.25 and not self._has_orc:
            kinds = ["upsert", "delete", "merge", "delete_positions", "end_rewrite", "drop_file", "roll_back"]
            kinds += ["append_again", "upsert_again"]
            between = Step(rng.choice(kinds), rng.getrandbits(32))
        said.append(self._convert(foretold, between))
        said.append(self._check(rng))
        if rng.random() < 0.3:
            said.append(self._check_past(rng))
        return ", ".join(said)

    def _convert(self, foretold: int | None = None, between: Step | None = None) -> str:
        pending = self.table.live_equality_deletes()
        foreseen = self._foreseen(pending)
        # What comes just before the commit may hide what told the files apart when it was planned.
        apart = self._may_be_apart(others=bool(foreseen))
        late: set[str] = set()
        overtaken: list[str] = []

        def before_commit() -> None:
            if between is None or overtaken:
                return
            overtaken.append(between.kind)
            self._note_new_snapshots()
            known = self.table.live_equality_deletes()
            overtaken[0] += f" ({self.do(between)})"
            # Those that a rollback brings back count too.
            late.update(self.table.live_equality_deletes() - known)

        self.jobs.reporter.before_commit = before_commit
        try:
            # Vectors share a file, or have their own, as the history comes.
            policy = ONE_PER_TASK if len(self.model.snapshots) % 2 else {}
            result = self.jobs.run("convert", policy=policy).result
        finally:
            self.jobs.reporter.before_commit = lambda: None
        self._note_new_snapshots()
        self.may_conflict = True
        refused = {one["file_path"]: one["code"] for one in result["unconvertible"]}
        apart |= self._may_be_apart(others=bool(foreseen))
        foreseen |= {path: code for path, code in refused.items() if code == LIVE_TWICE and path in apart}
        left = self.table.live_equality_deletes()
        if overtaken:
            foreseen |= {path: code for path, code in self._foreseen(late).items() if path in refused}
            foreseen = {path: code for path, code in foreseen.items() if path in refused or path in left}
            assert left <= foreseen.keys() | late, f"left without reason: {left - foreseen.keys() - late}"
        else:
            assert left == foreseen.keys(), f"left: {left}, foreseen: {foreseen}"
            if foretold is not None:
                deleted = result["rows_deleted"]
                assert deleted == foretold, f"{deleted} rows deleted, the dry run foretold {foretold}"
        assert refused == foreseen, f"refused: {refused}, foreseen: {foreseen}"
        sources = [one["source"] for one in result["key_sets"]]
        return f"{len(pending)} delete files, {result['rows_deleted']} rows by {sources}" + (
            f", overtaken by {overtaken[0]}" if overtaken else ""
        )

    def _note_new_snapshots(self) -> None:
        """Commits of a conversion show what the head shows."""
        self.table.refresh()
        for snapshot_id in self.table.snapshot_ids - self.model.snapshots.keys() - self.passing:
            self.model.snapshots[snapshot_id] = self.model.head

    @property
    def _has_orc(self) -> bool:
        return self.setup.file_format == "orc" or self.setup.other_formats

    @property
    def _live_orc_ticks(self) -> bool:
        """Whether a live data file in ORC has timestamps that may be keys: far ones can't be told there."""
        ticks = {i for key_set in self.key_sets for i in key_set if self.kinds[i] in TICKS}
        files = map(self.model.files.__getitem__, self.model.head.files)
        return any(file.file_format == "orc" and ticks & file.fields for file in files)

    def _foreseen(self, live: set[str]) -> dict[str, str]:
        """Equality delete files that must stay, with the code of the reason."""
        kinds, head = self.kinds, self.model.head
        refused = {}
        for delete in head.deletes:
            if delete.path not in live:
                continue
            ticks = {i for i in delete.fields if kinds[i] in TICKS}
            files = [
                file
                for file in map(self.model.files.__getitem__, head.files)
                if applies(delete, file, min(head.files[file.path]))
            ]
            if any(kinds[i] == "double" for i in delete.fields):
                refused[delete.path] = "float_key"
            elif ticks and (
                delete.file_format == "orc"
                or any(file.file_format == "orc" and ticks & file.fields for file in files)
            ):
                refused[delete.path] = "unsupported_orc_timestamp"
        return refused

    def _may_be_apart(self, *, others: bool) -> set[str]:
        """Equality delete files that may have to tell files of one path apart.

        others: whether there are refused ones, so that not all that the model hides is planned.
        """
        head = self.model.head
        apart = set()
        for path in head.live_twice:
            numbers = head.files[path]
            visible = {tuple(self.model.visible_of(head, path, number)) for number in numbers}
            if others or len(visible) > 1:
                file = self.model.files[path]
                apart |= {delete.path for delete in head.deletes if applies(delete, file, min(numbers))}
        return apart

    def finish(self, rng: Random) -> str:
        """The last conversion, asked about with Spark."""
        said = [self._convert()]
        kinds = [str(column.field_type) for column in self.schema.fields]
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        # Spark reads deletes as Java does: a key of UUIDs is not for it, if one had to stay.
        if self.java_reads(self.live_deletes(), fields):
            assert_same(self.table.spark_rows(kinds), expected, "what Spark shows at the end")
        if rng.random() < 0.3:
            self.verify(rng)
        if rng.random() < 0.3:
            said.append(self._check_past(rng))
        return ", ".join([*said, f"{sum(expected.values())} rows"])
