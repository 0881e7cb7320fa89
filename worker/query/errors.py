"""Why a question is not answered. An answer is whole, or there is none."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.keys.key_set import KeyColumnError
from worker.keys.read import missing_file
from worker.process.errors import JobError


class QuestionError(JobError):
    """What is asked, or what is there to answer it with, is not as it must be."""

    status = 400


class InvalidKeyError(QuestionError):
    code = "invalid_key"
    title = "A key is not of the table's key columns"
    remedy = "Give each key column a value of its type, as Iceberg writes it in JSON, or null."


class InvalidArrowError(QuestionError):
    code = "invalid_arrow"
    title = "The keys are no Arrow stream of plain columns"
    remedy = "Send an Arrow IPC stream of plain columns, one for each key column, uncompressed."


class UnknownKeyColumnsError(QuestionError):
    code = "unknown_key_columns"
    title = "The table has no such key"
    remedy = "Name columns of the table's schema, or leave `key_columns` out where it has one key set."


class UnknownColumnsError(QuestionError):
    code = "unknown_columns"
    title = "The table has no such column"
    remedy = "Select columns of the table's schema (in the past, the snapshot's), by their dotted names."


class UnknownSnapshotError(QuestionError):
    code = "unknown_snapshot"
    title = "The table has no such snapshot or branch"
    remedy = "Name a snapshot that has not expired, or a branch or tag that is there."
    status = 404


class AnswerTooLargeError(QuestionError):
    code = "answer_too_large"
    title = "The answer is too large"
    remedy = "Ask for fewer keys at once, or select fewer columns."
    status = 422


class NotCoveredError(QuestionError):
    code = "not_covered"
    title = "The index does not cover enough of the table"
    remedy = "Run a job of kind `index`, or wait for the next one, and ask again."
    status = 409


class UnreadableError(QuestionError):
    code = "unreadable"
    title = "A file that the answer needs can't be read"
    status = 409


@contextmanager
def told_as_unreadable(of_what: str = "") -> Iterator[None]:
    """of_what: before the reason why a key can't be told."""
    try:
        yield
    except KeyColumnError as error:
        raise UnreadableError(f"{of_what}{error}", error.remedy) from error
    except FileNotFoundError as error:
        raise UnreadableError(str(error), missing_file(error).remedy) from error


class OutdatedError(QuestionError):
    """What was known of the table is gone: the next look finds what is there now."""

    code = "outdated"
    title = "The table changed in the meantime"
    remedy = "Ask again."
    status = 503
    retryable = True
