"""What of a JSON body no database keeps is found, and the others are not parsed for that."""

import json
import math
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidError
from service.http.json_values import check_body, unusable_values

TEXT = st.text(st.sampled_from('08e5NI"\\/{}[],:u\0\ud800\U0001f600') | st.characters(), max_size=8)
NUMBERS = st.integers(-(2**66), 2**66) | st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**19])
FLOATS = st.floats() | st.sampled_from([math.inf, math.nan, 1e300, 1e-7])
VALUES = st.recursive(
    TEXT | NUMBERS | FLOATS | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_a_body_is_refused_if_and_only_if_a_value_of_it_cannot_be_kept(value: object) -> None:
    body = json.dumps(value).encode()
    if any(unusable_values(value, "body")):
        with pytest.raises(InvalidError):
            check_body(body)
    else:
        check_body(body)


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "NaN", "-Infinity", "9223372036854775808"])
@pytest.mark.parametrize("before", ["", '"\\\\", ', '"\\"", ', '"' + "x" * 100_000 + '", '])
def test_a_number_that_is_none_of_64_bits_is_found_wherever_it_stands(before: str, number: str) -> None:
    with pytest.raises(InvalidError):
        check_body(f'{{"a": [{before}{number}]}}'.encode())


def test_a_report_with_ids_and_paths_is_not_parsed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(side_effect=AssertionError("it is parsed"))
    monkeypatch.setattr("service.http.json_values.json.loads", parse)
    report = {
        "path": "s3://lake/data/00001-8e4f5e60-1e5d-4000.parquet",
        "iceberg_snapshot_id": 9_100_000_000_000_000_000,
        "id": "9999999999999999999999",
    }
    check_body(json.dumps(report).encode())
