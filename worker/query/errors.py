"""Why a question is not answered. An answer is whole, or there is none."""

from collections.abc import Iterator
from contextlib import contextmanager

from trust import refusals
from worker.keys.key_set import KeyColumnError
from worker.keys.read import missing_file
from worker.process.errors import JobError


class QuestionError(JobError):
    """What is asked, or what is there to answer it with, is not as it must be."""

    status = 400


class InvalidKeyError(QuestionError):
    code = "invalid_key"
    title, remedy = refusals.INVALID_KEY


class InvalidArrowError(QuestionError):
    code = "invalid_arrow"
    title, remedy = refusals.INVALID_ARROW


class UnknownKeyColumnsError(QuestionError):
    code = "unknown_key_columns"
    title, remedy = refusals.UNKNOWN_KEY_COLUMNS


class UnknownColumnsError(QuestionError):
    code = "unknown_columns"
    title, remedy = refusals.UNKNOWN_COLUMNS


class UnknownSnapshotError(QuestionError):
    code = "unknown_snapshot"
    title, remedy = refusals.UNKNOWN_SNAPSHOT
    status = 404


class AnswerTooLargeError(QuestionError):
    code = "answer_too_large"
    title, remedy = refusals.ANSWER_TOO_LARGE
    status = 422


class NotCoveredError(QuestionError):
    code = "not_covered"
    title, remedy = refusals.NOT_COVERED
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
    title, remedy = refusals.TABLE_CHANGED
    status = 503
    retryable = True
