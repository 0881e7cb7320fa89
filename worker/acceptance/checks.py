"""The steps that a table of an acceptance goes through, in order.

Invariant: a check passes by what it has seen of the table, not by what a job says of itself alone. It returns
what it saw, in words; it raises what was wrong, and NotTriedError with a reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import uuid4

from py4j.java_gateway import JavaObject

from icestream.connection import Json
from icestream.errors import ProblemError
from icestream.writes import json_rows
from telemetry.plurals import counted
from trust.locations import is_table_bucket, is_under
from worker.acceptance.lake import MARK, PLACES_ARE_GIVEN, LakeError, NotOursError, location_of, told
from worker.acceptance.orders import Row, to_arrow
from worker.acceptance.report import Problem
from worker.acceptance.service import JobEndedError, problem_of
from worker.acceptance.trial import NotPossibleError, NotTriedError, Trial, WrongError
from worker.io.storage import Storage
from worker.jobs.manifest_rewriting import RowIdsError

_STAGING = "icestream_acceptance_staged"
_OLD_SECONDS = 2 * 86_400
"""Older than the youngest file that a removal of orphan files takes."""
_RUNS = ("running",)
_RACES = 5
"""So often is a race tried: a job may have ended before somebody else has committed."""
_NOT_KEPT = Problem(
    "properties_not_kept",
    "The catalog does not keep the properties of tables",
    "",
    "Let it keep what begins with icestream.acceptance. Else a table that a run has left can't be told from"
    " those of others.",
)
_BEFORE_JOB_SECONDS = 8
"""For the call that pauses the table; the job waits for its own time until then."""


@dataclass(frozen=True)
class Check:
    """essential: nothing after it can be tried if it fails. compares: all rows are read after it."""

    name: str
    run: Callable[[Trial], str]
    essential: bool = False
    compares: bool = True


def create(trial: Trial) -> str:
    """A catalog that makes the table, and only not with format version 3, refuses that version."""
    wanted, said = trial.format_version, ""
    try:
        table = _new_table(trial, wanted)
    except LakeError as error:
        instead = _instead(trial) if wanted >= 3 else None
        if instead is None:
            if trial.wanted_location is not None:
                error.advise("If the catalog chooses the places of tables itself, leave --location out.")
            raise
        table, said = instead, f": {error}"
    trial.table_uuid = str(table.uuid().toString())
    _read_mark_back(trial)
    _look_at_place(trial, table)
    made = int(table.operations().current().formatVersion())
    if made < wanted:
        raise NotPossibleError(
            f"The catalog refuses format version {wanted}{said}. It made the same table with version {made}."
        )
    parts = "by region" if trial.by_region else "unpartitioned"
    return f"Format version {made}, {parts}, at {trial.location}."


def _new_table(trial: Trial, format_version: int) -> JavaObject:
    return trial.lake.create_table(
        trial.identifier,
        format_version,
        trial.key,
        str(trial.mark),
        by_region=trial.by_region,
        location=trial.wanted_location,
    )


def _instead(trial: Trial) -> JavaObject | None:
    """The table as it was wanted, if only the first try failed, or else with format version 2."""
    for format_version in (trial.format_version, 2):
        with suppress(LakeError):
            return _new_table(trial, format_version)
    return None


def _read_mark_back(trial: Trial) -> None:
    """A removal may rely on it. Without it, the table goes by its UUID, which this process alone knows."""
    if trial.lake.mark_of(trial.identifier) == trial.mark:
        return
    trial.mark = None
    raise LakeError(f"{MARK} was given to the new table, and is not there.", _NOT_KEPT)


def _look_at_place(trial: Trial, table: JavaObject) -> None:
    """That its files lie where they are wanted, and alone."""
    location = location_of(table)
    if trial.wanted_location is not None and not _is_same_place(location, trial.wanted_location):
        said = f"It has put the table at {location} and not at {trial.wanted_location}."
        raise LakeError(f"{said} What else lies there stays.", PLACES_ARE_GIVEN)
    if is_table_bucket(location):  # which came with the table, and goes with it
        trial.location = location
        return
    metadata_file = str(table.operations().current().metadataFileLocation()).rpartition("/")[2]
    found = trial.lake.files(trial.lake.storage_of(table), location)
    if others := sorted(found - _files_of_new_table(location, metadata_file)):
        raise NotOursError(f"{location} had files before the table came: {others[0]}. They stay.")
    trial.lake.own_place(table)
    trial.location = location


def _is_same_place(one: str, other: str) -> bool:
    """Whether two locations differ at most in how they are written."""
    return is_under(one, other) and is_under(other, one)


def _files_of_new_table(location: str, metadata_file: str) -> set[str]:
    """With those that Hadoop's catalog and its local file system put beside."""
    names = (metadata_file, "version-hint.text")
    return {f"{location}/metadata/{name}" for one in names for name in (one, f".{one}.crc")}


