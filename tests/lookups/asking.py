"""Questions, and what the model has for an answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tests.lookups.drawing import Setup
from tests.lookups.indexing import IndexSteps
from tests.lookups.modelled import LookupState
from tests.soak.values import from_json, in_json, shown
from worker.contract.lookups import AskedKeys
from worker.lookup_server.app import create_app
from worker.query.answers import Answers, TablePlace
from worker.query.errors import UnreadableError
from worker.query.rows import rows_at, selected

Key = tuple[Any, ...]
TOKEN = "of-the-histories"
# Which of the keys asked for; data file, position, sequence number, what deletes it, and what its row holds.
Match = tuple[int, str, int, int, str | None, Key | None]


@dataclass(frozen=True)
class Known:
    """What the service may know of the table: the last metadata that it has seen, and what was there."""

    location: str
    refs: dict[str, int]
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """keys, state, fields: what the model is asked. select: None for places alone."""

    known: Known
    snapshot_id: int | None
    asked: AskedKeys
    keys: list[Key]
    state: LookupState
    fields: tuple[int, ...]
    select: Schema | None

    def __str__(self) -> str:
        at = self.asked.branch or self.asked.snapshot_id or "main"
        columns = "" if self.select is None else f" with {', '.join(self.asked.select or ())}"
        return f"{len(self.keys)} keys of {', '.join(self.asked.key_columns or ())} at {at}{columns}"


class Asking(IndexSteps):
    """Asks one that keeps what it has read for the whole history, and others that have read nothing."""

    def __init__(self, folder: Path, setup: Setup, apart: Executor) -> None:
        super().__init__(folder, setup)
        self.answers = Answers()
        self._app = create_app(TOKEN, self.answers)
        self._apart = apart
        self._past: list[Known] = []

    def forget_past(self) -> None:
        self._past = []

    def look_up(self, rng: Random) -> str:
        """Ask about the head, and now and then about another snapshot. Raises AssertionError."""
        if not self.usable_key_sets(self.table.schema):
            return "no key to ask for"
        refs = {name: at for name, (_, at) in self.table.refs.items()}
        self._past.append(Known(self.table.metadata_location, refs, tuple(self.table.snapshots)))
        said = [self._ask(rng, self._past[-1], is_head=True)]
        if rng.random() < 0.15:
            known = rng.choice(self._past) if rng.random() < 0.3 else self._past[-1]
            said.append(self._ask(rng, known, is_head=False))
        return ", ".join(said)

    def _ask(self, rng: Random, known: Known, *, is_head: bool) -> str:
        question = self._question(rng, known, self.metadata(known.location), is_head=is_head)
        if question is None:
            return "no key to ask for"
        how, draw = "", rng.random()
        try:
            if draw < 0.05:
                found, how = self._over_http(question), ", over HTTP"
            elif draw < 0.17:
                found, how = self._directly(question, Answers()), ", by a new one"
            else:
                found = self._directly(question, self.answers)
        except UnreadableError as error:
            if not self.may_be_damaged:
                raise
            return f"{question}{how}: {error.title}"
        expected = self._expected(question)
        if found != expected:
            more, fewer = [*(found - expected).elements()], [*(expected - found).elements()]
            raise AssertionError(
                f"{question}{how}: {len(more)} too many {more[:4]}, {len(fewer)} missing {fewer[:4]}"
            )
        return f"{question}{how}: {expected.total()} rows"

    def _question(
        self, rng: Random, known: Known, metadata: TableMetadata, *, is_head: bool
    ) -> Question | None:
        schema = metadata.schema()
        usable = self.usable_key_sets(schema)
        if not usable:
            return None
        what: dict[str, Any] = {}
        snapshot_id = known.refs.get("main")
        if not is_head and known.snapshot_ids:
            if rng.random() < 0.5 and known.refs:
                what["branch"] = rng.choice(list(known.refs))
                snapshot_id = known.refs[what["branch"]]
            else:
                what["snapshot_id"] = snapshot_id = rng.choice(known.snapshot_ids)
        state = LookupState() if snapshot_id is None else self.states[snapshot_id]
        fields = tuple(sorted(self.key_set_of(rng, usable)))
        keys = self._keys(rng, state, schema, fields)
        names = [schema.find_field(i).name for i in fields]
        asked = [dict(zip(names, map(in_json, key), strict=True)) for key in keys]
        select = None
        if rng.random() < 0.1 and snapshot_id is not None:
            select = schema
            if "snapshot_id" in what or metadata.refs[what.get("branch", "main")].snapshot_ref_type == "tag":
                written = self.table.snapshots[snapshot_id].described["schema-id"]
                select = next(one for one in metadata.schemas if one.schema_id == written)
            chosen = rng.sample(select.fields, rng.randint(1, len(select.fields)))
            what["select"] = [column.name for column in chosen]
            select = select.select(*what["select"])
        question = AskedKeys(keys=asked, key_columns=rng.sample(names, len(names)), **what)
        return Question(known, snapshot_id, question, keys, state, fields, select)

    def _keys(self, rng: Random, state: LookupState, schema: Schema, fields: Sequence[int]) -> list[Key]:
        """All that the snapshot has, some that it may not have, and one of these once more."""
        found = {
            self.model.key(file, row, fields): None
            for file in map(self.model.files.__getitem__, state.files)
            for row in file.rows
        }
        columns = [(i, str(schema.find_type(i))) for i in fields]
        for _ in range(2):
            found[tuple(rng.choice([*self.values_of(i, kind), None]) for i, kind in columns)] = None
        return [*found, rng.choice([*found])]

    def _expected(self, question: Question) -> Counter[Match]:
        state, fields = question.state, question.fields
        rows: dict[Key, list[tuple[str, int, int, str | None]]] = {}
        for path, numbers in state.files.items():
            file = self.model.files[path]
            keys = [self.model.key(file, row, fields) for row in file.rows]
            for number in numbers:
                for position, deleted in enumerate(state.deleted_by(self.model, path, number)):
                    rows.setdefault(keys[position], []).append((path, position, number, deleted))
        shown_ids = None if question.select is None else [one.field_id for one in question.select.fields]
        return Counter(
            (at, *place, None if shown_ids is None else self.model.row(place[:2], shown_ids))
            for at, key in enumerate(question.keys)
            for place in rows.get(key, ())
        )

    def _directly(self, question: Question, answers: Answers) -> Counter[Match]:
        place = TablePlace(
            question.known.location, self.table.storage, self.index_location, self.table.storage
        )
        coverage, places = answers.find(place, question.asked)
        snapshot_id = None if coverage.table.snapshot is None else coverage.table.snapshot.snapshot_id
        assert snapshot_id == question.snapshot_id, f"an answer of snapshot {snapshot_id}"
        rows: list[Key | None] = [None] * len(places.deleted_by)
        if question.asked.select is not None:
            schema = selected(coverage.table.schema, question.asked.select)
            kinds = [str(column.field_type) for column in schema.fields]
            rows = [
                tuple(shown(kind, value) for kind, value in zip(kinds, row.values(), strict=True))
                for row in rows_at(coverage.table, places, schema).to_pylist()
            ]
        files = places.data_files.select(places.ordinals)
        return Counter(
            (key, file.path, position, file.data_sequence_number, deleted, row)
            for key, file, position, deleted, row in zip(
                places.keys.tolist(), files, places.positions.tolist(), places.deleted_by, rows, strict=True
            )
        )

    def _over_http(self, question: Question) -> Counter[Match]:
        table = {
            "metadata_location": question.known.location,
            "properties": {"warehouse": self.folder.as_uri()},
            "index": {"warehouse": self.index_location},
            "allowed_locations": [self.folder.as_uri()],
            "allowed_hosts": [],
            "allowed_secrets": [],
        }

        async def post() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://lookup") as client:
                return await client.post(
                    "/lookups",
                    json={"table": table, "question": question.asked.model_dump(exclude_none=True)},
                    headers={"Authorization": f"Bearer {TOKEN}"},
                )

        answer = self._apart.submit(asyncio.run, post()).result()
        if answer.status_code == UnreadableError.status and answer.json()["code"] == UnreadableError.code:
            raise UnreadableError(answer.json()["detail"])
        assert answer.status_code == 200, answer.text
        assert answer.json()["snapshot_id"] == question.snapshot_id
        found: Counter[Match] = Counter()
        for at, result in enumerate(answer.json()["results"]):
            assert result["key"] == question.asked.keys[at]
            for match in result["matches"]:
                assert match["live"] == (match["deleted_by"] is None)
                row = None
                if question.select is not None:
                    row = tuple(
                        from_json(str(column.field_type), match["row"][column.name])
                        for column in question.select.fields
                    )
                place = match["data_file"], match["position"], match["data_sequence_number"]
                found[at, *place, match["deleted_by"], row] += 1
        return found
