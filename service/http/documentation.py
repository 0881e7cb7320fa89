"""/openapi.json, and Swagger UI at /docs: files of our own, nothing from elsewhere or inline."""

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from service.errors import NotFoundError
from service.http.guards import Anyone
from service.http.headers import PAGE_POLICY

_SWAGGER = Path(str(files("fastapi_offline") / "static"))
_OURS = Path(__file__).parent / "docs"
_ASSETS = {
    "swagger-ui.css": (_SWAGGER, "text/css"),
    "swagger-ui-bundle.js": (_SWAGGER, "text/javascript"),
    "favicon.png": (_SWAGGER, "image/png"),
    "start.js": (_OURS, "text/javascript"),
    "page.css": (_OURS, "text/css"),
}
# Swagger UI's style sheet holds its icons as data.
_POLICY = PAGE_POLICY.replace("img-src 'self'", "img-src 'self' data:")

router = APIRouter(include_in_schema=False, dependencies=[Anyone])


@router.get("/openapi.json")
def get_document(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


@router.get("/docs")
def show_documentation() -> HTMLResponse:
    page = (_OURS / "index.html").read_text()
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/{name}")
def get_asset(name: str) -> FileResponse:
    if name not in _ASSETS:
        raise NotFoundError("not-found", f"There is no {name!r}.", "Reload the page.")
    directory, media_type = _ASSETS[name]
    return FileResponse(directory / name, media_type=media_type, headers={"Cache-Control": "no-cache"})
