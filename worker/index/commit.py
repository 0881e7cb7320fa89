"""The commits to an index: entries before their dictionary rows, dead files' rows before their entries."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from worker.index.dictionary import (
    DICTIONARY_SCHEMA,
    FileDictionary,
    IndexedFile,
    dictionary_rows,
    read_parts,
)
from worker.index.key_set_index import KeySetIndex
from worker.index.run_files import RunFile, write_run
from worker.index.sorted_runs import LiveFiles
from worker.table.files import DataFiles

DICTIONARY_FILES = 16  # that a compaction leaves at most, more or less


def commit_index(
    index: KeySetIndex,
    runs: Sequence[RunFile],
    files: Sequence[IndexedFile],
    replaced: Sequence[RunFile] = (),
    *,
    confirm_lease: Callable[[], None] = lambda: None,
) -> KeySetIndex:
    """Entries first, then their files: after the second commit, and only then, the files are covered.

    replaced: files of the index whose entries `runs` hold too. Raises IndexCommitConflictError when another
    commit came first.
    """
    confirm_lease()
    files_planned_on, entries = index.files, index.entries
    if replaced:
        # A merge drops entries that no file owns. Whoever was about to commit their files can't any more.
        files_planned_on = index.files_table.take_place(index.files)
    if runs or replaced:
        files_id = files_planned_on.paimon_snapshot_id or 0
        entries = index.entries_table.commit_files(index.entries, runs, replaced, files_id)
    confirm_lease()
    rows = dictionary_rows(files)
    written = write_run(index.storage, index.files_table.location, rows, primary_key=["base_address"])
    # Whoever has dropped entries without files since `index` was loaded has taken this snapshot's place.
    beside = entries.paimon_snapshot_id or 0
    known = index.files_table.commit_files(files_planned_on, written, beside=beside)
    dictionary = FileDictionary([rows], index.dictionary)
    return replace(index, files=known, entries=entries, dictionary=dictionary)


def forget_files(index: KeySetIndex, live_files: DataFiles) -> LiveFiles:
    """Takes the files that are not live out of the dictionary, and returns its files.

    Merges small files of the dictionary too, with each that is no larger than those before it together.
    Commits in any case, which keeps a late writer from adding files whose entries are about to be dropped:
    raises IndexCommitConflictError when that one came first.
    """
    files = sorted(index.files.files, key=lambda file: file.rows)
    bases = pa.array(index.dictionary.base_addresses[index.dictionary.are_live(live_files)])
    kept = []
    for file in files:
        rows = pa.concat_tables(read_parts(index.storage, [file], DICTIONARY_SCHEMA))
        kept.append(rows.filter(pc.is_in(rows["base_address"], bases)))
    merged = 0
    if len(files) > DICTIONARY_FILES:
        merged = 2
        while merged < len(files) and files[merged].rows <= sum(file.rows for file in files[:merged]):
            merged += 1
    replaced = [i for i, file in enumerate(files) if i < merged or kept[i].num_rows < file.rows]
    written = (
        write_run(
            index.storage,
            index.files_table.location,
            pa.concat_tables([kept[i] for i in replaced]).sort_by("base_address"),
            primary_key=["base_address"],
        )
        if replaced
        else []
    )
    beside = index.entries.paimon_snapshot_id or 0
    return index.files_table.commit_files(index.files, written, [files[i] for i in replaced], beside)
