"""Azure's store as a file system of Arrow's, by obstore.

Arrow's own ends the whole process, not just the call, if Azure can't be reached, and takes no SAS tokens
before version 20, beyond which pypaimon does not go. Directories are what names have in common, as on S3.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from errno import EACCES, ENOENT
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore
from pyarrow import fs as pafs

from stores.ranges import RangeReader

if TYPE_CHECKING:  # names that obstore has for type checkers only
    from obstore.store import ClientConfig, RetryConfig

_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_CLIENT_SECONDS = 20
_CLIENT: ClientConfig = {"timeout": timedelta(seconds=_CLIENT_SECONDS)}
_MARK = ".directory"
_DOMAIN = ".dfs.core.windows.net"
# Azure's own, in all its clouds.
_HOST = re.compile(
    r"[a-z0-9-]+(\.[a-z0-9-]+)*"
    r"\.(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net"
    r"|fabric\.microsoft\.com)"
)
_SIGNATURE = re.compile(r"\bsig=[^&\s\"')>]+")

_FOR_NO_HOST = ("adls.sas-token", "adls.connection-string")
_KEYS = ("adls.account-key", "adls.auth.shared-key.account.key")

AZURE_SCHEMES = frozenset(("abfs", "abfss", "wasb", "wasbs"))


def azure_container(netloc: str) -> str:
    """Of `container@account.dfs.core.windows.net`, or of a location that names nothing else."""
    return netloc.partition("@")[0]


def azure_host(location: str) -> str:
    """Of the account that a location on Azure names; empty if it names none."""
    scheme, _, rest = location.partition("://")
    return rest.partition("/")[0].partition("@")[2] if scheme.lower() in AZURE_SCHEMES else ""


def check_endpoint(value: str) -> None:
    """Raises OSError for a `adls.connection-string` that is none in Java's sense; never quotes it."""
    if not re.fullmatch(r"https?://[^/?#;@\s]+(/[^?#;@\s]*)?", value):
        raise OSError(
            "adls.connection-string has to be the URL of the account's endpoint, as in Iceberg's Java, "
            "without credentials; give those as adls.account-key or adls.sas-token"
        )


def without_signature(text: str) -> str:
    """What is said of a request, without what is secret of a SAS token."""
    return _SIGNATURE.sub("sig=...", text)


@dataclass(frozen=True, slots=True)
class AzureAccount:
    """An account and how it lets us in: by a SAS token, a key, or else by what obstore and Java find on this
    machine: AZURE_CLIENT_ID and such in the environment, a workload's or a managed identity.

    endpoint: the URL of its blobs, without a slash at the end.
    """

    name: str
    endpoint: str
    key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)

    @staticmethod
    def of(netloc: str, properties: Mapping[str, str]) -> AzureAccount:
        """The account that a location names, or else the properties do: PyIceberg's, or Iceberg Java's.

        What is given for no host goes to the account that `adls.account-name` or else `warehouse` names, and
        only to hosts of Azure's and that of `warehouse`: whoever writes a location chooses a host. Raises
        PermissionError for any other host that no property is for, and where none of the two names the
        account; OSError for what is no endpoint.
        """
        host = netloc.partition("@")[2]
        home = azure_host(properties.get("warehouse", ""))
        named = _first(properties, "adls.account-name", "adls.auth.shared-key.account.name")
        named = named or home.partition(".")[0]
        name = host.partition(".")[0] or named
        if not name:
            raise OSError("neither the location nor adls.account-name names the account on Azure")
        host = host if "." in host else name + _DOMAIN
        is_own = bool(_HOST.fullmatch(host.lower())) or host == home
        if not is_own and not _first(properties, *(f"{key}.{host}" for key in _FOR_NO_HOST)):
            raise PermissionError(
                EACCES,
                "This host is not Azure's, and gets no credentials unless a property is for it, "
                "such as adls.sas-token.HOST or adls.connection-string.HOST",
                host,
            )
        unnamed = [key for key in (*_FOR_NO_HOST, *_KEYS) if properties.get(key)]
        if unnamed and not named:
            raise PermissionError(
                EACCES,
                f"Nothing says whose {unnamed[0]} is, so it is sent to nobody; set adls.account-name to the "
                "account",
                host,
            )
        is_named = named == name

        def of_account(key: str) -> str | None:
            of_name = (f"{key}.{name}",) if is_own else ()
            return _first(properties, f"{key}.{host}", *of_name, *((key,) if is_own and is_named else ()))

        key = _first(properties, *_KEYS)
        # What Java calls so is the endpoint.
        endpoint = of_account("adls.connection-string") or f"https://{host}"
        check_endpoint(endpoint)
        token = of_account("adls.sas-token")
        return AzureAccount(
            name,
            endpoint.rstrip("/").replace(".dfs.", ".blob.", 1),
            key if is_named and (is_own or f"adls.connection-string.{host}" in properties) else None,
            token.removeprefix("?") if token else None,
        )

    def container(self, name: str) -> AzureStore:
        """One of its containers."""
        given: dict[str, Any] = {"account_name": self.name, "endpoint": self.endpoint, "use_emulator": False}
        credentials: Any = {"sas_token": self.sas_token} if self.sas_token else {"access_key": self.key}
        if self.sas_token or self.key:
            # As sas_key or account_key they would come after what the environment has, as of a workload.
            credentials["expires_at"] = None
            given |= {"credential_provider": lambda: credentials, "skip_signature": False}
        client = _CLIENT | {"allow_http": self.endpoint.startswith("http:")}
        return AzureStore(name, client_options=client, retry_config=_RETRIES, **given)


class AzureHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    """What `pyarrow.fs.PyFileSystem` asks. Paths are `container/name`.

    Raises FileNotFoundError, PermissionError, or another OSError, which a retry can help.
    """

    def __init__(self, account: AzureAccount) -> None:
        self._account = account
        self._container = lru_cache(account.container)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AzureHandler) and self._account == other._account

    def __hash__(self) -> int:
        return hash(self._account)

    def get_type_name(self) -> str:
        return "azure"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        store, prefix = self._place(selector.base_dir)
        root = selector.base_dir.partition("/")[0]
        with _told(selector.base_dir):
            if selector.recursive:
                objects = [found for chunk in obstore.list(store, prefix or None) for found in chunk]
                folders: list[str] = []
            else:
                listed = obstore.list_with_delimiter(store, prefix or None)
                objects, folders = list(listed["objects"]), list(listed["common_prefixes"])
        if not objects and not folders and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        return [_file(f"{root}/{one['path']}", one) for one in objects] + [
            pafs.FileInfo(f"{root}/{folder}", pafs.FileType.Directory) for folder in folders
        ]

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002
        """By an empty file in it: nothing else would tell that it is there."""
        store, name = self._place(path)
        if name and self._info(path).type is not pafs.FileType.Directory:
            with _told(path):
                obstore.put(store, f"{name}/{_MARK}", b"")

    def delete_dir(self, path: str) -> None:
        self.delete_dir_contents(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: ARG002
        store, prefix = self._place(path)
        with _told(path):
            for chunk in obstore.list(store, prefix or None, chunk_size=256):
                self._delete(store, path.partition("/")[0], [found["path"] for found in chunk])

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("all containers of an account are deleted by nobody")

    def delete_file(self, path: str) -> None:
        store, name = self._place(path)
        with _told(path):
            self._delete(store, path.partition("/")[0], [name])

    def move(self, source: str, target: str) -> None:
        self.copy_file(source, target)
        self.delete_file(source)

    def copy_file(self, source: str, target: str) -> None:
        store, name = self._place(source)
        with _told(source):
            obstore.copy(store, name, self._place(target)[1])

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        store, name = self._place(path)
        with _told(path):
            size = obstore.head(store, name)["size"]
        return pa.PythonFile(_Blob(store, name, size), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:  # noqa: ARG002
        store, name = self._place(path)
        return pa.PythonFile(_Upload(store, name), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise NotImplementedError("files here are written once")

    def _place(self, path: str) -> tuple[AzureStore, str]:
        container, _, name = path.partition("/")
        return self._container(container), name

    def _delete(self, store: AzureStore, container: str, names: list[str]) -> None:
        token = self._account.sas_token
        if not token:
            obstore.delete(store, names)
            return
        # obstore asks the account to delete many at once, which no token for a container or less allows.
        for name in names:
            url = f"{self._account.endpoint}/{container}/{quote(name)}"
            try:
                answer = httpx.delete(f"{url}?{token}", timeout=_CLIENT_SECONDS)
            except httpx.HTTPError as error:
                raise OSError(f"{url}: {error}") from None
            if answer.status_code == 404:
                raise FileNotFoundError(url)
            if answer.status_code in (401, 403):
                raise PermissionError(EACCES, f"Azure refuses it with status {answer.status_code}", url)
            if not answer.is_success:
                raise OSError(f"{url}: Azure answers with status {answer.status_code}")

    def _info(self, path: str) -> pafs.FileInfo:
        store, name = self._place(path)
        with suppress(FileNotFoundError), _told(path):
            if name:
                return _file(path, obstore.head(store, name))
        with suppress(FileNotFoundError), _told(path):
            if next(iter(obstore.list(store, name or None, chunk_size=1)), None) or not name:
                return pafs.FileInfo(path, pafs.FileType.Directory)
        return pafs.FileInfo(path, pafs.FileType.NotFound)


def _file(path: str, found: Any) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.File, size=found["size"], mtime=found["last_modified"])


class _Blob(RangeReader):
    """A file that is read by ranges."""

    def __init__(self, store: AzureStore, name: str, size: int) -> None:
        super().__init__(size)
        self._store, self._name = store, name

    def read(self, size: int = -1) -> bytes:
        start, end = self.advance(size)
        if end <= start:
            return b""
        with _told(self._name):
            return obstore.get_range(self._store, self._name, start=start, end=end).to_bytes()


class _Upload(io.RawIOBase):
    """A file that is there, whole, once it is closed."""

    def __init__(self, store: AzureStore, name: str) -> None:
        self._name, self._writer = name, obstore.open_writer(store, name)

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        with _told(self._name):
            return self._writer.write(bytes(content))

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _told(self._name):
                self._writer.close()

    def __del__(self) -> None:
        """Nothing: Python's own would close, and a file that nobody finished would be there."""


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Raises obstore's errors as those of files."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        reason = without_signature(str(error).partition("\n")[0])
        # Of a container, it has no name of its own.
        if isinstance(error, NotFoundError | FileNotFoundError) or ": 404 Not Found" in reason:
            raise FileNotFoundError(ENOENT, "Azure has no such blob or container", path) from None
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            raise PermissionError(EACCES, f"Azure refuses it: {reason}", path) from None
        raise OSError(f"{path}: {reason}") from None


def _first(properties: Mapping[str, str], *keys: str) -> str | None:
    return next((properties[key] for key in keys if properties.get(key)), None)