def use_store(trial: Trial) -> str:
    """Whether this process may do with files what workers must."""
    storage, place = trial.storage(), f"{trial.location}/data/{uuid4()}.probe"
    with told("write a file"):
        storage.write(place, to_arrow([]).schema.serialize())
    with told("read a file"):
        storage.read(place)
    is_listed = _unless_refused(
        trial, "list files", lambda: place in {one.location for one in storage.walk(f"{trial.location}/data")}
    )
    is_left = _unless_refused(trial, "delete files", lambda: _is_left(storage, place))
    if is_left:
        raise WrongError(f"{place} is still there after its deletion.")
    if is_listed is False:
        raise WrongError(f"{place} was written, and is not listed.")
    refused = "".join(f" S3 Tables lets nobody {task}." for task in trial.refused)
    done = [word for word, seen in (("listed", is_listed), ("deleted", is_left)) if seen is not None]
    return f"A file was {', '.join(['written', 'read', *done])}.{refused}"


def _is_left(storage: Storage, place: str) -> bool:
    """After its deletion."""
    storage.delete(place)
    return storage.exists(place)


def _unless_refused(trial: Trial, task: str, act: Callable[[], bool]) -> bool | None:
    """None for what S3 Tables refuses to everybody. Of another store, a refusal is of this identity."""
    try:
        with told(task):
            return act()
    except LakeError as error:
        if not is_table_bucket(trial.location or ""):
            raise
        trial.refused[task] = str(error)
        return None


def fill(trial: Trial) -> str:
    """As a streaming writer does; every later check rests on these rows."""
    writer = trial.writer()
    writer.load(range(400))
    for _ in range(3):
        writer.checkpoint(
            [*trial.some(30, skip=len(trial.orders.rows)), *trial.new(10)], trial.some(11, skip=3)
        )
    number = trial.equality_deletes()
    if not number:
        raise WrongError("The table has no equality deletes after they were committed.")
    return f"4 commits left {counted(number, 'equality delete file')}."


def enroll(trial: Trial) -> str:
    """With the built-in policy by which nothing starts by itself."""
    body = {"catalog": trial.lake.name, "identifier": trial.identifier, "policy": "manual"}
    enrolled = trial.service.post("/tables", body)
    trial.table_id, trial.index_warehouse = enrolled["id"], enrolled["index_warehouse"]
    seen = (enrolled["table_uuid"].lower(), enrolled["format_version"])
    if seen != ((trial.table_uuid or "").lower(), trial.format_version):
        raise WrongError(f"The service sees another table of that name: {seen}.")
    return f"The service sees the table; its index goes to {trial.index_warehouse}."


def index(trial: Trial) -> str:
    return _indexed(trial, "index")


def rebuild(trial: Trial) -> str:
    return _indexed(trial, "rebuild")


def _indexed(trial: Trial, kind: str) -> str:
    """That a job has read all data files of the head for the one key set."""
    done = trial.service.run(trial.id, kind)["key_sets"]
    files, rows = _all_of_head(trial, done, "files_indexed", "rows_indexed")
    return f"{counted(files, 'data file')} with {counted(rows, 'row')} were indexed."


