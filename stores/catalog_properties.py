"""What a catalog's record says of its tables' files, and what of the place of their indexes."""

from __future__ import annotations

from collections.abc import Mapping

INDEX = "index."
"""Before the names of properties that are for the index warehouse alone, such as `index.s3.access-key-id`."""
STORES = ("s3.", "gcs.", "adls.", "client.")
"""How the names of those begin behind it."""
FILE_IO = (*STORES, "hdfs.")
"""How the names of properties begin that tell how files are opened."""


def of_tables(properties: Mapping[str, str]) -> dict[str, str]:
    """What opens the catalog and the files of its tables."""
    return {key: value for key, value in properties.items() if not key.startswith(INDEX)}


def of_index(properties: Mapping[str, str], index_warehouse: str) -> dict[str, str]:
    """What opens the files of indexes, if that is said apart; empty: what opens those of tables does.

    Nothing of the tables' is among it: the one must not get the credentials of the other.
    """
    given = {key.removeprefix(INDEX): value for key, value in properties.items() if key.startswith(INDEX)}
    # Tells whose account Azure's are for.
    return given and given | {"warehouse": index_warehouse}
