"""What workers reported, as it is read from the database: what none may report any more was never told.

Rows outlive the versions that wrote them, and earlier ones took in whatever was sent.
"""

from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator

from service.db.database import Json


class ReportedObject(TypeDecorator[dict[str, Any]]):
    """JSON that is read as a message of optional fields: those that were told, and are right."""

    impl = Json
    cache_ok = True

    def __init__(self, message: type[BaseModel]) -> None:
        super().__init__()
        self.message = message

    def process_result_value(self, value: Any, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        if not isinstance(value, dict):
            return None
        try:
            told = self.message.model_validate(value)
        except ValidationError as error:
            wrong = {one["loc"][0] for one in error.errors()}
            told = self.message.model_validate({key: value[key] for key in value.keys() - wrong})
        return told.model_dump(mode="json", exclude_unset=True)


class ReportedList(TypeDecorator[list[dict[str, Any]]]):
    """JSON that is read as a list of messages: those that are right, with all their fields."""

    impl = Json
    cache_ok = True

    def __init__(self, message: type[BaseModel]) -> None:
        super().__init__()
        self.message = message

    def process_result_value(self, value: Any, dialect: Dialect) -> list[dict[str, Any]]:  # noqa: ARG002
        found = []
        for one in value if isinstance(value, list) else []:
            with suppress(ValidationError):
                found.append(self.message.model_validate(one).model_dump())
        return found
