"""A lake and a service in memory, for what a run removes and what it leaves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

from worker.acceptance.lake import LakeError, NotOursError
from worker.acceptance.run import Acceptance, Wanted


@dataclass
class FakeTable:
    uuid: str
    mark: str | None = None
    location: str = "s3://lake/t"
    is_alone: bool = True
    metadata: str = "1.json"


class FakeStorage:
    """is_over: a session that it has been vended."""

    def __init__(self, files: set[str]) -> None:
        self._files, self.is_over = files, False

    def delete(self, location: str) -> None:
        if self.is_over:
            raise PermissionError("ExpiredToken")
        self._files.remove(location)

    def is_local(self, _: str) -> bool:
        return False


@dataclass
class FakeLake:
    """refuses: is called before a table is dropped, and may raise. makes: is asked for a table of a format
    version, and gives the one that it has; it may raise. location_of: of a new table, by its name. opened: by
    whom its files are seen."""

    tables: dict[str, FakeTable] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=lambda: {"accepting"})
    refuses: Callable[[str], None] = lambda _: None
    makes: Callable[[int], int] = lambda version: version
    location_of: Callable[[str], str] = lambda name: f"s3://lake/{name}"
    namespace_mark: str | None = None
    name: str = "lake"
    type: str = "sql"
    secrets: frozenset[str] = frozenset()
    is_s3_tables: bool = False
    requests: Counter[str] = field(default_factory=Counter)
    of_store: Counter[str] = field(default_factory=Counter)
    opened: list[FakeStorage] = field(default_factory=list)

    def has_namespace(self, namespace: Sequence[str]) -> bool:
        return ".".join(namespace) in self.namespaces

    def create_namespace(self, namespace: Sequence[str], _: str) -> None:
        self.namespaces.add(".".join(namespace))

    def drop_namespace(self, namespace: Sequence[str]) -> None:
        self.namespaces.remove(".".join(namespace))

    def table_names(self, _: Sequence[str]) -> set[str]:
        return set(self.tables)

    def has_table(self, identifier: Sequence[str]) -> bool:
        return identifier[-1] in self.tables

    def create_table(
        self, identifier: Sequence[str], format_version: int, _: Sequence[str], run: str, **__: Any
    ) -> MagicMock:
        """As Iceberg's Java tells it."""
        made, table = self.makes(format_version), MagicMock()
        self.tables[identifier[-1]] = kept = FakeTable(f"u{len(self.tables)}", run)
        kept.location = self.location_of(identifier[-1])
        metadata_file = f"{kept.location}/metadata/{kept.metadata}"
        self.stored.add(metadata_file)
        table.uuid.return_value.toString.return_value = kept.uuid
        table.location.return_value = kept.location
        current = table.operations.return_value.current.return_value
        current.metadataFileLocation.return_value = metadata_file
        current.formatVersion.return_value = made
        return table

    def own_place(self, _: object) -> None: ...

    def load(self, identifier: Sequence[str]) -> FakeTable:
        return self.tables[identifier[-1]]

    def storage_of(self, _: FakeTable) -> FakeStorage:
        self.opened.append(FakeStorage(self.stored))
        return self.opened[-1]

    def place_of(self, table: FakeTable) -> str | None:
        return table.location if table.is_alone else None

    def clear(self, storage: FakeStorage, place: str) -> None:
        for one in self.files(storage, place):
            storage.delete(one)

    def state_of(self, identifier: Sequence[str]) -> tuple[str, str] | None:
        table = self.tables[identifier[-1]]
        return table.uuid, table.metadata

    def mark_of_namespace(self, _: Sequence[str]) -> str | None:
        return self.namespace_mark

    def mark_of(self, identifier: Sequence[str]) -> str | None:
        return self.tables[identifier[-1]].mark

    def drop_table(self, identifier: Sequence[str], mark: str | None, table_uuid: str | None = None) -> None:
        table = self.tables[identifier[-1]]
        if table.mark != mark or table_uuid not in (None, table.uuid):
            raise NotOursError("another table")
        self.refuses(identifier[-1])
        del self.tables[identifier[-1]]

    def files(self, _: object, location: str) -> set[str]:
        return {one for one in self.stored if one.startswith(f"{location}/")}

    def index_databases(self, *_: object) -> list[str]:
        return []


@dataclass
class FakeService:
    """deleted: paths. enrolled: tables as the service tells them."""

    enrolled: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    jobs: list[Any] = field(default_factory=list)
    url: str = "http://here"
    requests: Counter[str] = field(default_factory=Counter)

    def items(self, _: str, **__: Any) -> list[dict[str, Any]]:
        return self.enrolled

    def delete(self, path: str, **_: Any) -> None:
        self.deleted.append(path)
        self.enrolled = [one for one in self.enrolled if f"/tables/{one['id']}" != path]


def acceptance_of(lake: FakeLake, service: FakeService | None = None) -> Acceptance:
    """Of one table, which was made and enrolled, and has a file."""
    made: Any = Acceptance(service or FakeService(), lake, Wanted("lake", ["accepting"]))  # type: ignore[arg-type]
    made.trials = made.trials[:1]
    (trial,) = made.trials
    trial.table_uuid, trial.table_id, trial.location = "u1", "t1", "s3://lake/t"
    lake.tables[trial.identifier[-1]] = FakeTable("u1", made.run)
    lake.stored |= {"s3://lake/t/data/1.parquet", "s3://lake/t/metadata/1.json"}
    acceptance: Acceptance = made
    return acceptance


def refuse(_: str) -> None:
    raise LakeError("403 Forbidden")


class FakeProgress:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str, _: str | None = None) -> None:
        self.said.append(text)
