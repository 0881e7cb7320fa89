"""How PyIceberg opens the files that a location names, and only those that the operator allows."""

import bz2
import io
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard
from pyarrow.fs import LocalFileSystem
from pyiceberg.io import InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.typedef import EMPTY_DICT

from service.catalogs.allowlists import check_file_io, check_location
from service.settings import Settings
from stores.avro_readers import packed_blocks, read_header
from stores.file_io import LocationFileIO
from stores.manifest_files import readable_manifest
from stores.table_metadata import ENCRYPTED
from trust.bounds import (
    ANSWER_BYTES,
    PACKED_METADATA,
    LimitExceededError,
    check_json,
    check_size,
    check_time,
    read_bounded,
    unpacked,
)

SETTINGS = "icestream.settings"
"""The property that hands GuardedFileIO the service's settings."""


_ENTRIES = 500_000
"""Of one manifest: each takes some thousand bytes in memory, also where it takes one in the file."""
_AVRO = b"Obj\x01"


class EncryptedFileError(Exception):
    """A file of a table's metadata can't be read without the table's keys."""


class _BoundedFile(PyArrowFile):
    """A metadata file or a manifest, taken whole if it is within the bounds of `trust.bounds`."""

    def open(self, seekable: bool = True) -> InputStream:
        what = f"The file {self.location}"
        if isinstance(self._filesystem, LocalFileSystem):
            self._check_regular()
        with super().open(seekable) as source:
            content = read_bounded(source, what)
        if content.startswith(ENCRYPTED):
            raise EncryptedFileError(what)
        if content.startswith(_AVRO):
            _check_avro(content, what)
            return io.BytesIO(readable_manifest(content))
        told = unpacked(content, what) if self.location.endswith(PACKED_METADATA) else content
        check_json(told, what)
        # PyIceberg unpacks those of the other name itself.
        return io.BytesIO(told if self.location.endswith(".metadata.json.gz") else content)

    def _check_regular(self) -> None:
        """Opening a pipe waits for whoever writes to it."""
        if not stat.S_ISREG(Path(self._path).stat().st_mode):
            raise FileNotFoundError(f"{self.location} is no regular file")


def _check_avro(content: bytes, what: str) -> None:
    """Raise LimitExceededError for blocks that unpack to too much, or tell of too many entries."""
    header, decoder = read_header(content)
    codec = header.meta.get("avro.codec", "null")
    entries = size = 0
    for count, block in packed_blocks(decoder):
        check_time()
        entries += max(count, 0)
        size += _unpacked_bytes(codec, block, what)
        check_size(size, ANSWER_BYTES, f"{what}, unpacked,")
        if entries > _ENTRIES:
            raise LimitExceededError(
                f"{what} tells of more than {_ENTRIES:,} entries.",
                "Rewrite the manifests of the table (rewrite_manifests).",
            )


def _unpacked_bytes(codec: str, block: bytes, what: str) -> int:
    """How many bytes a block unpacks to, or one more than is taken."""
    most = ANSWER_BYTES + 1
    if codec == "deflate":
        return len(zlib.decompressobj(-zlib.MAX_WBITS).decompress(block, most))
    if codec == "bzip2":
        return len(bz2.BZ2Decompressor().decompress(block, most))
    if codec == "zstandard":
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(block)) as source:
            return len(read_bounded(source, f"{what}, unpacked,"))
    if codec == "snappy":  # it begins with its length
        told, shift = 0, 0
        for byte in block[:5]:
            told |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return told
    return len(block)


class GuardedFileIO(LocationFileIO):
    """Files that catalogs name: whatever lies elsewhere than the operator allows is refused.

    PyIceberg makes it from properties alone, so the settings come as one of them. Raises InvalidError.
    """

    def __init__(self, properties: Mapping[str, Any] = EMPTY_DICT) -> None:
        given = dict(properties)
        self._settings: Settings = given.pop(SETTINGS)
        check_file_io(self._settings, given)
        # Of silence: Arrow's own are longer, and it tries again.
        silent = {
            "s3.connect-timeout": "5",
            "s3.request-timeout": str(self._settings.catalog_timeout_seconds),
        }
        super().__init__(silent | given)

    def check(self, location: str) -> None:
        check_location(self._settings, location)

    def new_input(self, location: str) -> PyArrowFile:
        self.check(location)
        check_time()
        found = super().new_input(location)
        return _BoundedFile(found.location, found._path, found._filesystem, found._buffer_size)

    def new_output(self, location: str) -> PyArrowFile:
        self.check(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.check(location if isinstance(location, str) else location.location)
        super().delete(location)
