"""Opens, lists and deletes files by location, on any store that `stores` knows.

Invariant: a location is used as it was written; only comparisons normalise it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import GCSStore
from pyarrow import fs as pafs
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile

from stores.aws import S3_SCHEMES
from stores.azure import AZURE_SCHEMES, AzureAccount, azure_container, without_signature
from stores.file_io import GOOGLE_SCHEMES, LocationFileIO, is_google_public, object_key
from stores.objects import PART_BYTES, OpenObject, S3Object, Sink, Upload, first_of, read_each, s3_store
from trust.locations import LocationNotAllowedError, Places
from trust.rest_answers import session_ends
from worker.process.deadline import check_time, result_in_time
from worker.process.errors import JobError
from worker.process.threads import CANT_START

if TYPE_CHECKING:  # names that obstore has for type checkers only
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

ALLOWED_LOCATIONS = "icestream.allowed-locations"
"""The property that names the places, a line each, beyond which nothing is opened; else everything is."""
OWN_FILES = "icestream.own-files"
"""The property that names files and folders of the service itself, a line each, which are never opened."""
PLACES = "icestream.places"
"""The property that has others for files whose locations begin alike: as JSON, by these beginnings."""

_RENEW_SECONDS = 10.0
"""After which a catalog is asked for a session again at the earliest, whatever end it tells."""
_UNTOLD_SECONDS = 600.0
"""After which it is asked for one whose end it does not tell: STS of AWS gives none for less than 900."""
_METADATA_BYTES = 1024**2
"""Of a metadata file that come with its size: most have less."""
_ENDED = ("ExpiredToken", "UNAUTHENTICATED", "401 Unauthorized", "AuthenticationFailed")
"""By which errors of S3, Google's and Azure's stores tell that a session has ended, or is none."""
_GOOGLE = "https://storage.googleapis.com"
_CREATE_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_CREATE_CLIENT: ClientConfig = {"timeout": timedelta(seconds=20)}
_CREATE_SECONDS = 60.0
"""More than those take. obstore itself waits for ever once the system refuses it a thread."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a listing. modified_at: seconds since the epoch, by the store's clock."""

    location: str
    name: str
    size_bytes: int
    modified_at: float


