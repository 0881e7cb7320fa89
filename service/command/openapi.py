"""The OpenAPI document: `python -m service.command.openapi` writes openapi/openapi.json."""

import json
from pathlib import Path

from service.app import create_app
from service.settings import Settings

DOCUMENT = Path(__file__).parents[2] / "openapi" / "openapi.json"


def render() -> str:
    """The document as it is checked in."""
    app = create_app(Settings(database_url="sqlite://"))
    return json.dumps(app.openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render())
