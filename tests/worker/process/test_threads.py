"""Where memory is scarce, whoever starts a thread is told, and threads that others rely on go on."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_SECONDS
from worker.process import threads
from worker.process.threads import outliving_shortage

_STARTS_WITHOUT_MEMORY = """
import os, re, resource, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import worker.process.threads

def limit(number_of_bytes):
    resource.setrlimit(resource.RLIMIT_DATA, (number_of_bytes, resource.RLIM_INFINITY))

worker.process.threads.START_SECONDS = 0.2
known, pool = threading.enumerate(), ThreadPoolExecutor(1)
# Its stack is used again: the limit leaves nothing for what else the next one takes.
first = threading.Thread(target=int)
first.start()
while len(os.listdir("/proc/self/task")) > 1:
    time.sleep(0.01)
taken = int(re.search(r"VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
limit(taken)
try:
    pool.submit(int)
except RuntimeError as error:
    limit(resource.RLIM_INFINITY)
    assert str(error) == worker.process.threads.CANT_START
else:
    sys.exit("it began")
assert threading.enumerate() == known
assert pool.submit(int).result() == 0
"""


def test_a_thread_that_finds_no_memory_to_begin_is_an_error_of_whoever_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTS_WITHOUT_MEMORY],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored in thread started by" in done.stderr  # the system did not refuse it


def test_a_loop_that_others_rely_on_goes_on_after_it_ran_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_PAUSE_SECONDS", 0.0)
    tries = []

    def loop() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise MemoryError

    outliving_shortage(loop)()
    assert len(tries) == 3


_HASHES = """
from pathlib import Path
from worker.lookup.matching import KeyMatcher
import pyarrow as pa

def threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("jemalloc" not in name for name in names)

before = threads()
KeyMatcher([pa.array([str(i) for i in range(100_000)])])
assert threads() == before > 1
"""


def test_hashes_of_keys_start_no_thread_once_there_are_rows() -> None:
    subprocess.run([sys.executable, "-c", _HASHES], timeout=PATIENCE_SECONDS, check=True)
