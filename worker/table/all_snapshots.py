"""What all snapshots of a table name, whichever of them shows it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from worker.process.slots import Threads
from worker.table.manifests import (
    READ_AHEAD,
    READ_THREADS,
    Manifest,
    ReadManifest,
    read_manifest,
    read_manifest_list,
)


def delete_files_of_all_snapshots(metadata: TableMetadata, io: FileIO) -> set[str]:
    """The path of every delete file that some snapshot of the table shows. Reads every delete manifest."""
    manifests = manifests_of_all_snapshots(metadata, io, ManifestContent.DELETES)
    return {path for _, deletes in _entries(metadata, io, manifests) for path in deletes.paths()}


def data_files_of_all_snapshots(metadata: TableMetadata, io: FileIO) -> set[str]:
    """The path of every data file that some snapshot of the table shows. Reads every data manifest."""
    manifests = manifests_of_all_snapshots(metadata, io, ManifestContent.DATA)
    return {path for files, _ in _entries(metadata, io, manifests) for path in files.paths()}


def paths_of_all_snapshots(
    metadata: TableMetadata, io: FileIO, read_before: set[str] | None = None, *, may_be_gone: bool = False
) -> set[str]:
    """Every path that some snapshot needs: of manifest lists, manifests, data and delete files.

    read_before: manifests that are not read again; those that are read join them. may_be_gone: what is
    missing of the metadata is left out.
    """
    manifests = manifests_of_all_snapshots(metadata, io, may_be_gone=may_be_gone)
    needed = {snapshot.manifest_list for snapshot in metadata.snapshots} | manifests.keys()
    read_before = set() if read_before is None else read_before
    new = {path: one for path, one in manifests.items() if path not in read_before}
    for files, deletes in _entries(metadata, io, new, may_be_gone=may_be_gone):
        needed.update(files.paths(), deletes.paths())
    read_before.update(new)
    return needed


def manifests_of_all_snapshots(
    metadata: TableMetadata, io: FileIO, content: ManifestContent | None = None, *, may_be_gone: bool = False
) -> dict[str, Manifest]:
    """Of whatever snapshot, by path. content: of this alone. Reads every manifest list."""
    snapshots = {snapshot.manifest_list: snapshot for snapshot in metadata.snapshots}

    def read(snapshot: Snapshot) -> list[Manifest]:
        with suppress(*(FileNotFoundError,) * may_be_gone):
            return read_manifest_list(io, snapshot)
        return []

    with Threads(READ_THREADS) as threads:
        lists = threads.map(read, snapshots.values())
        return {one.path: one for of_list in lists for one in of_list if content in (None, one.content)}


def _entries(
    metadata: TableMetadata, io: FileIO, manifests: Mapping[str, Manifest], *, may_be_gone: bool = False
) -> Iterator[ReadManifest]:
    """What manifests name. A path that some snapshot shows is live in a manifest of its."""
    specs, all_of_them = {spec.spec_id: spec for spec in metadata.partition_specs}, [*manifests.values()]

    def read(manifest: Manifest) -> ReadManifest | None:
        with suppress(*(FileNotFoundError,) * may_be_gone):
            return read_manifest(io, manifest, specs)
        return None

    with Threads(READ_THREADS) as threads:
        for start in range(0, len(all_of_them), READ_AHEAD):
            yield from filter(None, threads.map(read, all_of_them[start : start + READ_AHEAD]))
