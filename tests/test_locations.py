"""Locations are compared as places, not as strings, and what is checked is what is opened."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyarrow import fs as pafs

from stores.file_io import LocationFileIO
from trust.locations import (
    AmbiguousLocationError,
    LocationNotAllowedError,
    Places,
    can_hold_index,
    is_absolute,
    is_table_bucket,
    is_under,
    normalize_location,
    parse_location,
    sqlite_path,
)
from worker.io.storage import Storage


@pytest.mark.parametrize(
    "spelling",
    ["/data/wh", "file:/data/wh", "file:///data/wh", "file://localhost/data//wh", "FILE:/data/wh/"],
)
def test_all_spellings_of_a_local_path_are_one_place(spelling: str) -> None:
    assert normalize_location(spelling) == "file:/data/wh"


def test_the_three_s3_schemes_are_one_place() -> None:
    assert {normalize_location(f"{scheme}://bucket/a/") for scheme in ("s3", "s3a", "s3n")} == {
        "s3://bucket/a"
    }


def test_what_is_checked_is_read_once_and_opened_as_it_was_read() -> None:
    places = Places(("s3://bucket/once",))
    before = parse_location.cache_info().misses
    for number in range(100):
        location = f"s3://bucket/once/{number}"
        place = places.check(location)
        assert LocationFileIO.parse_location(location) == (
            place.scheme,
            place.authority,
            "bucket" + place.path,
        )
    assert parse_location.cache_info().misses - before == 101


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
        ("s3://bucket//a", "s3://bucket/a", False),
        ("s3://bucket/a//b", "s3://bucket/a/", True),
        ("s3://bucket/a", "s3://", True),
        ("abfs://c@acc.dfs.core.windows.net/a", "abfss://c@acc.dfs.core.windows.net", True),
        ("abfs://c@evil.example/a", "abfss://c", False),
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


@pytest.mark.parametrize(
    "location",
    [
        "relative/x",
        "file:relative",
        "/a/../b",
        "/a/./b",
        "file:///a/%2e%2e/b",
        "file:///a/.%2E/b",
        "file:///a/%252e%252e/b",
        "s3://bucket/a/../../b",
        "s3://bucket/%2e%2e/b",
        "file://host/a",
        "file://a@localhost/a",
        "/a\\..\\b",
        "/a\tb",
        "/a\x00",
        "file:/a\n",
        "s3:/bucket/a",
        "s3://evil.example:80/a",
        "s3://evil.example#/a",
        "s3://evil.example?x/a",
        "s3://x@evil.example/a",
        "s3://buck%65t/a",
        "gs://evil.example\\.x/a",
        "abfss://c@evil.example:80/a",
        "abfss://c@evil.example?.dfs.core.windows.net/a",
        "abfss://c@x@evil.example/a",
        "hdfs://user@host/a",
    ],
)
def test_what_could_be_taken_for_another_place_is_refused(location: str) -> None:
    with pytest.raises(AmbiguousLocationError):
        parse_location(location)
    with pytest.raises(LocationNotAllowedError):
        Storage().resolve(location)
    assert not is_under(location, "/")
    assert normalize_location(location) == location


def test_a_long_name_is_not_decoded_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take hours for a name of a megabyte."""
    monkeypatch.setattr("trust.locations.unquote", lambda name: pytest.fail(f"{len(name)} are decoded"))
    assert is_under("/a/%" + "25" * 10_000 + "2e", "/a")


@pytest.mark.parametrize(
    "name", ["a%2Fb", "..%2Fx", "part=%2e%2e", "%69cestream.db", "a?b#c", "x..y", "é", "e\u0301"]
)
def test_a_file_is_opened_by_the_very_name_that_was_checked(tmp_path: Path, name: str) -> None:
    storage = Storage()
    for number, prefix in enumerate(
        (str(tmp_path), f"file:{tmp_path}", tmp_path.as_uri(), f"file://localhost{tmp_path}")
    ):
        location = f"{prefix}/lake/{name}/{number}"
        assert storage.create(location, b"x")
        assert parse_location(location).path == str(tmp_path / "lake" / name / str(number))
        assert [one.name for one in (tmp_path / "lake").iterdir()] == [name]
        assert storage.read(location) == b"x"
        scheme, netloc, path = LocationFileIO.parse_location(location)
        assert isinstance(storage.io.at(location).fs_by_scheme(scheme, netloc), pafs.LocalFileSystem)
        assert (tmp_path / "lake" / name / str(number)).samefile(path)


