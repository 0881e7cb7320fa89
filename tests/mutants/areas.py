"""Where mistakes are made, and the tests of `make test` that have to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.mutants.equivalent import DELETES, LOOKUP, PLAN, QUERY, QUEUE, Equivalent

WANTED = 0.95
WANTED_OF_AREA = 0.9
"""Less, since few are tried of each; one may stay unnoticed, however few they are."""


@dataclass(frozen=True)
class Area:
    name: str
    modules: tuple[str, ...]
    """Paths, or patterns of them."""
    tests: tuple[str, ...]
    """What finds most of them first: a mutant is left at its first failure."""
    sample: int
    """How many mutants are tried, with the equivalent ones."""
    equivalent: tuple[Equivalent, ...] = ()


AREAS = (
    Area(
        "egress",
        (
            *("trust/egress.py", "trust/locations.py", "trust/addresses.py"),
            *("stores/rest_catalog.py", "service/catalogs/allowlists.py"),
        ),
        (
            "tests/test_hosts.py",
            "tests/test_locations.py",
            "tests/test_rest_catalogs.py",
            "tests/service/test_control_database.py",
            "tests/service/test_egress.py",
        ),
        30,
    ),
    Area(
        "access",
        ("service/auth/access.py", "service/auth/principals.py", "service/http/guards.py"),
        (
            "tests/test_contract.py",
            "tests/service/test_access.py",
            "tests/service/test_api_keys.py",
            "tests/service/test_oidc.py",
            "tests/service/test_limits.py",
            "tests/service/test_api.py",
        ),
        30,
    ),
    Area(
        "queue",
        (
            "service/jobs/queue.py",
            "service/jobs/claims.py",
            "service/jobs/fair_share.py",
            "service/jobs/assignments.py",
            "service/jobs/attempts.py",
            "service/jobs/leases.py",
        ),
        (
            "tests/service/test_queue.py",
            "tests/service/test_queue_races.py",
            "tests/service/test_ended_jobs.py",
            "tests/service/test_fair_share.py",
            "tests/service/test_owners.py",
            "tests/service/test_queue_machine.py",
            "tests/service/test_together.py",
            "tests/service/test_limits.py",
            "tests/service/test_background.py",
            "tests/service/test_erasures.py",
            "tests/service/test_estimates.py",
            "tests/service/test_maintenance.py",
            "tests/service/test_metrics.py",
            "tests/service/test_publications.py",
            "tests/service/test_tables.py",
            "tests/service/test_api.py",
        ),
        50,
        QUEUE,
    ),
    Area(
        "plan",
        (
            "worker/table/plan.py",
            "worker/table/files.py",
            "worker/table/manifests.py",
            "worker/table/manifest_values.py",
            "worker/table/all_snapshots.py",
            "worker/table/avro_columns.py",
            "worker/table/avro_files.py",
            "stores/avro_readers.py",
        ),
        (
            "tests/worker/table/test_data_files.py",
            "tests/worker/table/test_manifests.py",
            "tests/worker/table/test_avro_columns.py",
            "tests/test_avro_readers.py",
            "tests/worker/deletes",
            "tests/worker/lookup/test_cost.py",
            "tests/worker/exactness/test_sequences.py",
            "tests/worker/exactness/test_partitions.py",
            "tests/worker/exactness/test_schemas.py",
            "tests/worker/jobs/test_files_of_dead_attempts.py",
            "tests/worker/erasure",
            "tests/faults/test_damage.py",
        ),
        25,
        PLAN,
    ),
    Area(
        "lookup",
        ("worker/lookup/*.py",),
        (
            "tests/worker/lookup",
            "tests/worker/exactness",
            "tests/worker/index/test_damaged_index.py",
            "tests/worker/jobs/test_memory.py",
            "tests/worker/jobs/test_pipeline.py",
            "tests/lookups",
        ),
        30,
        LOOKUP,
    ),
    Area(
        "deletes",
        ("worker/deletes/*.py",),
        (
            "tests/worker/deletes",
            "tests/worker/exactness",
            "tests/worker/jobs/test_files_of_dead_attempts.py",
        ),
        25,
        DELETES,
    ),
    Area(
        "conversion",
        ("worker/jobs/conversion_plan.py", "worker/jobs/own_commits.py"),
        (
            "tests/worker/jobs/test_own_commits.py",
            "tests/worker/jobs/test_pipeline.py",
            "tests/worker/jobs/test_files_of_dead_attempts.py",
            "tests/worker/exactness/test_refusals.py",
            "tests/worker/exactness/test_live_twice.py",
            "tests/worker/exactness/test_reference_reader.py",
            "tests/worker/exactness/test_backlog.py",
            "tests/worker/jobs/test_publishing_conflicts.py",
            "tests/worker/jobs/test_writing.py",
            "tests/worker/erasure/test_erasure.py",
            "tests/faults/test_conflicts.py",
            "tests/faults/test_damage.py",
        ),
        20,
    ),
    Area(
        "commit",
        ("worker/table/commit*.py", "worker/table/row_delta.py"),
        (
            "tests/worker/table/test_commit.py",
            "tests/worker/deletes",
            "tests/worker/jobs/test_files_of_dead_attempts.py",
        ),
        20,
    ),
    Area(
        "query",
        (
            "worker/query/answers.py",
            "worker/query/json_keys.py",
            "worker/query/places.py",
            "worker/query/snapshot.py",
        ),
        ("tests/worker/query", "tests/service/lookups", "tests/lookups"),
        25,
        QUERY,
    ),
)


def shortfalls(noticed: Mapping[str, Sequence[bool]]) -> Iterator[str]:
    """What is not good enough. noticed: of each area, whether each of its mutants was noticed."""
    for area, found in noticed.items():
        if not found:
            yield f"{area}: no mutant was tried"
        elif found.count(False) > max(1, round((1 - WANTED_OF_AREA) * len(found))):
            yield (
                f"{area}: {sum(found)} of {len(found)} mutants were noticed; "
                f"at least {WANTED_OF_AREA:.0%} have to be"
            )
    together = [one for found in noticed.values() for one in found]
    if sum(together) < WANTED * len(together):
        yield f"{sum(together)} of {len(together)} mutants were noticed; at least {WANTED:.0%} have to be"
