"""The vectors beside docs/conformance.md, which are what conversions write, mean what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from conformance.files import deletion_vector
from tests.conformance.roaring import positions
from worker.deletes.puffin import decode_vector, encode_vector

FILE = Path(__file__).parents[2] / "docs" / "deletion-vectors.jsonl"
SETS: dict[str, list[range]] = {
    "none": [],
    "the first row": [range(1)],
    "some rows": [range(3, 4), range(7, 8), range(65_534, 65_535)],
    "one run": [range(10, 50_000)],
    "runs on both sides of 65,536 rows": [range(65_000, 66_000), range(70_000, 70_002)],
    "every other row of 9,000": [range(0, 9_000, 2)],
    "all three containers": [range(0, 9_000, 2), range(65_536, 131_072), range(200_000, 200_001)],
    "five containers, one of them a run": [
        *(range(i << 16, (i << 16) + 1) for i in range(4)),
        range(1 << 18, (1 << 18) + 100),
    ],
    "beyond 32 bits": [range(5, 6), range((1 << 32) + 5, (1 << 32) + 8), range(9 << 32, (9 << 32) + 1)],
}


def told() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def lines() -> str:
    """As `FILE` is written: positions as ranges of a first, a step and a number."""
    vectors = [
        {
            "what": what,
            "ranges": [[of.start, of.step, len(of)] for of in ranges],
            "blob": encode_vector(BitMap64([one for of in ranges for one in of])).hex(),
        }
        for what, ranges in SETS.items()
    ]
    return "".join(json.dumps(one) + "\n" for one in vectors)


def test_each_vector_is_of_a_set_that_is_known() -> None:
    assert [(one["what"], len(one["ranges"])) for one in told()] == [
        (what, len(ranges)) for what, ranges in SETS.items()
    ]


@pytest.mark.parametrize("vector", told(), ids=lambda one: str(one["what"]))
def test_a_vector_is_decoded_by_the_specifications_and_by_us(vector: dict[str, Any]) -> None:
    blob = bytes.fromhex(vector["blob"])
    expected = [
        one for first, step, count in vector["ranges"] for one in range(first, first + step * count, step)
    ]
    assert positions(blob) == expected
    assert list(decode_vector(blob)) == expected
    # What is written today, and what the suite writes, may be other bytes of the same positions.
    assert positions(encode_vector(BitMap64(expected))) == expected
    assert positions(deletion_vector(expected)) == expected


def test_the_vectors_have_each_kind_of_container() -> None:
    contents = [bytes.fromhex(one["blob"]) for one in told()]
    cookies = {int.from_bytes(blob[20:22], "little") for blob in contents if len(blob) > 24}
    assert cookies == {12346, 12347}
    assert max(map(len, contents)) > 8_192
    with pytest.raises(ValueError, match="no deletion vector"):
        positions(contents[1][:-1] + b"\0")
