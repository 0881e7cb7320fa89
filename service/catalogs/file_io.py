"""How PyIceberg opens the files that a location names."""

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT

_HIDDEN = {ord("?"): "\ue000", ord("#"): "\ue001"}  # private characters, in no name
_SHOWN = {ord(hidden): chr(shown) for shown, hidden in _HIDDEN.items()}


class LocationFileIO(PyArrowFileIO):
    """PyIceberg's FileIO, which keeps a `?` or `#` in a path: a location is no URL with a query."""

    @staticmethod
    def parse_location(location: str, properties: dict[str, Any] = EMPTY_DICT) -> tuple[str, str, str]:
        """(scheme, netloc, path) of a location."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location.translate(_HIDDEN), properties)
        return scheme, netloc, path.translate(_SHOWN)
