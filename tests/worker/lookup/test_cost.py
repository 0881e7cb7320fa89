"""Index or scan, as the cost model has it.

The sizes are those of a demo's stream. Side by side on two busy cores, lookup and scan took,
in seconds (medians of 4): 1.0 and 0.9 with 48 data files, 0.5 and 0.8 with 208, 0.4 and 2.0 with 608,
1.6 and 5.5 with 1,008, 0.6 and 3.2 with 2,008. That was before lookups searched by a leading integer.
`tests/benchmarks/small_files.py` measures it.
"""

import pyarrow as pa
import pytest

from worker.lookup.cost import (
    COMMIT_SECONDS,
    INTEGER_FIRST,
    NUMBERS,
    STRINGS,
    WRITTEN_FILE_SECONDS,
    Rates,
    compare,
    conversion_seconds,
    rates_of,
)


@pytest.mark.parametrize(
    ("lookup_rows", "index_files", "scan_rows", "data_files"),
    [
        (2_991_276, 3, 3_017_580, 48),
        (3_054_073, 7, 3_087_705, 208),
        (3_175_105, 17, 3_261_849, 608),
        (3_362_626, 13, 3_434_211, 1008),
        (3_766_853, 38, 3_858_487, 2008),
    ],
)
@pytest.mark.parametrize("rates", [STRINGS, INTEGER_FIRST])
def test_small_data_files_cost_a_scan_more_than_the_runs_that_they_leave_cost_a_lookup(
    lookup_rows: int, index_files: int, scan_rows: int, data_files: int, rates: Rates
) -> None:
    costs = compare(2_000, lookup_rows, index_files, scan_rows, data_files, rates)
    assert costs.index_is_cheaper, costs
    assert f"{scan_rows:,} rows in {data_files:,} data files" in costs.words


def test_a_scan_of_a_few_large_files_stays_cheaper_than_a_lookup_that_reads_all_of_many_runs() -> None:
    assert not compare(2_000_000, 3_000_000, 60, 3_000_000, 8, STRINGS).index_is_cheaper


def test_rates_go_by_what_a_lookup_has_to_hash() -> None:
    number, text = pa.int64(), pa.string()
    assert rates_of([number]) == rates_of([number, number]) == NUMBERS
    assert rates_of([number, text]) == INTEGER_FIRST
    assert rates_of([text]) == rates_of([text, number]) == STRINGS


def test_the_estimate_of_a_conversion_counts_each_commit_and_what_it_plans_anew() -> None:
    measured = {"plan": 2.0, "scan": 10.0}
    assert conversion_seconds(measured, 0, 0) == 12
    assert conversion_seconds(measured, 1, 100) == 12 + COMMIT_SECONDS + 100 * WRITTEN_FILE_SECONDS
    assert conversion_seconds(measured, 3, 0) == 12 + 2 * 2 + 3 * COMMIT_SECONDS
    assert conversion_seconds({}, 3, 0) == 3 * COMMIT_SECONDS
