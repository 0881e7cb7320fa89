"""The secondary index of one key set: sorted entries (key -> row address) and the dictionary of files.

Invariants:
- The index is a pure function of immutable data files: it holds every row of the files it covers, whether
  deleted or not. Coverage is a set of files; what to index is a set difference.
- Committing a file to the dictionary is the linearisation point. Entries whose address has no dictionary
  row do not exist, so an attempt that dies in between leaves garbage, never a wrong answer.
- Address ranges are granted by the control plane to one attempt, so two attempts never share an address.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from worker.index.checksums import read_footer
from worker.index.dictionary import DICTIONARY_SCHEMA, PARTITION_ID, FileDictionary, read_parts
from worker.index.run_files import BUCKET
from worker.index.sorted_runs import (
    TABLE_FOLDERS,
    IndexCommitConflictError,
    LiveFiles,
    RunTable,
    told_as_latest,
)
from worker.index.warehouse import IndexWarehouse
from worker.io.row_groups import RowGroups, side_by_side
from worker.io.storage import Storage, lacks_own_memory
from worker.keys.key_set import KeySet
from worker.process.memory import ServerBusyError, take_memory
from worker.table.files import DataFiles

ROW_ADDRESS = "address"
INDEXED_FILE_BYTES = 250
"""That a data file takes in memory, about, as the dictionary has it."""
_RUN_FILE_BYTES = 2_000  # that a file of the index takes in memory, about
_KEY_TYPES_OPTION = "icestream.key-types"
_REMOVED = 1  # the kind of an entry of a Paimon manifest

_ENTRIES_NAME = re.compile(r"entries_(\d+(?:_\d+)*)_g(\d+)")


class DamagedIndexError(Exception):
    """An index can't be read, and no retry will help: only a new generation does."""


class _MissingFileError(DamagedIndexError):
    """A file is not there that the latest snapshot, when that was read, had."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class IndexState:
    """What was read of an index, whoever opened it: nothing of it ever changes."""

    generation: int
    files: LiveFiles
    entries: LiveFiles
    dictionary: FileDictionary

    @property
    def size_bytes(self) -> int:
        """In memory, about."""
        runs = len(self.files.files) + len(self.entries.files)
        return INDEXED_FILE_BYTES * len(self.dictionary) + _RUN_FILE_BYTES * runs


@dataclass(frozen=True, slots=True)
class KeySetIndex:
    """The index of one key set at one Paimon snapshot of each of its tables.

    dictionary: the rows of `files`, which are read before `entries`.
    """

    key_set: KeySet
    generation: int
    entries_table: RunTable
    files_table: RunTable
    files: LiveFiles
    entries: LiveFiles
    dictionary: FileDictionary

    @property
    def storage(self) -> Storage:
        """Where the index's files lie, which need not be that of the table."""
        return self.entries_table.storage

    @property
    def state(self) -> IndexState:
        return IndexState(self.generation, self.files, self.entries, self.dictionary)

    @property
    def end_address(self) -> int:
        """The first address above all that the dictionary owns and all that any entry has.

        Entries that no file owns must not get one later.
        """
        used = max((file.upper_bounds[-1] + 1 for file in self.entries.files), default=0)
        return max(self.dictionary.end_address, used)

    def dead_ratio(self, live_files: DataFiles) -> float:
        """The share of entries whose file is no longer live (or never was committed)."""
        live = int(self.dictionary.record_counts[self.dictionary.are_live(live_files)].sum())
        return dead_share(self.entries.rows, live)


def dead_share(entries: int, live: int) -> float:
    """Of some entries, of which so many are live."""
    return max(0.0, 1.0 - live / entries) if entries else 0.0


def database_name(table_uuid: str, branch: str) -> str:
    """Each branch has its own index: two registered branches never write to the same one."""
    name = _main_database(table_uuid)
    return name if branch == "main" else f"{name}_b{hashlib.sha256(branch.encode()).hexdigest()[:16]}"


def databases_of(warehouse: IndexWarehouse, table_uuid: str) -> list[str]:
    """Those that are there: also of branches that were dropped. Raises OSError (a retry can help)."""
    main = _main_database(table_uuid)
    return [name for name in warehouse.databases() if name == main or name.startswith(f"{main}_b")]