class LimitedFileIO(FileIO):
    """PyIceberg's FileIO, which opens only what is allowed.

    renew: gives the properties anew, with keys and tokens that are good for longer. Of the former ones, only
    what limits them stays: an endpoint, say, is for nobody's keys but those that came with it.
    """

    def __init__(
        self, properties: Mapping[str, str], renew: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        super().__init__(dict(properties))
        self._limits = {key: properties[key] for key in (ALLOWED_LOCATIONS, OWN_FILES) if key in properties}
        allowed, own = (self._limits.get(key) for key in (ALLOWED_LOCATIONS, OWN_FILES))
        roots = None if allowed is None else tuple(allowed.splitlines())
        self._places = Places(roots, tuple((own or "").splitlines()))
        self._renew, self._renewing = renew, threading.Lock()
        self._openers = self._opened()

    def at(self, location: str) -> LocationFileIO:
        """What opens a file now, by all that is for its place, and that nobody changes any more."""
        return self._current().at(location)

    def current(self) -> tuple[Mapping[str, str], float]:
        """The properties now, and when they end, in seconds since the epoch.

        Of their sessions, at least half is left, if they can be renewed.
        """
        openers = self._current()
        return openers.properties, openers.end

    def _current(self) -> _Openers:
        if self._renew is not None and time.time() >= self._renew_at:
            with self._renewing:
                if time.time() >= self._renew_at:
                    self._have_anew(self._renew)
        return self._openers

    def _opened(self) -> _Openers:
        openers = _Openers.of(self.properties, None if self._renew is None else time.time())
        self._renew_at = (time.time() + openers.end) / 2
        return openers

    def _have_anew(self, renew: Callable[[], Mapping[str, str]]) -> None:
        try:
            renewed = renew()
        except JobError as error:
            if time.time() >= self._openers.told_end or not error.retryable:
                raise
            self._renew_at = time.time() + _RENEW_SECONDS
            return
        self.properties = {**renewed, **self._limits}
        self._openers = self._opened()
        self._renew_at = max(self._renew_at, time.time() + _RENEW_SECONDS)

    def check(self, location: str) -> None:
        """Raises LocationNotAllowedError."""
        self._places.check(location)

    def new_input(self, location: str) -> PyArrowFile:
        check_time()
        self.check(location)
        openers = self.at(location)
        file = openers.new_input(location)
        found = openers.s3_object(location, result_in_time)
        return file if found is None else _S3Input(file, found)

    def new_output(self, location: str) -> PyArrowFile:
        self.check(location)
        return self.at(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        named = location if isinstance(location, str) else location.location
        self.check(named)
        self.at(named).delete(named)


class _S3Input(PyArrowFile):
    """Most metadata files come as a whole with their size."""

    def __init__(self, file: PyArrowFile, found: S3Object) -> None:
        super().__init__(file.location, file._path, file._filesystem)
        self._found = found

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002
        return self._found.open(_METADATA_BYTES)


@dataclass(frozen=True, slots=True)
class _Openers:
    """What opens files, by the beginnings of their locations, longest first; and what opens all others.

    told_end: when the first of the sessions is over, in seconds since the epoch; never for what has no end.
    end: the same, with those whose end is not told.
    """

    properties: Mapping[str, str]
    places: tuple[tuple[str, LocationFileIO], ...]
    others: LocationFileIO
    told_end: float
    end: float

    @staticmethod
    def of(properties: Mapping[str, str], had_at: float | None) -> _Openers:
        """had_at: since when the properties are had, in seconds since the epoch; None: nobody renews them."""
        places: dict[str, dict[str, str]] = json.loads(properties.get(PLACES, "{}"))
        longest = sorted(places, key=len, reverse=True)
        ends = [end for one in (properties, *places.values()) for end in session_ends(one)]
        end = told_end = min((end for end in ends if end is not None), default=math.inf)
        if had_at is not None and None in ends:
            end = min(end, had_at + 2 * _UNTOLD_SECONDS)
        return _Openers(
            properties,
            tuple((prefix, LocationFileIO(places[prefix])) for prefix in longest),
            LocationFileIO(properties),
            told_end,
            end,
        )

    def at(self, location: str) -> LocationFileIO:
        return next((io for prefix, io in self.places if location.startswith(prefix)), self.others)


_sent: ContextVar[list[float] | None] = ContextVar("_sent", default=None)


@contextmanager
def sessions_sent() -> Iterator[list[float]]:
    """The ends, in seconds since the epoch, of the sessions that what is pickled in the block has."""
    ends: list[float] = []
    noting = _sent.set(ends)
    try:
        yield ends
    finally:
        _sent.reset(noting)


def is_of_ended_session(error: Exception, end: float) -> bool:
    """Whether an error can be that of a session which ended at `end`, in seconds since the epoch.

    Of a file's head, a store refuses that without a word.
    """
    return (
        any(isinstance(one, OSError) for one in causes_of(error))
        and not _is_own(error)
        and (time.time() >= end or any(word in str(one) for one in causes_of(error) for word in _ENDED))
    )


def digest_of(*rights: Any) -> bytes:
    """Names rights, as JSON has them, and keeps none of their secrets."""
    return hashlib.sha256(json.dumps(rights, sort_keys=True).encode()).digest()


class Storage:
    """Files by location. Pickles as its properties only, so tasks on other machines open their own handles.

    properties: Iceberg FileIO properties (`s3.endpoint`, `s3.access-key-id`, ...), secrets resolved.
    renew: gives them anew when half the time of a session is over. It does not travel: a task has what was
    good when it was sent.
    identity: what it is equal by, and names what outlives a job: what one has read of an immutable file, the
    next one need not read again. By default the properties; who has others at each load for the same rights,
    as a catalog vends them, gives what stays.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        renew: Callable[[], Mapping[str, str]] | None = None,
        identity: bytes | None = None,
    ) -> None:
        self.properties = dict(properties or {})
        self.identity = digest_of(self.properties) if identity is None else identity
        self.io = LimitedFileIO(self.properties, renew)

    def __reduce__(self) -> tuple[type[Storage], tuple[dict[str, str], None, bytes]]:
        properties, end = self.io.current()
        if (ends := _sent.get()) is not None and end < math.inf:
            ends.append(end)
        return Storage, (dict(properties), None, self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def resolve(self, location: str) -> tuple[pafs.FileSystem, str]:
        """The file system and the path on it that a location names.

        Raises LocationNotAllowedError, and OutOfTimeError for what is wanted no more.
        """
        return self._place(self._opener(location), location)

    def _place(self, opener: LocationFileIO, location: str) -> tuple[pafs.FileSystem, str]:
        scheme, netloc, path = LocationFileIO.parse_location(location, self.properties)
        return opener.fs_by_scheme(scheme, netloc), path

    def is_local(self, location: str) -> bool:
        return isinstance(self.resolve(location)[0], pafs.LocalFileSystem)

    def open_input(self, location: str, size_bytes: int | None = None) -> Any:
        """A seekable file; local ones are memory-mapped, so that a lookup copies only what it reads.

        size_bytes: its size where that is known, so that a store need not be asked for it. Raises
        FileNotFoundError (final: the file is gone) or OSError (a retry can help).
        """
        opener, found = self._found(location)
        if found is not None:
            return found.open() if size_bytes is None else OpenObject(found, size_bytes)
        filesystem, path = self._place(opener, location)
        if isinstance(filesystem, pafs.LocalFileSystem):
            return pa.memory_map(path)
        return filesystem.open_input_file(path)

    def is_on_s3(self, location: str) -> bool:
        """Whether it is asked for as an object of S3."""
        return "://" in location and self._opener(location).is_object(location)

    def _found(self, location: str) -> tuple[LocationFileIO, S3Object | None]:
        """What opens a location, which is checked once for that, and the object there if it is on S3.

        Raises as `resolve` does, and pa.ArrowInvalid as Arrow does.
        """
        opener = self._opener(location)
        return opener, opener.s3_object(location, result_in_time)

    def _opener(self, location: str) -> LocationFileIO:
        check_time()
        self.io.check(location)
        return self.io.at(location)

    def open_output(self, location: str) -> pa.NativeFile:
        opener, found = self._found(location)
        if found is not None:
            return Sink(Upload(found), "w")
        filesystem, path = self._place_to_write(opener, location)
        return filesystem.open_output_stream(path)

    def _place_to_write(self, opener: LocationFileIO, location: str) -> tuple[pafs.FileSystem, str]:
        """A local disk has the folder then."""
        filesystem, path = self._place(opener, location)
        if isinstance(filesystem, pafs.LocalFileSystem):
            filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
        return filesystem, path

    def read(self, location: str, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset` (both in bytes), or all to the end."""
        _, found = self._found(location)
        if found is not None:
            if length is None:
                return found.content()[offset:]
            return found.read([(offset, offset + length)])[0] if length else b""
        with self.open_input(location) as source:
            source.seek(offset)
            return bytes(source.read(length) if length is not None else source.read())

    def read_ahead(self, ranges: Iterable[tuple[str, int, int]]) -> Storage:
        """The same, which has read (location, offset, length) of files on S3 at once, as far as it could.

        Why something could not be read, it tells when it is asked for that.
        """
        named: list[tuple[str, int, int]] = []
        asked: list[tuple[S3Object, int, int]] = []
        for location, offset, length in ranges:
            with suppress(OSError, LocationNotAllowedError, pa.ArrowException):
                _, found = self._found(location)
                if found is not None:
                    named.append((location, offset, length))
                    asked.append((found, offset, offset + length))
        contents = zip(named, read_each(asked), strict=True)
        read = {one: content for one, content in contents if content is not None}
        return _ReadAhead(self, read) if read else self

    def is_at_fault(
        self, error: Exception, locations: Iterable[str], read_again: Callable[[], object]
    ) -> bool:
        """Whether an error in reading some files is the store's or this process's own, or else damage.

        Only the former can be helped by a retry. Arrow raises OSError for damaged pages too: it is damage if
        reading them again fails, although every byte can be read.
        """
        if _is_own(error):
            return True
        if not isinstance(error, OSError):
            return False
        try:
            read_again()
        except Exception as again:
            if _is_own(again):
                return True
            return not all(self._can_be_read(location) for location in locations)
        return True

    def _can_be_read(self, location: str) -> bool:
        try:
            with self.open_input(location) as source:
                while source.read(16 * 1024**2):
                    pass
        except OSError:
            return False
        return True

    def write(self, location: str, content: pa.Buffer) -> None:
        """Writes a file whose content is the same whoever writes it, and any number of times.

        A writer that ends in the middle spoils nothing of what another has written: an object store takes a
        file as a whole, and a local one is written in place and never cut off.
        """
        opener, found = self._found(location)
        if content.size <= PART_BYTES and found is not None:
            found.put(content.to_pybytes())
            return
        filesystem, path = self._place_to_write(opener, location)
        if isinstance(filesystem, pafs.LocalFileSystem):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
                file.write(content)
            return
        with filesystem.open_output_stream(path) as sink:
            sink.write(content)

    def create(self, location: str, content: bytes) -> bool:
        """Writes a file that must not exist yet; False if it does. Of several at once, one writes it.

        Raises OSError when the store did not say: it may have been written, or may still be.
        """
        self.io.check(location)
        scheme, netloc, path = LocationFileIO.parse_location(location, self.properties)
        if scheme == "file":
            return _created(Path(path), content) or self.read(location) == content
        store, path = self._object_store(scheme, netloc, location)
        try:
            _within(
                _CREATE_SECONDS,
                partial(obstore.put, store, path, content, mode="create", use_multipart=False),
            )
        except AlreadyExistsError:
            # A repeated request of our own finds what the first one wrote, if only its answer was lost.
            return self.read(location) == content
        except (BaseError, TimeoutError) as error:
            reason = without_signature(str(error).partition("\n")[0])
            raise OSError(f"{location} could not be written: {reason}") from error
        return True

    def _object_store(self, scheme: str, netloc: str, location: str) -> tuple[ObjectStore, str]:
        """Where an exclusive write of a location goes, and the path there: Arrow's file systems have none."""
        io = self.io.at(location)
        _, key = object_key(location)
        if scheme in S3_SCHEMES:
            store = s3_store(netloc, io.properties, io.s3_keys(), _CREATE_CLIENT, _CREATE_RETRIES)
            return store, key
        if scheme in GOOGLE_SCHEMES:
            # What is left out here, obstore takes from GOOGLE_* of the environment.
            given = {"base_url": _GOOGLE} | first_of(
                io.properties, base_url=("gcs.service.host",), bearer_token=("gcs.oauth2.token",)
            )
            client = _CREATE_CLIENT | {"allow_http": given["base_url"].startswith("http:")}
            given["skip_signature"] = "bearer_token" not in given and is_google_public(io.properties)
            return GCSStore(netloc, client_options=client, retry_config=_CREATE_RETRIES, **given), key
        if scheme in AZURE_SCHEMES:
            account = AzureAccount.of(netloc, io.properties)
            return account.container(azure_container(netloc)), key
        raise OSError(f"an index can't lie at a {scheme} location, only on file, s3, gs and abfs")

    def list(self, location: str) -> list[StoredFile]:
        """The files directly in a directory, in any order; none when there is no such directory."""
        filesystem, path = self.resolve(location)
        found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [
            StoredFile(f"{location}/{info.base_name}", info.base_name, info.size, info.mtime_ns / 1e9)
            for info in found
            if info.is_file
        ]

    def walk(self, location: str) -> Sequence[StoredFile]:
        """The files in a directory and below, in any order; none when there is no such directory."""
        filesystem, path = self.resolve(location)
        found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True))
        base = path.rstrip("/")
        return [
            StoredFile(
                f"{location.rstrip('/')}{info.path.removeprefix(base)}",
                info.base_name,
                info.size,
                info.mtime_ns / 1e9,
            )
            for info in found
            if info.is_file
        ]

    def exists(self, location: str) -> bool:
        """Whether there is such a file."""
        opener, found = self._found(location)
        if found is not None:
            return found.exists()
        filesystem, path = self._place(opener, location)
        return bool(filesystem.get_file_info(path).is_file)

    def find(self, location: str) -> StoredFile | None:
        """One file, if it is there."""
        filesystem, path = self.resolve(location)
        info = filesystem.get_file_info(path)
        if not info.is_file:
            return None
        return StoredFile(location, info.base_name, info.size, info.mtime_ns / 1e9)

    def delete(self, location: str) -> bool:
        """Deletes one file; False if there was none."""
        filesystem, path = self.resolve(location)
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            return False
        return True