def _all_of_head(trial: Trial, done: Sequence[Json], files: str, rows: str) -> tuple[int, int]:
    """The data files and rows of a job's result, for one key set. Raises WrongError if the head has more."""
    if len(done) != 1:
        raise WrongError(f"The job has looked at {counted(len(done), 'key set')}, and there is 1.")
    summary = trial.summary()
    there = (int(summary["total-data-files"]), int(summary["total-records"]))
    seen = (int(done[0][files]), int(done[0][rows]))
    if seen != there:
        raise WrongError(f"The job tells of {seen} data files and rows, and the table has {there}.")
    return seen


def foretell(trial: Trial) -> str:
    """A dry run changes nothing."""
    head, pending = trial.head(), trial.equality_deletes()
    told_of = trial.service.run(trial.id, "convert", dry_run=True)["equality_delete_files_removed"]
    if trial.head() != head or told_of != pending:
        raise WrongError(
            f"The dry run tells of {told_of} of {pending} equality delete files"
            + (", and the table has changed." if trial.head() != head else ".")
        )
    return f"{counted(pending, 'equality delete file')} would go; nothing has changed."


def convert(trial: Trial) -> str:
    before, pending = trial.head(), trial.equality_deletes()
    if not pending:
        raise NotTriedError("No equality deletes wait.")
    result = trial.service.run(trial.id, "convert")
    said = _converted(trial, result)
    trial.compare(snapshot_id=before)
    return f"{said} The snapshot of before shows the same rows."


def _converted(trial: Trial, result: Json) -> str:
    """What is there in the place of equality deletes. Raises WrongError if some are left."""
    files = trial.delete_files()
    kind = "PUFFIN" if trial.format_version >= 3 else "PARQUET"
    if wrong := {one for one in files if not one[0].startswith("POSITION") or one[1] != kind}:
        raise WrongError(f"Deletes are left that no reader should have to apply: {sorted(wrong)}.")
    removed, rows = (result[name] for name in ("equality_delete_files_removed", "rows_deleted"))
    there = "deletion vector" if trial.format_version >= 3 else "position delete file"
    return (
        f"{counted(removed, 'equality delete file')} became {counted(files.total(), there)}, "
        f"{counted(rows, 'row')} deleted."
    )


def verify(trial: Trial) -> str:
    done = trial.service.run(trial.id, "verify")["key_sets"]
    if not done:
        raise WrongError("The table has no index to be verified.")
    if wrong := sum(one["differences"] for one in done):
        raise WrongError(f"The index differs from the data files in {counted(wrong, 'place')}.")
    _, rows = _all_of_head(trial, done, "files_covered", "rows_checked")
    return f"{counted(rows, 'row')} were found in the index."


def look_up(trial: Trial) -> str:
    live = list(trial.some(5))
    gone = sorted(trial.orders.versions.keys() - trial.orders.rows.keys())[:3]
    keys = [_key(trial, trial.orders.rows.get(one) or _row(trial, one)) for one in (*live, *gone)]
    try:
        answer = trial.service.post(
            f"/tables/{trial.id}/lookups", {"keys": keys, "key_columns": list(trial.key)}
        )
    except ProblemError as error:
        if error.type.endswith("/lookups-not-set-up"):
            raise NotTriedError(f"{error.detail} {error.remedy}") from None
        raise
    seen = [sum(one["live"] for one in result["matches"]) for result in answer["results"]]
    if seen != [1] * len(live) + [0] * len(gone):
        raise WrongError(
            f"Live rows of {len(live)} keys that have one, and {len(gone)} that have none: {seen}."
        )
    return f"{counted(len(keys), 'key')} have the rows that they must have."


def _raced(race: Callable[[Trial], tuple[str, bool]], trial: Trial) -> str:
    """What was seen of a race, once it was one. race: also whether the job was still at work after it."""
    for _ in range(_RACES):
        said, was_one = race(trial)
        if was_one:
            return said
    raise NotTriedError(
        f"The job had ended before the other commit, {_RACES} times: nothing can be said of a race. Rows and"
        " deletes were right each time."
    )


