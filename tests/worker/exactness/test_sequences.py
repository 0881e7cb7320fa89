"""Upserts, deletes and reinsertions in every order that writers leave behind."""

import pytest

from tests.exactness import Exactness

pytestmark = pytest.mark.integration
VERSIONS = pytest.mark.parametrize("format_version", [2, 3])


@VERSIONS
def test_an_upsert_keeps_the_rows_of_its_own_commit(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(format_version=format_version)
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(4)])
    table.upsert([{"id": i, "region": "eu", "value": 1} for i in (1, 2, 9)], key=["id"])
    table.upsert([{"id": i, "region": "eu", "value": 2} for i in (2, 9)], key=["id"])
    result = exactly.convert(
        table, rows={(0, "eu", 0): 1, (3, "eu", 0): 1, (1, "eu", 1): 1, (2, "eu", 2): 1, (9, "eu", 2): 1}
    )
    assert result["rows_deleted"] == 4