@pytest.mark.parametrize(
    ("location", "is_of_a_table"),
    [("s3://ab--table-s3/t", True), ("s3://lake/t", False), ("gs://ab--table-s3/t", False)],
)
def test_a_bucket_of_a_table_is_known_by_its_name_on_s3(location: str, is_of_a_table: bool) -> None:
    assert is_table_bucket(location) is is_of_a_table
    assert can_hold_index(location) is not is_of_a_table


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    lake, elsewhere = tmp_path / "disk" / "lake", tmp_path / "elsewhere"
    for folder in (lake / "real", elsewhere):
        folder.mkdir(parents=True)
        (folder / "x").touch()
    (tmp_path / "lake").symlink_to(lake)
    (lake / "out").symlink_to(elsewhere)
    (lake / "file").symlink_to(elsewhere / "x")
    (lake / "inside").symlink_to(lake / "real")
    (lake / "dangling").symlink_to(elsewhere / "new")
    # A root may be a link itself.
    places = Places((str(tmp_path / "lake"), "s3://lake"))
    for name in ("real/x", "inside/x", "inside/new", "new"):
        places.check(f"{tmp_path}/lake/{name}")
    for name in ("out/x", "out/new", "file", "dangling"):
        with pytest.raises(LocationNotAllowedError, match=r"leads by a link to .*elsewhere"):
            places.check(f"{tmp_path}/lake/{name}")
    Places((str(lake), str(elsewhere))).check(f"{lake}/out/x")


def test_only_where_a_link_may_be_each_folder_on_the_way_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for one in (folder, elsewhere):
        one.mkdir()
        (one / "x").touch()
    (folder / "file").symlink_to(elsewhere / "x")
    (folder / "out").symlink_to(elsewhere)
    (folder / "behind").symlink_to(tmp_path / "z-elsewhere")
    (tmp_path / "z-elsewhere").mkdir()
    (folder / "dangling").symlink_to(elsewhere / "new")
    (folder / "x (deleted)").symlink_to(elsewhere / "x")
    places, looked = Places((str(folder),)), Mock(wraps=os.path.realpath)
    monkeypatch.setattr(os.path, "realpath", looked)
    for name in ("x", "new"):
        places.check(f"{folder}/{name}")
    assert not looked.called
    for name in ("file", "out", "out/x", "out/new", "behind", "dangling", "x (deleted)"):
        with pytest.raises(LocationNotAllowedError, match=r"leads by a link to .*elsewhere"):
            places.check(f"{folder}/{name}")
    places.check(f"{folder}/new/newer")
    assert looked.called


def test_files_of_the_service_are_opened_by_no_name(tmp_path: Path) -> None:
    own, logs = tmp_path / "icestream.db", tmp_path / "logs"
    own.touch()
    logs.mkdir()
    (tmp_path / "hard").hardlink_to(own)
    (tmp_path / "soft").symlink_to(own)
    (tmp_path / "folder").symlink_to(logs)
    (tmp_path / "other").touch()
    for roots in (None, (str(tmp_path),)):
        places = Places(roots, (str(own), str(logs)))
        for name in ("icestream.db", "hard", "soft", "logs", "logs/x", "folder/x"):
            with pytest.raises(LocationNotAllowedError, match="keeps for itself"):
                places.check(f"{tmp_path}/{name}")
        places.check(f"{tmp_path}/other")


def test_a_place_is_looked_at_once_to_compare_it_with_files_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [tmp_path / name for name in ("a", "b", "c")]
    for one in (*own, tmp_path / "other"):
        one.touch()
    places = Places(None, tuple(map(str, own)))
    places.check(f"{tmp_path}/other")  # where links of `own` lead is known then
    looked = Mock(wraps=os.stat)
    monkeypatch.setattr(os, "stat", looked)
    places.check(f"{tmp_path}/other")
    assert [Path(one.args[0]).name for one in looked.call_args_list] == ["other", "a", "b", "c"]
    looked.reset_mock()
    places.check(f"{tmp_path}/new")
    assert looked.call_count == 1


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////data/%69cestream.db",
        "sqlite:////data/a/%2e%2e/x.db",
        "sqlite:////data/ice\tstream.db",
        "sqlite:////data/x.db#y",
        "SQLITE:////data/x.db",
        " sqlite:////data/x.db",
        "sqlite+pysqlite:////data/x.db",
        "sqlite://host/data/x.db",
    ],
)
def test_a_database_has_one_spelling(uri: str) -> None:
    with pytest.raises(AmbiguousLocationError):
        sqlite_path(uri)


def test_a_database_is_opened_by_the_path_that_is_checked() -> None:
    assert sqlite_path("sqlite:////data/a b.db?timeout=3") == "/data/a b.db"
    assert sqlite_path("postgresql://h/d") is None