class _ReadAhead(Storage):
    """Has read some ranges of files already."""

    def __init__(self, storage: Storage, contents: Mapping[tuple[str, int, int], bytes]) -> None:
        self.properties, self.io, self.identity = storage.properties, storage.io, storage.identity
        self._contents = contents

    def read(self, location: str, offset: int = 0, length: int | None = None) -> bytes:
        known = None if length is None else self._contents.get((location, offset, length))
        return super().read(location, offset, length) if known is None else known


class DryStorage(Storage):
    """Reads the same files and writes into nothing, to learn how much would be written."""

    def __init__(self, storage: Storage) -> None:
        self.properties, self.io, self.identity = storage.properties, storage.io, storage.identity

    def write(self, location: str, _: pa.Buffer) -> None:
        self.resolve(location)


def _created(path: Path, content: bytes) -> bool:
    """Whether a local file is written that must not exist yet: as a whole, since readers may look for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        whole.write_bytes(content)
        os.link(whole, path)
    except FileExistsError:
        return False
    finally:
        whole.unlink(missing_ok=True)
    return True


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Makes a call. Raises its error, or TimeoutError while it goes on in a thread that nobody waits for."""
    outcome: Future[None] = Future()

    def make() -> None:
        try:
            call()
            outcome.set_result(None)
        except BaseException as error:  # handed to the caller's thread
            outcome.set_exception(error)

    threading.Thread(target=make, name="storage-create", daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"there was no answer within {seconds:.0f} s") from None


def _is_own(error: Exception) -> bool:
    """Whether this process lacks memory, or room for its temporary files."""
    return lacks_own_memory(error) or (isinstance(error, OSError) and error.errno == errno.ENOSPC)


def lacks_own_memory(error: BaseException) -> bool:
    """Whether an error, or a cause of it, tells that this process has too little memory."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, OSError) and one.errno == errno.ENOMEM)
        # The system has no memory, or no number, left for one.
        or (isinstance(one, RuntimeError) and CANT_START in str(one))
        for one in causes_of(error)
    )


def causes_of(error: BaseException) -> list[BaseException]:
    """An error and what led to it. An error that is raised again makes a circle of these."""
    causes: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in causes:
        causes.append(following)
        following = following.__cause__ or following.__context__
    return causes
