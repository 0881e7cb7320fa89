"""An S3 server on loopback, in a process of its own: moto's, one request after the other.

moto looks whether an object is there and then puts it, which only then is the one step that it is on S3.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs as pafs

from tests.server_process import free_port, serving

_SERVE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

serve = DomainDispatcherApplication(create_backend_app)

def deny_deletes(environment, start_response):
    method, query = environment["REQUEST_METHOD"], environment["QUERY_STRING"].split("&")[0]
    if method == "DELETE" or (method == "POST" and query.partition("=")[0] == "delete"):
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
    return serve(environment, start_response)

def deny_in_table_buckets(environment, start_response):
    method, (bucket, _, key) = environment["REQUEST_METHOD"], environment["PATH_INFO"][1:].partition("/")
    lists = method == "GET" and not key
    deletes = method == "DELETE" or "delete" in environment["QUERY_STRING"]
    if bucket.endswith("--table-s3") and (lists or deletes):
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start_response("405 Method Not Allowed", [("Content-Type", "application/xml")])
        return [b"<Error><Code>MethodNotAllowed</Code><Message>Not allowed here.</Message></Error>"]
    return serve(environment, start_response)

if "denies-deletes" in sys.argv:
    application = deny_deletes
else:
    application = deny_in_table_buckets if "has-table-buckets" in sys.argv else serve
run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=False)
"""


@dataclass(frozen=True, slots=True)
class S3:
    """A server, and what its clients need to know. `port` may be that of a proxy before it."""

    port: int

    def properties(self) -> dict[str, str]:
        """PyIceberg's."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }

    def create_bucket(self, name: str) -> str:
        """Its location."""
        filesystem = pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        filesystem.create_dir(name)
        return f"s3://{name}"


@contextmanager
def s3_server(*, denies_deletes: bool = False, has_table_buckets: bool = False) -> Iterator[S3]:
    """denies_deletes: to everybody, as a policy of the bucket may.

    has_table_buckets: those with names as of S3 Tables let nobody list and delete.
    """
    port = free_port()
    options = ["denies-deletes"] if denies_deletes else []
    options += ["has-table-buckets"] if has_table_buckets else []
    with serving([sys.executable, "-c", _SERVE, str(port), *options], port):
        yield S3(port)
