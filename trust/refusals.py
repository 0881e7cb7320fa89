"""How a question about a table's rows is refused: by lookup servers and Spark's tasks, and by the service,
which passes on what they say. What is the case stands in each one's detail."""

from typing import NamedTuple


class Refusal(NamedTuple):
    title: str
    remedy: str


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