def _convert_beside_compaction(trial: Trial) -> tuple[str, bool]:
    """Somebody replaces a data file while its rows are looked up: one of the two commits has to lose."""
    writer, new = trial.writer(), list(trial.new(40))
    loaded = writer.load(new, files=1)[0]
    sequence_number = int(trial.load().currentSnapshot().sequenceNumber())
    of_file = [trial.orders.rows[one] for one in new]
    if trial.by_region:
        of_file = [row for row in of_file if row[1] == loaded["partition"][0]]
    writer.checkpoint([], [row[0] for row in of_file[::2]])
    head = trial.head()
    job = trial.service.request(trial.id, "convert")
    trial.service.await_status(job["id"], _RUNS)
    with trial.lake.committing("replace a data file"):
        came_first = writer.compact(loaded, of_file, sequence_number, head)
    was_one = trial.service.is_running(job)
    result = trial.service.result_of(job)
    said = _converted(trial, result)
    trial.compare()
    who = (
        "the compaction was committed, and the conversion fitted it"
        if came_first
        else "the compaction was refused"
    )
    return f"{said} Meanwhile, {who}.", was_one


def _convert_beside_rollback(trial: Trial) -> tuple[str, bool]:
    """The snapshot that is converted is taken away while the job is at work."""
    before, rows = trial.head(), dict(trial.orders.rows)
    trial.writer().checkpoint([*trial.some(10, skip=1), *trial.new(5)], trial.some(3, skip=2))
    job = trial.service.request(trial.id, "convert")
    trial.service.await_status(job["id"], _RUNS)
    with trial.lake.committing("roll the table back"):
        trial.load().manageSnapshots().rollbackTo(before).commit()
    was_one = trial.service.is_running(job)
    trial.orders.rows = rows
    trial.service.result_of(job)
    if left := trial.equality_deletes():
        raise WrongError(
            f"{counted(left, 'equality delete file')} of the snapshot that was rolled back are there."
        )
    trial.compare()
    return "What was rolled back has not come back.", was_one


def upsert(trial: Trial) -> str:
    rows = [trial.orders.new_row(one) for one in (*trial.some(7, skip=4), *trial.new(3))]
    replaced = sum(row[0] in trial.orders.rows for row in rows)
    body = {"rows": json_rows(to_arrow(rows)), "key_columns": list(trial.key)}
    result = trial.service.result_of(trial.service.post(f"/tables/{trial.id}/rows/upsert", body))
    trial.orders.put(rows)
    return _written(trial, result, added=len(rows), deleted=replaced)


def delete(trial: Trial) -> str:
    gone = list(trial.some(6, skip=5))
    body = {"keys": [_key(trial, trial.orders.rows[one]) for one in gone], "key_columns": list(trial.key)}
    result = trial.service.result_of(trial.service.post(f"/tables/{trial.id}/rows/delete", body))
    trial.orders.remove(gone)
    return _written(trial, result, added=0, deleted=len(gone))


def _written(trial: Trial, result: Json, added: int, deleted: int) -> str:
    seen = (result["rows_added"], result["rows_deleted"])
    if seen != (added, deleted):
        raise WrongError(f"Rows added and deleted are {seen}, and must be {(added, deleted)}.")
    if trial.equality_deletes():
        raise WrongError("A write by key has left equality deletes.")
    return f"{counted(added, 'row')} added, {counted(deleted, 'row')} deleted, by position alone."


def publish(trial: Trial) -> str:
    """What a writer commits to a branch of its own comes to main without equality deletes."""
    trial.service.patch(f"/tables/{trial.id}", {"publish": {"from": _STAGING}})
    try:
        before = trial.orders.visible
        for _ in range(2):
            upserted = [*trial.some(8, skip=6), *trial.new(4)]
            trial.writer().checkpoint(upserted, trial.some(3, skip=7), _STAGING)
        trial.compare(expected=before)
        result = trial.service.run(trial.id, "publish")
        if (number := result["staged_snapshots"]) != 2:
            raise WrongError(f"{number} of 2 staged snapshots were published.")
        if left := trial.equality_deletes():
            raise WrongError(f"{counted(left, 'equality delete file')} came along.")
    except BaseException:
        with suppress(Exception):  # what went wrong first is what is told
            _end_staging(trial)
        raise
    _end_staging(trial)
    return f"2 staged snapshots were published: {counted(result['rows_added'], 'row')} added."


