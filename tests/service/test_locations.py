"""Locations are compared as places, not as strings."""

import pytest

from service.locations import is_absolute, is_under, normalize_location


@pytest.mark.parametrize(
    "spelling", ["/data/wh", "file:/data/wh", "file:///data/wh", "file://localhost/data/wh", "/data/x/../wh/"]
)
def test_all_spellings_of_a_local_path_are_one_place(spelling: str) -> None:
    assert normalize_location(spelling) == "file:/data/wh"


def test_the_three_s3_schemes_are_one_place() -> None:
    assert {normalize_location(f"{scheme}://bucket/a/") for scheme in ("s3", "s3a", "s3n")} == {
        "s3://bucket/a"
    }


@pytest.mark.parametrize(
    ("location", "root", "under"),
    [
        ("/data/wh", "/data/wh", True),
        ("/data/wh/t", "file:///data/wh", True),
        ("/data/wh2", "/data/wh", False),
        ("/data/wh/../other", "/data/wh", False),
        ("s3://bucket/a/b", "s3a://bucket/a/", True),
        ("s3://bucket/ab", "s3://bucket/a", False),
        ("s3://bucket/a/../../other", "s3://bucket/a", False),
        ("s3://other/a", "s3://bucket", False),
        ("s3://bucket2/a", "s3://bucket", False),
        ("/anything", "/", True),
    ],
)
def test_a_prefix_ends_at_a_separator_and_dots_do_not_escape(location: str, root: str, under: bool) -> None:
    assert is_under(location, root) is under


def test_only_absolute_locations_mean_the_same_to_every_process() -> None:
    assert [is_absolute(location) for location in ("/a", "file:/a", "s3://a/b", "a/b", "prod")] == [
        True,
        True,
        True,
        False,
        False,
    ]
