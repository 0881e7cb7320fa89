"""docs/benchmarks.md: each benchmark writes its own part of it, between two marks, and leaves the rest."""

import re
from enum import StrEnum
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


class Part(StrEnum):
    """What a benchmark writes."""

    INT64 = "int64"
    OTHER_KEYS = "other-keys"
    LOOKUPS = "lookups"
    WRITES = "writes"
    WRITES_ALONE = "writes-alone"
    PUBLISH = "publish"
    READER_COST = "reader-cost"
    READER_OVERHEAD = "reader-overhead"
    MAINTENANCE = "maintenance"
    MAINTAINED_READS = "maintained-reads"
    DUPLICATES = "duplicates"
    OBJECT_STORES = "object-stores"
    OBJECT_STORES_FARTHER = "object-stores-farther"
    VECTOR_FILES = "vector-files"
    QUEUE = "queue"
    QUEUE_HTTP = "queue-http"
    POLLING = "polling"
    PAGES = "pages"
    FLEET = "fleet"
    FLEET_IN_STORE = "fleet-in-store"
    FLEET_WORKERS = "fleet-workers"

    @property
    def heading(self) -> str:
        return {
            Part.INT64: "int64 keys",
            Part.OTHER_KEYS: "UUID and composite keys",
            Part.LOOKUPS: "Lookups over HTTP",
            Part.WRITES: "Writes by key",
            Part.WRITES_ALONE: "Writes by key, twice the rows",
            Part.PUBLISH: "Publication of staging branches",
            Part.READER_COST: "What a read costs",
            Part.READER_OVERHEAD: "What deletes and small files cost a read",
            Part.MAINTENANCE: "Policies over weeks",
            Part.MAINTAINED_READS: "Reads after maintenance",
            Part.DUPLICATES: "Duplicates",
            Part.OBJECT_STORES: "Object stores",
            Part.OBJECT_STORES_FARTHER: "Object stores farther away",
            Part.VECTOR_FILES: "Vectors in shared files",
            Part.QUEUE: "Queue",
            Part.QUEUE_HTTP: "Queue over HTTP",
            Part.POLLING: "Polling",
            Part.PAGES: "Pages",
            Part.FLEET: "A fleet",
            Part.FLEET_IN_STORE: "A fleet in a store far away",
            Part.FLEET_WORKERS: "More workers",
        }[self]


def write_part(part: Part, report: str, page: Path = PAGE) -> None:
    """report: in Markdown, its first line the title. On the page all its headings are one level lower."""
    begin, end = _marks(part)
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    text = re.sub(r"^#", "##", report.partition("\n")[2], flags=re.MULTILINE)
    page.write_text(f"{before}{begin}\n## {part.heading}\n{text.rstrip()}\n{end}{after}")


def write_report(part: Part, report: str, into: Path | None) -> Path:
    """Into a file of its own, if one is given, or into the page as its part; where it went."""
    if into is None:
        write_part(part, report)
    else:
        into.write_text(report)
    return into or PAGE


def read_part(part: Part, page: Path = PAGE) -> str:
    begin, end = _marks(part)
    return page.read_text().split(begin)[1].split(end)[0]


def _marks(part: Part) -> tuple[str, str]:
    return f"<!-- {part}: written by a benchmark -->", f"<!-- end of {part} -->"
