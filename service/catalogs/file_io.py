"""How PyIceberg opens the files that a location names, and only those that the operator allows."""

from collections.abc import Mapping
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.typedef import EMPTY_DICT

from service.catalogs.reach import check_file_io, check_location
from service.settings import Settings
from stores.file_io import LocationFileIO

SETTINGS = "icestream.settings"
"""The property that hands GuardedFileIO the service's settings."""


class GuardedFileIO(LocationFileIO):
    """Files that catalogs name: whatever lies elsewhere than the operator allows is refused.

    PyIceberg makes it from properties alone, so the settings come as one of them. Raises InvalidError.
    """

    def __init__(self, properties: Mapping[str, Any] = EMPTY_DICT) -> None:
        given = dict(properties)
        self._settings: Settings = given.pop(SETTINGS)
        check_file_io(self._settings, given)
        super().__init__(given)

    def check(self, location: str) -> None:
        check_location(self._settings, location)

    def new_input(self, location: str) -> PyArrowFile:
        self.check(location)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self.check(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.check(location if isinstance(location, str) else location.location)
        super().delete(location)
