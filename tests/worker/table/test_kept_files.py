"""What a commit reads of a table's metadata it reads once, and nothing else than the store has."""

import json
from collections.abc import Mapping
from tempfile import NamedTemporaryFile

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.thorough import first_always
from worker.spark.jvm import java_object, json_mapper, jvm_of
from worker.table.row_delta import _GUARDS

pytestmark = pytest.mark.integration

ROOM_BYTES = 16 << 20
PLACE = "memory:/snap-1.avro"


@pytest.fixture
def store(spark: SparkSession) -> JavaObject:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm.org.apache.iceberg.inmemory.InMemoryFileIO()


@pytest.fixture
def files(store: JavaObject) -> JavaObject:
    return kept(store, {})


def kept(store: JavaObject, read: Mapping[str, bytes]) -> JavaObject:
    jvm, told = jvm_of(store), json.dumps([(place, len(content)) for place, content in read.items()])
    known = json_mapper(jvm).readValue(told, jvm.java.util.ArrayList().getClass())
    return java_object(store, _GUARDS, "KeptFiles", store, known, b"".join(read.values()))


def read(file: JavaObject) -> bytes:
    stream = file.newStream()
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def read_bytes(file: JavaObject) -> int:
    """How many there are to read: to hand over those of a large file takes Python seconds."""
    stream = file.newStream()
    try:
        return int(stream.transferTo(jvm_of(file).java.io.OutputStream.nullOutputStream()))
    finally:
        stream.close()


def write_zeros(file: JavaObject, count: int) -> None:
    with NamedTemporaryFile() as holes:
        holes.truncate(count)
        source, stream = jvm_of(file).java.io.FileInputStream(holes.name), file.createOrOverwrite()
        assert source.transferTo(stream) == count
        stream.close()
        source.close()


def write(file: JavaObject, content: bytes) -> None:
    stream = file.createOrOverwrite()
    stream.write(content)
    assert stream.getPos() == len(content)
    stream.close()


def test_a_file_that_was_read_is_not_asked_for_again(store: JavaObject, files: JavaObject) -> None:
    store.addFile(PLACE, b"abc")
    assert files.newInputFile(PLACE).getLength() == 3
    store.addFile(PLACE, b"another")
    assert read(files.newInputFile(PLACE)) == read(files.newInputFile(PLACE, 3)) == b"abc"


def test_a_file_that_was_read_before_is_not_asked_for(store: JavaObject) -> None:
    files = kept(store, {f"{PLACE}.1": bytes(ROOM_BYTES + 1), PLACE: b"abc"})
    store.addFile(PLACE, b"another")
    assert read(files.newInputFile(PLACE)) == read(files.newInputFile(PLACE, 3)) == b"abc"
    # It is too large to keep.
    store.addFile(f"{PLACE}.1", b"def")
    assert read(files.newInputFile(f"{PLACE}.1")) == b"def"
    # It is not what its manifest list tells of.
    assert read(files.newInputFile(PLACE, 7)) == b"another"


def test_a_file_that_was_written_is_not_asked_for(store: JavaObject, files: JavaObject) -> None:
    write(files.newOutputFile(PLACE), b"abc")
    assert read(store.newInputFile(PLACE)) == b"abc"
    store.addFile(PLACE, b"another")
    assert read(files.newInputFile(PLACE)) == b"abc"


def test_a_file_that_is_deleted_is_gone(store: JavaObject, files: JavaObject) -> None:
    write(files.newOutputFile(PLACE), b"abc")
    files.deleteFile(PLACE)
    assert not store.fileExists(PLACE)
    with pytest.raises(Py4JJavaError, match="No in-memory file found"):
        read(files.newInputFile(PLACE))


@first_always("is_written", [False, True])
def test_what_is_too_large_to_keep_is_read_as_ever(
    store: JavaObject, files: JavaObject, is_written: bool
) -> None:
    large = ROOM_BYTES + 1
    write_zeros((files if is_written else store).newOutputFile(PLACE), large)
    for file in (files.newInputFile(PLACE), files.newInputFile(PLACE, large)):
        assert file.getLength() == read_bytes(file) == large
    store.addFile(PLACE, b"another")
    assert read(files.newInputFile(PLACE)) == b"another"
    # Together, not each.
    room = ROOM_BYTES - len(b"another")
    write_zeros(store.newOutputFile(f"{PLACE}.1"), room)
    assert files.newInputFile(f"{PLACE}.1", room).getLength() == room
    for content in (b"abc", b"def"):
        store.addFile(f"{PLACE}.2", content)
        assert read(files.newInputFile(f"{PLACE}.2")) == content
        assert read(files.newInputFile(f"{PLACE}.2", 3)) == content


def test_what_is_gone_or_was_not_kept_leaves_its_room_to_others(store: JavaObject, files: JavaObject) -> None:
    for _ in range(2):
        write_zeros(files.newOutputFile(PLACE), ROOM_BYTES)
        files.deleteFile(PLACE)
    store.addFile(PLACE, b"abc")
    assert read(files.newInputFile(PLACE, ROOM_BYTES)) == b"abc"
    for _ in range(2):
        write_zeros(files.newOutputFile(PLACE), ROOM_BYTES)
    store.addFile(PLACE, b"another")
    assert read_bytes(files.newInputFile(PLACE)) == ROOM_BYTES


@pytest.mark.parametrize("told", [2, 4])
def test_a_length_that_is_told_wrongly_cuts_nothing_off(
    store: JavaObject, files: JavaObject, told: int
) -> None:
    """As a list of manifests may tell it, whoever wrote that."""
    store.addFile(PLACE, b"abc")
    assert read(files.newInputFile(PLACE, told)) == b"abc"
