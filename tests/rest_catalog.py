"""An Iceberg REST catalog on loopback that fails as a test says: HTTP in front of PyIceberg's SqlCatalog.

Iceberg's own server is in tests/worker/table/catalog_servers.py.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest
from pyspark.sql import SparkSession

from worker.spark.jvm import java_map
from worker.table.catalogs import java_message, java_properties, java_types

Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class RestCatalog:
    """The record of the running catalog, as it is registered; what was asked of it, for tests to look at."""

    name: str
    url: str
    requests: list[str]
    answers: list[int]
    """Their statuses, once they were given."""
    statuses_after_commit: list[int] = field(default_factory=list)
    """With which to answer the next commits, once they are done."""
    further: Mapping[str, str] = field(default_factory=dict)
    type: str = "rest"

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": self.url, **self.further}


@contextmanager
def running_rest_catalog(
    catalog: Catalog,
    commit: Callable[[Body], object] | None = None,
    vended: Callable[[], Mapping[str, Mapping[str, str]]] = dict,
) -> Iterator[RestCatalog]:
    """Serves the tables of `catalog`.

    commit: carries out a request in the form of the protocol; PyIceberg's, which knows no tables of V3.
    vended: gives credentials by the prefix of locations, for those who ask for them.
    """

    def commit_by_pyiceberg(body: Body) -> object:
        request = CommitTableRequest.model_validate(body)
        table = catalog.load_table((*request.identifier.namespace.root, request.identifier.name))
        return catalog.commit_table(table, request.requirements, request.updates)

    requests: list[str] = []
    answers: list[int] = []
    statuses: list[int] = []
    config = uvicorn.Config(
        _app(catalog, requests, answers, statuses, commit or commit_by_pyiceberg, vended),
        host="127.0.0.1",
        port=0,
        log_level="warning",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield RestCatalog("rest_lake", f"http://127.0.0.1:{port}", requests, answers, statuses)
    finally:
        server.should_exit = True
        thread.join(10)


def commit_by_java(spark: SparkSession, name: str, properties: Mapping[str, str]) -> Callable[[Body], object]:
    """Commits tables of any version to the same SQL catalog with Iceberg's own handlers."""
    iceberg: Any = spark.sparkContext._jvm.org.apache.iceberg  # type: ignore[union-attr]
    java = java_map(spark.sparkContext._jvm, java_properties("sql", properties))
    backend = iceberg.CatalogUtil.buildIcebergCatalog(name, java, None)

    def commit(body: Body) -> None:
        name = body["identifier"]
        identifier = iceberg.catalog.TableIdentifier.parse(".".join([*name["namespace"], name["name"]]))
        request = iceberg.rest.requests.UpdateTableRequestParser.fromJson(json.dumps(body))
        try:
            iceberg.rest.CatalogHandlers.updateTable(backend, identifier, request)
        except Py4JJavaError as error:
            if any(name.endswith(".CommitFailedException") for name in java_types(error)):
                raise CommitFailedException(java_message(error)) from None
            raise

    return commit


def _app(
    catalog: Catalog,
    requests: list[str],
    answers: list[int],
    statuses_after_commit: list[int],
    commit: Callable[[Body], object],
    vended: Callable[[], Mapping[str, Mapping[str, str]]],
) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def remember(request: Request, call_next: Any) -> Response:
        requests.append(f"{request.method} {request.url.path}")
        response: Response = await call_next(request)
        answers.append(response.status_code)
        return response

    @app.exception_handler(NoSuchTableError)
    def not_found(_: Request, error: NoSuchTableError) -> JSONResponse:
        return _error(404, "NoSuchTableException", error)

    @app.exception_handler(CommitFailedException)
    def conflict(_: Request, error: CommitFailedException) -> JSONResponse:
        return _error(409, "CommitFailedException", error)

    @app.get("/v1/config")
    def config() -> dict[str, Any]:
        return {"defaults": {}, "overrides": {}}

    @app.get("/v1/namespaces")
    def namespaces() -> dict[str, Any]:
        """All of them, whatever the parent asked for: like a catalog without nested namespaces."""
        return {"namespaces": [list(namespace) for namespace in catalog.list_namespaces()]}

    @app.get("/v1/namespaces/{namespace}/tables")
    def tables(namespace: str) -> dict[str, Any]:
        found = catalog.list_tables(namespace)
        return {"identifiers": [{"namespace": list(table[:-1]), "name": table[-1]} for table in found]}

    @app.get("/v1/namespaces/{namespace}/tables/{name}")
    def load(namespace: str, name: str, request: Request) -> Response:
        table = catalog.load_table((namespace, name))
        etag = {"ETag": f'"{table.metadata_location}"'}
        if request.headers.get("If-None-Match") == etag["ETag"]:
            return Response(status_code=304, headers=etag)
        loaded = _loaded(table.metadata_location, table.metadata)
        if request.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials":
            places = [{"prefix": prefix, "config": dict(config)} for prefix, config in vended().items()]
            loaded["storage-credentials"] = places
        return JSONResponse(loaded, headers=etag)

    @app.post("/v1/namespaces/{namespace}/tables/{name}")
    def update(namespace: str, name: str, body: Body, request: Request) -> Response:
        body.setdefault("identifier", {"namespace": [namespace], "name": name})
        commit(body)
        if statuses_after_commit:
            return Response(status_code=statuses_after_commit.pop(0))
        return load(namespace, name, request)

    @app.post("/v1/transactions/commit", status_code=204)
    def update_tables(body: Body) -> None:
        """As DuckDB commits: here of one table, so that nothing has to be undone."""
        (change,) = body["table-changes"]
        commit(change)

    @app.post("/v1/namespaces/{namespace}/tables/{name}/metrics", status_code=204)
    def report_metrics(namespace: str, name: str) -> None:
        """Java's client tells how its commits went."""

    return app


def _loaded(location: str, metadata: Any) -> dict[str, Any]:
    content = metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"metadata-location": location, "metadata": content, "config": {}}


def _error(status: int, kind: str, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error), "type": kind, "code": status}}, status)
