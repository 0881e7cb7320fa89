"""All cases, by what they are about."""

from conformance.cases import deletes, evolution, files, keys, partitions, snapshots

ALL = [
    case for of_kind in (deletes, keys, partitions, evolution, files, snapshots) for case in of_kind.CASES.all
]
