"""HTTP connections that take an answer whole, and no more of it than `trust.bounds` says.

Made for the pools of urllib3, below all that asks catalogs: requests, and the client of AWS. So whatever
reads an answer, also an error or a token, meets the same bounds, and a server that gives a byte now and then
is left.
"""

from __future__ import annotations

import io
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import HTTPResponse

from trust.bounds import ANSWER_BYTES, ERROR_BYTES, check_json, check_size, check_time, holding

_PART_BYTES = 256 * 1024
_OF_TRANSFER = ("content-encoding", "transfer-encoding", "content-length")


class BoundedConnection(HTTPConnection):
    """Raises LimitExceededError, which nothing above takes for a failure of the network."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held = ExitStack()

    def _new_conn(self) -> Any:
        check_time()
        made = super()._new_conn()
        # Before TLS is spoken: that can be slow, too.
        self._hold(made)
        return made

    def request(self, *args: Any, **options: Any) -> None:
        check_time()
        if self.sock is not None:
            self._hold(self.sock)
        super().request(*args, **options)

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        """The answer, decoded."""
        try:
            answer = super().getresponse()
            try:
                content = self._read(answer)
            except BaseException:
                answer.close()  # it may hold the connection alone
                raise
        except Exception:
            # Rather than that its connection was cut.
            check_time()
            raise
        finally:
            self._held.close()
        # A body that ends with its connection looks complete where it was cut.
        check_time()
        headers = answer.headers.copy()
        for name in _OF_TRANSFER:
            headers.pop(name, None)
        return HTTPResponse(
            body=io.BytesIO(content),
            headers=headers,
            status=answer.status,
            version=answer.version,
            version_string=answer.version_string,
            reason=answer.reason,
            preload_content=False,
            original_response=answer._original_response,
            request_url=answer.url,
        )

    def close(self) -> None:
        self._held.close()
        super().close()

    def _hold(self, sock: Any) -> None:
        self._held.close()
        self._held.enter_context(holding(sock))

    def _read(self, answer: HTTPResponse) -> bytes:
        is_error = answer.status >= HTTPStatus.BAD_REQUEST
        most = ERROR_BYTES if is_error else ANSWER_BYTES
        what = f"The answer of {self.host}"
        check_size(answer.length_remaining or 0, most, what)  # as it is told
        parts: list[bytes] = []
        size = 0
        while part := answer.read1(_PART_BYTES, decode_content=True):
            check_time()
            size += len(part)
            check_size(size, most, what)
            parts.append(part)
        content = b"".join(parts)
        check_json(content, what)
        return content


class BoundedSecureConnection(BoundedConnection, HTTPSConnection):
    """The same over TLS."""