def _end_staging(trial: Trial) -> None:
    """Later steps find neither a staging branch nor what it holds."""
    trial.service.patch(f"/tables/{trial.id}", {"publish": None})
    table = trial.load()
    if table.refs().containsKey(_STAGING):
        with trial.lake.committing("drop a branch"):
            table.manageSnapshots().removeBranch(_STAGING).commit()


def compact_index(trial: Trial) -> str:
    trial.service.run(trial.id, "index")
    trial.service.run(trial.id, "compact")
    return verify(trial)


def report_duplicates(trial: Trial) -> str:
    """By the model, there are none."""
    done = trial.service.run(trial.id, "report_duplicates")["key_sets"]
    _, rows = _all_of_head(trial, done, "files_checked", "rows_checked")
    if number := done[0]["duplicate_keys"]:
        raise WrongError(f"It tells of {counted(number, 'key')} with several live rows, and there is none.")
    return f"No two live rows have the same key, of {counted(rows, 'row')}."


def rewrite_position_deletes(trial: Trial) -> str:
    """What was a file for each data file becomes one for each partition, once the table wants that."""
    with trial.lake.committing("set a property of the table"):
        trial.load().updateProperties().set("write.delete.granularity", "partition").commit()
    before = trial.delete_files().total()
    told_of = trial.service.run(trial.id, "rewrite_position_delete_files", min_input_files=2)["delete_files"]
    after = trial.delete_files().total()
    rewritten, added = told_of["delete_files_rewritten"], told_of["delete_files_added"]
    if after >= before or before - after != rewritten - added:
        raise WrongError(f"{rewritten} should have become {added}, and there are {after} of {before}.")
    return f"{counted(rewritten, 'position delete file')} became {added}."


def rewrite_data_files(trial: Trial) -> str:
    """Pending equality deletes are converted on the way."""
    trial.writer().checkpoint([*trial.some(9, skip=10), *trial.new(5)], trial.some(4, skip=11))
    before = int(trial.summary()["total-data-files"])
    told_of = trial.service.run(trial.id, "rewrite_data_files", min_input_files=2, size_ratio=10**9)[
        "data_files"
    ]
    after = int(trial.summary()["total-data-files"])
    rewritten, added = told_of["data_files_rewritten"], told_of["data_files_added"]
    if not rewritten or before - after != rewritten - added:
        raise WrongError(f"{rewritten} should have become {added}, and there are {after} of {before}.")
    if trial.equality_deletes():
        raise WrongError("Equality deletes are left.")
    return f"{counted(rewritten, 'data file')} became {added}."


def rewrite_manifests(trial: Trial) -> str:
    for _ in range(2):
        trial.writer().load(trial.new(8), files=1)
    before = _manifests(trial)
    try:
        told_of = trial.service.run(trial.id, "rewrite_manifests")["manifests"]
    except JobEndedError as error:
        if error.problem.code != RowIdsError.code:
            raise
        raise NotPossibleError(f"{error.problem.title}: {error}. {error.problem.remedy}") from error
    after = _manifests(trial)
    rewritten, added = told_of["manifests_rewritten"], told_of["manifests_added"]
    if after >= before or before - after != rewritten - added:
        raise WrongError(f"{rewritten} should have become {added}, and there are {after} of {before}.")
    return f"{counted(rewritten, 'manifest')} became {added}."


def _manifests(trial: Trial) -> int:
    """Of data and of deletes, at the head."""
    table = trial.load()
    with told("read the list of manifests"):
        return int(table.currentSnapshot().allManifests(table.io()).size())


