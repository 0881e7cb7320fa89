"""How much Arrow holds at most while a test does something."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_pools: list[pa.MemoryPool] = []
"""Are never let go: what outlives its test is freed there."""


@contextmanager
def measured() -> Iterator[pa.MemoryPool]:
    """Its `max_memory` tells."""
    outer = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(outer)
    _pools.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(outer)
