"""What service and worker both refuse, in the same words: questions about a table's rows, what a catalog or
a table is not fit for, and where neither may lead. What is the case stands in each one's detail."""

from typing import ClassVar, NamedTuple


class Refusal(NamedTuple):
    title: str
    remedy: str


class NotAllowedError(Exception):
    """Something leads where the operator lets nobody, or nobody can tell where; final.

    Its text says so, as `detail` does in a sentence; `remedy` says what to do.
    """

    remedy: ClassVar[str]

    @property
    def detail(self) -> str:
        return f"{self}."


INVALID_KEY = Refusal(
    "A key is not of the table's key columns",
    "Give each key column a value of its type, as Iceberg writes it in JSON, or null.",
)
INVALID_ARROW = Refusal(
    "The keys are no Arrow stream of plain columns",
    "Send an Arrow IPC stream of plain columns, one for each key column, uncompressed.",
)
UNKNOWN_KEY_COLUMNS = Refusal(
    "The table has no such key",
    "Name columns of the table's schema, or leave `key_columns` out where it has one key set.",
)
UNKNOWN_COLUMNS = Refusal(
    "The table has no such column",
    "Select columns of the table's schema (in the past, the snapshot's), by their dotted names.",
)
UNKNOWN_SNAPSHOT = Refusal(
    "The table has no such snapshot or branch",
    "Name a snapshot that has not expired, or a branch or tag that is there.",
)
ANSWER_TOO_LARGE = Refusal("The answer is too large", "Ask for fewer keys at once, or select fewer columns.")
NOT_COVERED = Refusal(
    "The index does not cover enough of the table",
    "Run a job of kind `index`, or wait for the next one, and ask again.",
)
TABLE_CHANGED = Refusal("The table changed in the meantime", "Ask again.")
BUSY = Refusal(
    "The lookup servers are busy",
    "Ask again in some seconds; if it goes on, start more lookup servers.",
)
OUT_OF_TIME = Refusal(
    "The answer took too long",
    "Ask again, since what was read so far is kept; or ask for fewer keys, or run a job of kind `index`.",
)
STORE_UNAVAILABLE = Refusal(
    "A store does not answer",
    "Ask again in some seconds; if it goes on, look at the store, and at what lookup servers may read.",
)

# Titles, where what to do is not the same for a request and for a job.
NO_BRANCH = "The table has no such branch"
NO_TABLE = "The catalog has no such table"
CATALOG_REDIRECTS = "The catalog redirects to another host"
CATALOG_ANSWER_TOO_LARGE = "The catalog's answer is too large"
CATALOG_TOO_SLOW = "The catalog took too long"
