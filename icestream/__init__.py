"""Icestream's client: where the rows of keys are, asked of the service; jobs, writes by key, and
erasures with receipts.

    from icestream import Client

    with Client() as client:
        found = client.table("sales.orders").lookup([{"order_id": 17}], select=["status"])
        print(found.to_pandas())

`icestream.spark` answers for any number of keys in Spark, without the service.
"""

from icestream.client import Answer, Client, Table
from icestream.erasures import Erasure, Receipt, ReceiptForgedError
from icestream.errors import (
    BusyError,
    ConflictError,
    ForbiddenError,
    IcestreamError,
    InvalidError,
    NotFoundError,
    ProblemError,
    SetupError,
    UnauthenticatedError,
    UnknownNameError,
    UnreachableError,
)
from icestream.jobs import Job, JobFailedError
from icestream.writes import Written

__all__ = [
    "Answer",
    "BusyError",
    "Client",
    "ConflictError",
    "Erasure",
    "ForbiddenError",
    "IcestreamError",
    "InvalidError",
    "Job",
    "JobFailedError",
    "NotFoundError",
    "ProblemError",
    "Receipt",
    "ReceiptForgedError",
    "SetupError",
    "Table",
    "UnauthenticatedError",
    "UnknownNameError",
    "UnreachableError",
    "Written",
]