def _main_database(table_uuid: str) -> str:
    return "t_" + table_uuid.replace("-", "")


def open_index(
    warehouse: IndexWarehouse,
    database: str,
    key_set: KeySet,
    *,
    create: bool = False,
    rebuild: bool = False,
    known: IndexState | None = None,
) -> KeySetIndex | None:
    """The newest generation of a key set's index; None when there is none and `create` is false.

    A generation whose key types differ from the key set's is of no use: with `create` a new one starts.
    `rebuild` always starts a new one. known: as of `load_index`. Raises DamagedIndexError, and OSError when
    the index place can't be read or written (a retry can help).
    """
    if known is not None and not rebuild and (index := _as_known(warehouse, database, key_set, known)):
        return index
    try:
        return _open_newest(warehouse, database, key_set, create=create, rebuild=rebuild, known=known)
    except _MissingFileError:
        # It may have been compacted or dropped since it was looked for. Otherwise, the file is missing again.
        return _open_newest(warehouse, database, key_set, create=create or rebuild)


def _open_newest(
    warehouse: IndexWarehouse,
    database: str,
    key_set: KeySet,
    *,
    create: bool,
    rebuild: bool = False,
    known: IndexState | None = None,
) -> KeySetIndex | None:
    """As `open_index`, which looks once more."""
    suffix = _suffix(key_set)
    generation = newest_generation(warehouse, database, key_set)
    is_wanted = generation > 0 and not rebuild
    entries_table = files_table = None
    if is_wanted:
        names = _names(key_set, generation)
        entries_table, files_table = side_by_side(partial(_open_table, warehouse, database), names)
    key_types = _key_types(key_set)
    if entries_table is not None and entries_table.options.get(_KEY_TYPES_OPTION) == key_types:
        pass
    elif create or rebuild:
        generation, files_table = generation + 1, None
    else:
        return None
    if files_table is None:
        if not (create or rebuild):
            return None
        # The dictionary first: entries without a dictionary are garbage, never the other way round.
        files_table = warehouse.create(
            database, f"files_{suffix}_g{generation}", DICTIONARY_SCHEMA, ["base_address"], {}
        )
        schema = entries_schema(key_set)
        entries_table = warehouse.create(
            database, f"entries_{suffix}_g{generation}", schema, schema.names, {_KEY_TYPES_OPTION: key_types}
        )
    assert entries_table is not None
    load = partial(load_index, key_set, generation, entries_table, files_table)
    try:
        return load(known)
    except ServerBusyError:
        raise
    except Exception as error:
        # Paimon's reader and Arrow's fail in many ways on a damaged file: it is one if the store gives it.
        for location in (files_table.location, entries_table.location):
            _raise_if_at_fault(warehouse.storage, error, location, load)
        kind = _MissingFileError if isinstance(error, FileNotFoundError) else DamagedIndexError
        raise kind(f"the index can't be opened: {error}") from error


def _as_known(
    warehouse: IndexWarehouse, database: str, key_set: KeySet, known: IndexState
) -> KeySetIndex | None:
    """The index, if nothing of it has changed. All that says so is asked for at once."""
    if None in (known.entries.paimon_snapshot_id, known.files.paimon_snapshot_id):
        return None
    entries_name, files_name = _names(key_set, known.generation)
    asked: list[Callable[[], Any]] = [
        partial(_open_table, warehouse, database, entries_name),
        partial(_open_table, warehouse, database, files_name),
        lambda: newest_generation(warehouse, database, key_set) == known.generation,
        *told_as_latest(warehouse.storage, warehouse.place_of(database, entries_name), known.entries),
        *told_as_latest(warehouse.storage, warehouse.place_of(database, files_name), known.files),
    ]
    waits = not warehouse.storage.is_local(warehouse.location)
    try:
        entries_table, files_table, *are_so = side_by_side(lambda one: one(), asked, waits=waits)
    except (OSError, DamagedIndexError):
        return None  # whoever reads all of it anew finds out more
    if entries_table is None or files_table is None or not all(are_so):
        return None
    # A late commit may have come to tables that were made anew meanwhile.
    if not (entries_table.has_made(known.entries) and files_table.has_made(known.files)):
        return None
    if entries_table.options.get(_KEY_TYPES_OPTION) != _key_types(key_set):
        return None
    return KeySetIndex(
        key_set, known.generation, entries_table, files_table, known.files, known.entries, known.dictionary
    )


