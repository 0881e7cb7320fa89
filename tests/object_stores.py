"""Google's and Azure's stores on loopback, in processes of their own. Amazon's is in tests/s3.py."""

import base64
import hashlib
import hmac
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.patience import PATIENCE_SECONDS
from tests.server_process import free_port, serving

# The emulator knows neither the condition on which a file of an index is written nor the ETag of what was.
_GOOGLE = """
import sys, threading
from http import HTTPStatus
from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound

upload, one_at_a_time = server.HANDLERS[-1][1][server.PUT], threading.Lock()

def upload_if_absent(request, response, storage, *args, **kwargs):
    with one_at_a_time:
        if request.get_header("x-goog-if-generation-match") == "0":
            try:
                storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
            except NotFound:
                pass
            else:
                response.status = HTTPStatus.PRECONDITION_FAILED
                return
        upload(request, response, storage, *args, **kwargs)
        response["ETag"] = '"1"'
        response["x-goog-generation"] = "1"

server.HANDLERS[-1][1][server.PUT] = upload_if_absent
server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="lake").run()
"""
AZURITE = Path(os.environ.get("ICESTREAM_BIN_DIR", "~/.cache/icestream/bin")).expanduser() / "azurite"
_ACCOUNT = "devstoreaccount1"  # Azurite's, with its key, which everybody knows
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_HOST = f"{_ACCOUNT}.dfs.core.windows.net"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket or container, and what a record says of it: in PyIceberg's words, and in Java's."""

    location: str
    properties: dict[str, str]
    java_properties: dict[str, str]


@contextmanager
def google_store() -> Iterator[ObjectStore]:
    port = free_port()
    with serving([sys.executable, "-c", _GOOGLE, str(port)], port):
        properties = {
            "gcs.service.host": f"http://127.0.0.1:{port}",
            "gcs.project-id": "project",
            "gcs.oauth2.token": "token",
        }
        yield ObjectStore("gs://lake", properties, properties)


@contextmanager
def azure_store() -> Iterator[ObjectStore]:
    """Azurite, which scripts/install_azurite installs."""
    port = free_port()
    main = AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    with serving(["node", str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options], port):
        endpoint = {f"adls.connection-string.{_HOST}": f"http://127.0.0.1:{port}/{_ACCOUNT}"}
        key = {"adls.account-name": _ACCOUNT, "adls.account-key": _KEY}
        java = {"adls.auth.shared-key.account.name": _ACCOUNT, "adls.auth.shared-key.account.key": _KEY}
        store = ObjectStore(f"abfss://lake@{_HOST}", key | endpoint, java | endpoint)
        _create_container(store)
        yield store


def _create_container(store: ObjectStore) -> None:
    endpoint = store.properties[f"adls.connection-string.{_HOST}"]
    answer = httpx.put(f"{endpoint}/lake?restype=container&{azure_token()}", timeout=PATIENCE_SECONDS)
    assert answer.status_code == 201, answer.text


def azure_token() -> str:
    """A SAS token of Azurite's account, for all that can be done with blobs."""
    version, permissions, end = "2020-12-06", "rwdlac", "2099-01-01T00:00:00Z"
    signed = "\n".join((_ACCOUNT, permissions, "b", "sco", "", end, "", "", version, "", ""))
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    fields = {"sv": version, "ss": "b", "srt": "sco", "sp": permissions, "se": end}
    return urlencode(fields | {"sig": base64.b64encode(digest).decode()})