def expire_snapshots(trial: Trial) -> str:
    trial.needs("delete files")
    head, before = trial.head(), trial.load().operations().current().snapshots().size()
    told_of = trial.service.run(trial.id, "expire_snapshots", older_than_seconds=0, retain_last=1)["expiry"]
    after = trial.load().operations().current().snapshots().size()
    if trial.head() != head or after != before - told_of["snapshots_expired"] or after >= before:
        raise WrongError(
            f"{told_of['snapshots_expired']} should have gone, and there are {after} of {before}."
        )
    held = f", {told_of['snapshots_held']} held" if told_of["snapshots_held"] else ""
    return f"{counted(told_of['snapshots_expired'], 'snapshot')} went{held}."


def keep_young_orphans(trial: Trial) -> str:
    """A file that somebody may be about to commit stays, and so does all that the table needs."""
    trial.needs("list files")
    with told("write a file"):
        trial.writer().leave_file()
    before = _files(trial)
    _remove_orphans(trial)
    if gone := before - _files(trial):
        raise WrongError(f"{counted(len(gone), 'file')} went that had to stay, such as {min(gone)}.")
    return "A young file without a name stays, and so do all others."


def remove_old_orphans(trial: Trial) -> str:
    trial.needs("list files")
    if not trial.storage().is_local(trial.location or ""):
        raise NotPossibleError(
            "A file goes only once it is a day old, and this store itself says how old it is. Run with"
            " --keep, and look at a dry run after a day."
        )
    with told("write a file"):
        place = trial.writer().leave_file()
        old = time.time() - _OLD_SECONDS
        os.utime(trial.storage().resolve(place)[1], (old, old))
    before = _files(trial)
    removed = _remove_orphans(trial)
    gone = before - _files(trial)
    if gone != {place}:
        raise WrongError(f"{place} should have gone; {sorted(gone)} did, and the job tells of {removed}.")
    return "A file that nothing names and that is two days old went, and no other."


def _files(trial: Trial) -> set[str]:
    return trial.lake.files(trial.storage(), trial.location or "")


def _remove_orphans(trial: Trial) -> int:
    """What a dry run lists. Returns how many files went."""
    dry_run = trial.service.request(trial.id, "remove_orphan_files", dry_run=True, older_than_seconds=86_400)
    trial.service.result_of(dry_run)
    told_of = trial.service.run(trial.id, "remove_orphan_files", dry_run_job_id=dry_run["id"])["orphans"]
    if told_of["files_failed"]:
        raise WrongError(f"{counted(told_of['files_failed'], 'file')} could not be deleted.")
    return int(told_of["files_deleted"])


def erase(trial: Trial) -> str:
    """Rows of some keys leave all files, and a receipt says so."""
    trial.needs("delete files")
    gone = list(trial.some(4, skip=12))
    keys = [_key(trial, trial.orders.rows[one]) for one in gone]
    body = {
        "keys": keys,
        "key_columns": list(trial.key),
        "tables": [trial.id],
        "note": f"acceptance: {trial.identifier[-1]}",
    }
    try:
        erasure = trial.service.post("/erasures", body)
    except ProblemError as error:
        if error.type.endswith("/erasures-not-set-up"):
            raise NotTriedError(f"{error.detail} {error.remedy}") from None
        raise
    for one in erasure["tables"]:
        trial.service.result_of({"id": one["job_id"]})
    trial.orders.remove(gone)
    receipt = trial.service.get(f"/erasures/{erasure['id']}/receipt")
    (table,) = receipt["tables"]
    if not receipt["complete"] or table["counts"]["gone"] != len(gone):
        held = (table["report"] or {}).get("held")
        raise WrongError(f"Of {len(gone)} keys, the receipt says {table['counts']}; held by {held}.")
    return f"The receipt says that {counted(len(gone), 'key')} are gone from all files."


