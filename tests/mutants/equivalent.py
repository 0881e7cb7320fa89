"""Mutants that are no mistakes: nothing that a test could see is different. They are not tried, nor counted.

Few, and each with its reason. Whatever a caller can notice, if only rarely, gets a test instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    module: str
    line: str
    """What is changed, without its margin: lines move, and their numbers tell nothing."""
    mutated: str
    reason: str


QUEUE = (
    Equivalent(
        "service/jobs/attempts.py",
        "if ended is not None and job.attempt == attempt and ended.status == report.status:",
        "if ended is not None and job.attempt <= attempt and ended.status == report.status:",
        "a job's own attempt is its highest: none that is there lies above",
    ),
    Equivalent(
        "service/jobs/claims.py",
        "Job.status == JobStatus.QUEUED.value,",
        "Job.status >= JobStatus.QUEUED.value,",
        "running and succeeded jobs alone come behind, and whoever starts one forgets why it was held",
    ),
)
PLAN = (
    Equivalent(
        "worker/table/manifest_values.py",
        'NestedField(110, "null_value_counts", MapType(121, IntegerType(), 122, LongType()),'
        " required=False),",
        'NestedField(110, "null_value_counts", MapType(121, IntegerType(), 123, LongType()),'
        " required=False),",
        "fields are found by their ids; keys and values of a map have one place, whatever theirs",
    ),
    Equivalent(
        "worker/table/manifest_values.py",
        'NestedField(2, "data_file", StructType(*fields), required=True),',
        'NestedField(2, "data_file", StructType(*fields), required=False),',
        "of bounds: the plan has read the same manifests before, and refused one without this column",
    ),
)
DELETES = (
    Equivalent(
        "worker/deletes/vector_files.py",
        "found = deletes.are_vectors & (room >= deletes.named_lengths)",
        "found = deletes.are_vectors & (room > deletes.named_lengths)",
        "`has_others` looks at what is found, and wants room for the quotes as well",
    ),
    Equivalent(
        "worker/deletes/locations.py",
        "return AnnouncedPlan(number=number, tasks=0, files_per_task=0, location=location,"
        " properties=properties)",
        "return AnnouncedPlan(number=number, tasks= 1, files_per_task=0, location=location,"
        " properties=properties)",
        "one task that writes no file leaves none; whoever announces a plan says how many there are",
    ),
)
LOOKUP = (
    Equivalent(
        "worker/lookup/index_lookup.py",
        "return 0",
        "return 1",
        "a byte of the many megabytes that may be held",
    ),
    Equivalent(
        "worker/lookup/matching.py",
        "combined = hashes if combined is None else (combined ^ (combined >> np.uint64(29))) * _MIX + hashes",
        "combined = hashes if combined is None else (combined ^ (combined >> np.uint64(29))) * _MIX - hashes",
        "a hash as good: keys and rows are mixed alike, and compared value by value afterwards",
    ),
    Equivalent(
        "worker/lookup/positions.py",
        "self._rows_in_memory = 0",
        "self._rows_in_memory = 1",
        "of 16 million positions, the last goes to disk one row sooner",
    ),
)
QUERY = (
    Equivalent(
        "worker/query/answers.py",
        "lambda _: 60 * len(table.files.data_files) + 1_000,",
        "lambda _: 60 * len(table.files.data_files) | 1_000,",
        "an estimate of memory",
    ),
    Equivalent(
        "worker/query/answers.py",
        "lambda _: 60 * len(table.files.data_files) + 1_000,",
        "lambda _: 60 * len(table.files.data_files) + 1001,",
        "an estimate of memory",
    ),
    Equivalent(
        "worker/query/places.py",
        "if len(wanted) == asked.num_rows:  # none are equal",
        "if len(wanted) > asked.num_rows:  # none are equal",
        "a short cut that is not taken: the way around it comes to the same, later",
    ),
    Equivalent(
        "worker/query/places.py",
        "parallelism: int = 1,",
        "parallelism: int = 2,",
        "into how many tasks a question is cut, whose results are joined",
    ),
)
