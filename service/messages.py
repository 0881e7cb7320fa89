"""What requests and answers are made of."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """The words below a field are its description in the OpenAPI document: every field has some."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def described_as(other: type[Message]) -> ConfigDict:
    """The configuration of a message whose fields mean what those of the same names in `other` do."""

    def describe(schema: dict[str, Any]) -> None:
        for name, field in schema["properties"].items():
            field["description"] = other.model_fields[name].description

    return ConfigDict(json_schema_extra=describe)


def example(*bodies: dict[str, Any]) -> dict[str, Any]:
    """`json_schema_extra` of a request: what /docs shows, and tests send."""
    return {"examples": list(bodies)}


CatalogId = Annotated[str, Path(description="Id or name of a catalog.")]
PolicyId = Annotated[str, Path(description="Id or name of a policy.")]
TableId = Annotated[str, Path(description="Id of an enrolled table.")]
JobId = Annotated[str, Path(description="Id of a job.")]
KeyId = Annotated[str, Path(description="Id of an API key.")]
WorkerId = Annotated[str, Path(description="Id that a worker got when it registered.")]
AttemptNumber = Annotated[
    int, Path(ge=1, le=2**31 - 1, description="Number of the attempt: a late one gets 409 `stale-attempt`.")
]
