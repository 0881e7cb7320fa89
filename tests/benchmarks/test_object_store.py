"""A lookup in a store where every request waits asks for little of the index, and for all of that at once."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.benchmarks.object_store import KEYS, THREADS, look_up, share_read, write_index
from tests.benchmarks.page import Part, read_part
from tests.slow_store import SlowStore
from worker.index import footers
from worker.io.storage import Storage
from worker.lookup.index_lookup import DeleteKeys, RowAddressMatches

pytestmark = pytest.mark.integration

RUNS = [3_000_000, 40_000, 40_000]  # entries
CLUSTERS, NEIGHBOURS = 20, 50
WAIT_SECONDS = 0.2  # long enough that requests which are sent together wait together on a busy machine


def test_the_published_shares_are_what_far_keys_cost() -> None:
    page = read_part(Part.OBJECT_STORES)
    (rows, more) = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:entries|in each)", page)[:2])
    for keys, with_gaps in ((100, 1.5), (1_000, 2.5)):
        (read,) = re.findall(rf"^\| {keys:,} \|(?:[^|]+\|){{3}} ([\d.]+)% \|", page, re.MULTILINE)
        assert 1 < float(read) / 100 / share_read(keys, rows + 3 * more) < with_gaps
    assert f"{share_read(1_000, 500_000_000):.1%} of 500,000,000" in page
    assert f"{share_read(1_000, rows + 3 * more):.0%} of these entries" in page


def deletes_in_clusters() -> DeleteKeys:
    """1,000 keys of the largest run as applications delete them: neighbours, in a few places."""
    places = np.random.default_rng(1).choice(RUNS[0] // NEIGHBOURS, CLUSTERS, replace=False) * NEIGHBOURS
    keys = np.concatenate([np.arange(place, place + NEIGHBOURS) for place in places]) * len(RUNS)
    batch = pa.record_batch([np.zeros(len(keys), np.int32), keys], schema=KEYS)
    return DeleteKeys.of([(0, 1, batch)], KEYS)


def test_a_lookup_asks_for_little_of_the_index_and_for_all_of_it_at_once(tmp_path: Path) -> None:
    files, deletes = write_index(tmp_path, RUNS), deletes_in_clusters()
    size = sum(file.size_bytes for file in files)
    found: list[RowAddressMatches] = []
    footers.KEPT.clear()
    with SlowStore(tmp_path, WAIT_SECONDS).served() as store:
        storage = Storage(store.properties)
        first = store.counted(lambda: found.append(look_up(storage, files, deletes)))
        later = store.counted(lambda: found.append(look_up(storage, files, deletes)))

    assert [len(one.row_addresses) for one in found] == [CLUSTERS * NEIGHBOURS] * 2
    row_groups = found[0].row_groups_read
    assert row_groups < 2 * CLUSTERS
    # Keys with their addresses, and of no file its size.
    assert later.by_kind.keys() == {"GET"}
    assert later.count <= row_groups
    assert later.sent_bytes < size // 10
    # The footers besides, which later lookups know: one request each.
    assert later.count < first.count <= later.count + len(files)
    assert later.sent_bytes < first.sent_bytes < size // 6
    # Not by the threads that decode, each of which would wait for one answer after the other.
    assert later.most_at_once > 4 * THREADS
