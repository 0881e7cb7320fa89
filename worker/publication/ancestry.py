"""What was published last on a branch, where its known history says nothing of it any more.

Invariant: an answer is a fact. Ancestors are named by earlier metadata files, and manifests are inherited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata

from staging.history import BRANCH, History, Publication, properties
from stores.table_metadata import read_table_metadata
from trust.locations import LocationNotAllowedError
from worker.attempt.pinned_table import PinnedTable
from worker.table.manifests import read_manifest_list

_FILES = 100  # as many as Iceberg keeps by itself


def last_publication(
    table: PinnedTable, source: str, publication: Publication, is_last: bool
) -> Publication | Literal[False] | None:
    """The last publication of branch `source` among the ancestors of the table's branch, down to a given one.

    False if the given one is none of them; None if nothing tells. is_last: False where the given one will do.
    Raises PublicationUnreadableError, or as `read_snapshot_files`.
    """
    wanted, head = publication.target_snapshot_id, table.snapshot
    if head is None:
        return False
    if not is_last and any(
        one.added_snapshot_id == wanted for one in read_manifest_list(table.storage.io, head)
    ):
        return publication
    parents = {one.snapshot_id: one for one in table.metadata.snapshots}
    at = History.of(table.metadata, table.branch).snapshots[-1]
    for metadata in _earlier(table):
        parents |= {one.snapshot_id: one for one in metadata.snapshots}
        at = parents.get(at.snapshot_id, at)  # PyIceberg's expiry takes the parent's id away
        while (parent := at.parent_snapshot_id) in parents:
            at = parents.pop(parent)
            if at.snapshot_id == wanted:
                return publication
            if properties(at).get(BRANCH) == source:
                return Publication.by(at)
            if (at.sequence_number or 0) <= publication.target_sequence_number:
                return False
    return None


def _earlier(table: PinnedTable) -> Iterator[TableMetadata]:
    """What earlier metadata files say that are still there, the newest first."""
    for entry in table.metadata.metadata_log[: -_FILES - 1 : -1]:
        try:
            yield read_table_metadata(table.storage.io.new_input(entry.metadata_file))
        except (FileNotFoundError, LocationNotAllowedError, ValidationError, ValueError):
            continue
