"""Whether deletion vectors share Puffin files: what the policy wants, and what speaks against it.

Iceberg's own expiry (`IncrementalFileCleanup`) deletes a delete file by its path, once the snapshot has
expired that removed one of the vectors in there. So a file may hold several only where whoever lets snapshots
expire compares paths with all that is live, as jobs of kind expire_snapshots do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from worker.attempt.job import Job
from worker.deletes.puffin import LEAST_OF_OTHERS_BYTES, VectorRange, has_others, size_of_file
from worker.table.files import DataFiles, DeleteFile, DeleteFiles

ONE_PER_TASK = "one_per_task"
LEAST_LIVE_SHARE = 0.25
"""Of a shared file's bytes, below which what is live in there moves: so what is dead takes three times as
much at most, and a vector seldom moves."""
MOVES_AT_MOST = 10_000
"""Of vectors that one plan moves for no other reason than that files are not shared any more."""
_OWN_NAME = "icestream-"
_MISREADS = "duckdb"  # 1.5.5, with its cache of files


def shares_files(job: Job) -> bool:
    """Whether the vectors that a task writes lie in one file. Where the policy wants that and something
    speaks against it, the job tells."""
    if job.assignment.policy.convert.deletion_vector_files != ONE_PER_TASK:
        return False
    why_not = _why_not(job)
    if why_not is None:
        return True
    told = (
        "Each deletion vector gets a file of its own, though the policy lets those of a task share one:"
        f" {why_not}."
    )
    if told not in job.decisions:
        job.decide(told)
    return False


def _why_not(job: Job) -> str | None:
    policy = job.assignment.policy
    danger = "Iceberg's expireSnapshots() deletes such a file as soon as one of its vectors was replaced"
    if not policy.expire_snapshots.enabled:
        return f"no job lets snapshots expire by this policy (expire_snapshots.enabled), and {danger}"
    if job.assignment.table.snapshots_expire_elsewhere:
        return f"somebody else lets snapshots of this table expire, too, and {danger}"
    named = [name for name in policy.convert.readers if name.partition("-")[0] == _MISREADS]
    if named:
        return f"{named[0]} reads the table (convert.readers), and can take one vector of a file for another"
    return None


def to_be_moved(
    removed: Iterable[DeleteFile],
    position_deletes: DeleteFiles,
    data_files: DataFiles,
    *,
    may_stay: bool = False,
    parts: bool = False,
) -> tuple[DataFiles, int]:
    """The data files whose vectors are to be written anew, because of some that a commit removes.

    may_stay: in files of this project's, beside others that were replaced; they move then only once little
    of their file is live. Else all of such files move. parts: and so do all others that share files of this
    project's, `MOVES_AT_MOST` of them; how many are left comes with the files.
    """
    gone = {(one.path, one.referenced_data_file) for one in removed if one.is_deletion_vector}
    touched = {path for path, _ in gone}
    left: dict[str, list[DeleteFile]] = defaultdict(list)
    near = position_deletes.are_vectors & position_deletes.are_named(touched)
    if parts:
        near |= share_own_files(position_deletes)
    for one in position_deletes.where(near):
        if (one.path, one.referenced_data_file) not in gone:
            left[one.path].append(one)
    moved: set[str] = set()
    later = 0
    for path, vectors in left.items():
        # What was written by others would not be known once none may stay.
        if may_stay and _is_own(path) and _live_share(vectors) >= LEAST_LIVE_SHARE:
            continue
        if path not in touched and moved and len(moved) + len(vectors) > MOVES_AT_MOST:
            later += len(vectors)
            continue
        moved |= {one.referenced_data_file for one in vectors if one.referenced_data_file is not None}
    return data_files.with_paths(moved), later


def share_own_files(deletes: DeleteFiles) -> npt.NDArray[np.bool_]:
    """Which of them are vectors with others, dead ones too, in files of this project's."""
    room = deletes.file_sizes_bytes - np.maximum(deletes.content_sizes_bytes, 0) - LEAST_OF_OTHERS_BYTES
    # Text in JSON is seldom much longer than it is.
    found = deletes.are_vectors & (room >= deletes.named_lengths)
    found[found] = [_shares_own_file(one) for one in deletes.where(found)]
    return found


def _shares_own_file(one: DeleteFile) -> bool:
    sizes = one.file_size_bytes, one.content_size_bytes or 0
    return has_others(*sizes, one.referenced_data_file or "") and _is_own(one.path)


def _is_own(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_OWN_NAME)


def _live_share(vectors: Sequence[DeleteFile]) -> float:
    """Of the file in which these vectors are what is live: exactly if this project wrote it, else about."""
    ranges = [
        VectorRange(
            one.referenced_data_file or "",
            one.content_offset or 0,
            one.content_size_bytes or 0,
            one.record_count,
        )
        for one in vectors
    ]
    file_size_bytes = max(one.file_size_bytes for one in vectors)
    return size_of_file(ranges) / max(file_size_bytes, 1)