def _open_table(warehouse: IndexWarehouse, database: str, name: str) -> RunTable | None:
    """The table, or None. Raises OSError, and DamagedIndexError when its schema can't be understood."""
    try:
        return warehouse.open(database, name)
    except OSError:
        raise
    except Exception as error:
        if lacks_own_memory(error):
            raise
        raise DamagedIndexError(f"the schema of {name} can't be read: {error}") from error


def indexed_key_sets(warehouse: IndexWarehouse, database: str) -> list[tuple[int, ...]]:
    """The equality field ids of every key set that the table has an index of, ascending."""
    return key_sets_in(warehouse.table_names(database))


def key_sets_in(names: Iterable[str]) -> list[tuple[int, ...]]:
    """The same of names of tables."""
    matches = map(_ENTRIES_NAME.fullmatch, names)
    return sorted({tuple(map(int, match[1].split("_"))) for match in matches if match})


def _names(key_set: KeySet, generation: int) -> tuple[str, str]:
    """Of the tables of entries and of files."""
    suffix = _suffix(key_set)
    return f"entries_{suffix}_g{generation}", f"files_{suffix}_g{generation}"


def _key_types(key_set: KeySet) -> str:
    return ",".join(f"{column.field_id}:{column.key_type}" for column in key_set.columns)


def _suffix(key_set: KeySet) -> str:
    """The part of a table's name that tells the fields of its key set."""
    return "_".join(map(str, key_set.equality_field_ids))


def newest_generation(warehouse: IndexWarehouse, database: str, key_set: KeySet) -> int:
    """The highest generation of a key set's entries tables; 0 when there is none."""
    suffix = _suffix(key_set)
    matches = (_ENTRIES_NAME.fullmatch(name) for name in warehouse.table_names(database))
    return max((int(match[2]) for match in matches if match and match[1] == suffix), default=0)


def drop_older_generations(warehouse: IndexWarehouse, database: str, index: KeySetIndex) -> None:
    if index.generation == 1:
        return  # as nearly always: no listing is needed to know that
    suffix = _suffix(index.key_set)
    present = set(warehouse.table_names(database))
    for generation in range(1, index.generation):
        # The dictionary first: an index without one is empty, never wrong.
        for table in ("files", "entries"):
            if (name := f"{table}_{suffix}_g{generation}") in present:
                warehouse.drop_table(database, name)


def drop_index_of(warehouse: IndexWarehouse, database: str, field_ids: Sequence[int]) -> None:
    """Deletes all generations of the index of some equality fields."""
    suffix = "_".join(map(str, field_ids))
    for name in sorted(warehouse.table_names(database), reverse=True):  # a dictionary before its entries
        if re.fullmatch(rf"(files|entries)_{suffix}_g\d+", name):
            warehouse.drop_table(database, name)


def holds_only(warehouse: IndexWarehouse, database: str, index: KeySetIndex, live_files: DataFiles) -> bool:
    """Whether no file of the index has a key that is in none of the data files, or may have.

    Entries of data files that are gone, files that snapshots of the past need, and first and last keys of
    such files in manifests.
    """
    suffix = _suffix(index.key_set)
    generations = {
        match[2]
        for match in map(_ENTRIES_NAME.fullmatch, warehouse.table_names(database))
        if match and match[1] == suffix
    }
    if len(generations) > 1 or index.dead_ratio(live_files) > 0:
        return False
    storage, location = index.storage, index.entries_table.location
    present = {file.name for file in storage.list(f"{location}/{BUCKET}")}
    if present != {file.file_name for file in index.entries.files}:
        return False
    return not any(
        isinstance(record, dict) and record.get("_KIND") == _REMOVED
        for file in storage.list(f"{location}/manifest")
        for record in fastavro.reader(BytesIO(storage.read(file.location)))
    )