def miss_a_data_file(trial: Trial) -> str:
    """What can't be converted stays, and is reported with its reason."""
    trial.needs("delete files")
    writer, new = trial.writer(), list(trial.new(20))
    lost = writer.load(new, files=1)[0]["file-path"]
    deleted = new[::2]
    writer.checkpoint([], deleted)
    pending = trial.equality_deletes()
    with told("delete a data file"):
        trial.storage().delete(lost)
    result = trial.service.run(trial.id, "convert")
    reasons = {(one["code"], one["remedy"]) for one in result["unconvertible"]}
    if {code for code, _ in reasons} != {"missing_file"} or trial.equality_deletes() == 0:
        raise WrongError(
            f"Of {pending} equality delete files, {trial.equality_deletes()} are left, for {reasons}."
        )
    remedy = min(remedy for _, remedy in reasons)
    return f"The equality delete stays, and the job says why (missing_file) and what to do: {remedy}"


def drop_under_a_job(trial: Trial) -> str:
    """The table goes before its job starts: the job fails with words, and nothing comes in its place."""
    starts = trial.service.now() + timedelta(seconds=_BEFORE_JOB_SECONDS)
    body = {"kind": "convert", "run_at": starts.isoformat()}
    job = trial.service.post(f"/tables/{trial.id}/jobs", body)
    trial.service.post(f"/tables/{trial.id}/pause")  # of a paused table no job starts, nor is any queued
    if trial.service.get(f"/jobs/{job['id']}")["status"] != "queued":
        raise NotTriedError("The job had begun before the table was paused: the service answers slowly.")
    trial.drop()
    trial.service.post(f"/tables/{trial.id}/resume")
    ended = trial.service.ended(job["id"])
    if ended["status"] != "failed":
        raise WrongError(f"The job of a table that was dropped was {ended['status']}.")
    problem = problem_of(ended)
    if problem.code != "table_not_found":
        raise JobEndedError(problem)
    if trial.lake.has_table(trial.identifier):
        raise WrongError("A table has come in the place of the one that was dropped.")
    return f"The job failed: {problem.title}. {problem.remedy}"


def _key(trial: Trial, row: Row) -> Json:
    named = dict(zip(("order_id", "region"), row[:2], strict=True))
    return {name: named[name] for name in trial.key}


def _row(trial: Trial, order_id: int) -> Row:
    """A row of an order that is gone, without writing it."""
    return trial.orders.copy().new_row(order_id)


MAKING: Sequence[Check] = (
    Check("create the table", create, essential=True, compares=False),
    Check("use the store", use_store, compares=False),
    Check("write as a stream does", fill, essential=True),
    Check("enrol it", enroll, essential=True),
)
JOBS: Sequence[Check] = (
    *MAKING,
    Check("index", index),
    Check("convert (dry run)", foretell),
    Check("convert", convert),
    Check("verify", verify),
    Check("look keys up", look_up),
    Check("fault: compaction beside a conversion", partial(_raced, _convert_beside_compaction)),
    Check("fault: rollback under a conversion", partial(_raced, _convert_beside_rollback)),
    Check("upsert by key", upsert),
    Check("delete by key", delete),
    Check("publish a staging branch", publish),
    Check("compact the index", compact_index),
    Check("rebuild the index", rebuild),
    Check("report duplicates", report_duplicates),
)
POSITION_DELETES = Check("rewrite_position_delete_files", rewrite_position_deletes)
MAINTENANCE: Sequence[Check] = (
    Check("rewrite_data_files", rewrite_data_files),
    Check("rewrite_manifests", rewrite_manifests),
    Check("expire_snapshots", expire_snapshots),
    Check("remove_orphan_files: young ones stay", keep_young_orphans),
    Check("remove_orphan_files: old ones go", remove_old_orphans),
    Check("erase keys", erase),
)
FAULTS: Sequence[Check] = (
    *MAKING,
    Check("fault: a data file is missing", miss_a_data_file, compares=False),
    Check("fault: the table is dropped", drop_under_a_job, compares=False),
)


def checks_of(format_version: int) -> Sequence[Check]:
    """Of a table that goes through all kinds of jobs. Format version 3 has no position delete files."""
    return (*JOBS, *([POSITION_DELETES] if format_version < 3 else []), *MAINTENANCE)
