"""What metadata files tell of their sizes is held to what they have."""

import io
import json
from typing import Any

import pytest
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema

from stores.avro_readers import Decoder, read_blocks, read_entries, read_header, read_schema, reader_of


def number(value: int) -> bytes:
    file = io.BytesIO()
    BinaryEncoder(file).write_int(value)
    return file.getvalue()


def schema(kind: Any) -> Schema:
    fields = [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "more", "type": kind, "field-id": 1},
    ]
    return read_schema(json.dumps({"type": "record", "name": "entry", "fields": fields}))


def items(kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind, "element-id": 2}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": f"fixed_{size}", "size": size}


MANY = number(2**62)
PAIR = {"type": "record", "name": "pair", "fields": [{"name": "key", "type": "long", "field-id": 3}]}


@pytest.mark.parametrize("is_wanted", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", b""),
        ("long", b"\x80"),
        ("string", MANY),
        ("string", number(-1)),
        ("bytes", number(5) + b"four"),
        ("boolean", b""),
        ("double", bytes(7)),
        (fixed(3), b"ab"),
        (items("long"), MANY + bytes(9)),
        (items("boolean"), MANY + bytes(9)),
        (items("double"), MANY + bytes(9)),
        (items(fixed(3)), MANY + bytes(9)),
        (items(PAIR), MANY + bytes(9)),
        (items("long"), number(-1) + number(-2)),  # it would begin again with itself
        (items("long"), number(-1) + MANY),
        ({"type": "map", "values": "long", "key-id": 2, "value-id": 3}, MANY + bytes(9)),
    ],
    ids=str,
)
def test_an_entry_ends_with_its_block_whatever_it_says(kind: Any, value: bytes, is_wanted: bool) -> None:
    written = schema(kind)
    wanted = written if is_wanted else Schema(written.fields[0])
    with pytest.raises(EOFError):
        list(read_entries(reader_of(written, wanted), 1, number(1) + value))


@pytest.mark.parametrize("count", [0, 1, 3, -1, 2**62])
def test_a_block_of_another_number_of_entries_is_told(count: int) -> None:
    written = schema("string")
    entry = number(1) + number(2) + b"ab"
    assert len(list(read_entries(reader_of(written, written), 2, 2 * entry))) == 2
    with pytest.raises(EOFError):
        list(read_entries(reader_of(written, written), count, 2 * entry))


@pytest.mark.parametrize("is_wanted", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        items(fixed(0)),
        items("null"),
        items({"type": "record", "name": "none", "fields": []}),
        items({"type": "record", "name": "one", "fields": [{"name": "a", "type": fixed(0), "field-id": 3}]}),
    ],
    ids=str,
)
def test_items_of_which_any_number_lies_in_no_byte_are_refused(kind: Any, is_wanted: bool) -> None:
    written = schema(kind)
    wanted = written if is_wanted else Schema(written.fields[0])
    with pytest.raises(ValidationError, match="have no bytes"):
        reader_of(written, wanted)


def test_entries_of_which_any_number_lies_in_no_byte_are_refused() -> None:
    nothing = read_schema(json.dumps({"type": "record", "name": "entry", "fields": []}))
    with pytest.raises(ValidationError, match="no fields"):
        reader_of(nothing, nothing)


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def header(*properties: bytes) -> bytes:
    return b"Obj\x01" + b"".join(properties)


@pytest.mark.parametrize("properties", [MANY, number(1) + MANY, number(-1) + number(-2) + MANY])
def test_a_header_ends_with_its_file_whatever_it_says(properties: bytes) -> None:
    with pytest.raises(EOFError):
        read_header(header(properties))


@pytest.mark.parametrize("block", [MANY, number(1) + MANY, number(1) + number(2) + b"ab" + bytes(15)])
def test_a_block_ends_with_its_file_whatever_it_says(block: bytes) -> None:
    codec = number(1) + text(b"avro.codec") + text(b"null") + number(0)
    found, decoder = read_header(header(codec, bytes(16), block))
    with pytest.raises(EOFError):
        list(read_blocks(found, decoder))


def test_what_is_read_and_skipped_is_what_is_there() -> None:
    content = number(-300) + b"\x02\x00" + number(3) + b"abc" + bytes(8) + number(2) + b"de" + b"f"
    decoder = Decoder(content)
    assert decoder.read_int() == -300
    assert (decoder.read_boolean(), decoder.read_boolean()) == (True, False)
    assert decoder.read_utf8() == "abc"
    assert decoder.read_double() == 0
    decoder.skip_bytes()
    assert (decoder.tell(), decoder.left) == (len(content) - 1, 1)
    assert decoder.read(1) == b"f"
    assert decoder.read(0) == b""