def damage_of(index: KeySetIndex) -> str | None:
    """What is wrong with the index, of which every file is read to its end; None when all can be read.

    Raises IndexCommitConflictError when it is no longer the latest and files of it are gone, and OSError when
    the store doesn't answer (a retry can help).
    """
    storage = index.storage
    for file in (*index.files.files, *index.entries.files):
        try:
            decode(storage, file.location)
        except FileNotFoundError:
            _check_latest(index)
            return f"{file.location} is missing"
        except (OSError, pa.ArrowException) as error:
            if storage.is_at_fault(error, [file.location], partial(decode, storage, file.location)):
                raise
            return f"{file.location} can't be decoded: {error}"
    for table in (index.files_table, index.entries_table):
        try:
            table.read_history()
        except Exception as error:
            _raise_if_at_fault(storage, error, table.location, table.read_history)
            return f"a manifest or snapshot in {table.location} can't be read: {error}"
    return None


def _check_latest(index: KeySetIndex) -> None:
    of_tables = (index.files_table, index.files), (index.entries_table, index.entries)
    if not all(table.is_latest(known) for table, known in of_tables):
        raise IndexCommitConflictError(
            "files of the index that this attempt had opened were compacted or dropped meanwhile",
            "Nothing to do: the next attempt opens what is there now.",
        )


def decode(storage: Storage, location: str) -> None:
    """Reads a file of the index to its end. Raises OSError or pa.ArrowException."""
    with storage.open_input(location) as source:
        metadata = read_footer(source)
        for group in range(metadata.num_row_groups):
            RowGroups(source, metadata).read([group], metadata.schema.names)


def _raise_if_at_fault(
    storage: Storage, error: Exception, table_location: str, read_again: Callable[[], object]
) -> None:
    """Raises an error that may be the store's own, or tells of too little memory."""
    if isinstance(error, FileNotFoundError):
        return
    files = (file.location for folder in TABLE_FOLDERS for file in storage.list(f"{table_location}/{folder}"))
    if storage.is_at_fault(error, files, read_again):
        raise error


def load_index(
    key_set: KeySet,
    generation: int,
    entries_table: RunTable,
    files_table: RunTable,
    known: IndexState | None = None,
) -> KeySetIndex:
    """Reads the dictionary first: entries committed after it only add addresses that it does not know.

    known: what was read before of the index, or of an earlier one: what is still so is not read again.

    Each table's snapshot says which one of the other it needs. Without its last snapshot a table would show
    an older state: a dictionary with files whose entries are not there, and deletes would find no row.
    """
    asked = [
        (files_table, known.files if known is not None else None),
        (entries_table, known.entries if known is not None else None),
    ]
    is_local = files_table.storage.is_local(files_table.location)
    # Both at once, unless a commit has come in between; one to both may still do.
    for waits in (not is_local, False, False):
        files, entries = side_by_side(lambda one: one[0].live_files(one[1]), asked, waits=waits)
        dictionary = _dictionary(files_table.storage, files, known)
        found = (files.paimon_snapshot_id or 0, entries.paimon_snapshot_id or 0)
        needed = (entries.beside, files.beside)
        if all(has >= needs for has, needs in zip(found, needed, strict=True)):
            return KeySetIndex(key_set, generation, entries_table, files_table, files, entries, dictionary)
    raise DamagedIndexError(
        f"snapshots are missing: dictionary and entries are at {found[0]} and {found[1]}, and must be at"
        f" {needed[0]} and {needed[1]} at least"
    )


def _dictionary(storage: Storage, files: LiveFiles, known: IndexState | None) -> FileDictionary:
    """Files of an index never change, and have names of their own: of a known one, nothing is read again."""
    before = frozenset(known.files.files) if known is not None else frozenset()
    new = [file for file in files.files if file not in before]
    if known is None or len(files.files) - len(new) < len(before):
        known, new = None, list(files.files)
    elif not new:
        return known.dictionary
    take_memory(INDEXED_FILE_BYTES * sum(file.rows for file in files.files))
    parts = read_parts(storage, new, DICTIONARY_SCHEMA)
    return FileDictionary(parts, known.dictionary if known is not None else None)


def entries_schema(key_set: KeySet) -> pa.Schema:
    """partition_id, null_mask, key columns, address: all of them the primary key, in sort order."""
    return pa.schema(
        [
            pa.field(PARTITION_ID, pa.int64(), nullable=False),
            *key_set.schema,
            pa.field(ROW_ADDRESS, pa.int64(), nullable=False),
        ]
    )
