"""What requests and answers are made of."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
)
from pydantic import Field as ModelField
from pydantic_core import CoreSchema


def _as_in_json(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float", "bool"):
            schema["strict"] = True
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        _as_in_json(part)


class Message(BaseModel):
    """The words below a field are its description in the OpenAPI document: every field has some.

    Numbers and truth values are what JSON calls so: pydantic would take "off" for false and true for 1,
    which the document doesn't say. Forms and queries, which have nothing but text, say `strict=False`.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        if cls.model_config.get("strict") is not False:
            _as_in_json(schema)
        return schema


class ClosedMessage(Message):
    """Takes no other fields than its own."""

    model_config = ConfigDict(extra="forbid")


def described_as(other: type[Message]) -> ConfigDict:
    """The configuration of a message whose fields mean what those of the same names in `other` do."""

    def describe(schema: dict[str, Any]) -> None:
        described = {field.alias or name: field.description for name, field in other.model_fields.items()}
        for name, field in schema["properties"].items():
            field["description"] = described[name]

    return ConfigDict(json_schema_extra=describe)


def example(*bodies: dict[str, Any]) -> dict[str, Any]:
    """`json_schema_extra` of a request: what /docs shows, and tests send."""
    return {"examples": list(bodies)}


def to_utc(value: datetime) -> datetime:
    """Raises ValueError for a time that is no UTC time of the years 1 to 9999."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("should be a time of the years 1 to 9999 in UTC") from None


def _refuse_number(value: object) -> object:
    # pydantic would take one for seconds or milliseconds, by its size.
    if isinstance(value, int | float) or (isinstance(value, str) and value.strip("+-.0123456789") == ""):
        raise ValueError("should be a time as in RFC 3339, such as 2030-01-01T00:00:00Z")
    return value


UtcTime = Annotated[AwareDatetime, BeforeValidator(_refuse_number), AfterValidator(to_utc)]
"""A time in a request, with any time zone."""
CatalogId = Annotated[str, Path(description="The catalog is given by id or name.")]
PolicyId = Annotated[str, Path(description="The policy is given by id or name.")]
TableId = Annotated[str, Path(description="The id names an enrolled table.")]
JobId = Annotated[str, Path(description="The id names a job.")]
KeyId = Annotated[str, Path(description="The id names an API key.")]
WorkerId = Annotated[str, Path(description="The worker got this id when it registered.")]
AttemptNumber = Annotated[
    int,
    Path(
        ge=1,
        le=2**31 - 1,
        description="The attempt has this number: a late one gets 409 `stale-attempt`.",
    ),
]
Name = Annotated[str, ModelField(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
