"""The places that policies are attached to, by what an attachment's row is found by. Pure."""

import json
from collections.abc import Sequence

from service.records.tables import EnrolledTable

SYSTEM_TARGET = "system"


def table_target(table_id: str) -> str:
    return f"table:{table_id}"


def namespace_target(catalog_id: str, parts: Sequence[str]) -> str:
    """Names the parts, in which there may be dots."""
    return f"namespace:{catalog_id}:{json.dumps(parts)}"


def targets_of(catalog_id: str, namespace: Sequence[str]) -> list[str]:
    """What holds for a namespace of a catalog, nearest first."""
    namespaces = [namespace_target(catalog_id, namespace[:n]) for n in range(len(namespace), 0, -1)]
    return [*namespaces, f"catalog:{catalog_id}", SYSTEM_TARGET]


def targets_of_table(table: EnrolledTable) -> list[str]:
    """What holds for a table, nearest first."""
    return [table_target(table.id), *targets_of(table.catalog_id, table.identifier[:-1])]
