"""`make reference`: writes the pages of docs/ on settings, commands and metrics, from the program itself."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sqlmodel import SQLModel

from service.command.main import app
from service.command.operations import load_document
from service.db.database import Database
from service.lookups.metrics import LookupMetrics
from service.metrics import render_metrics
from service.settings import Settings
from worker.agent.main import WorkerSettings
from worker.lookup_server.main import LookupSettings
from worker.spark.jars import SparkSettings

DOCS = Path(__file__).parents[1] / "docs"
SETTINGS: tuple[type[BaseModel], ...] = (Settings, WorkerSettings, SparkSettings, LookupSettings)
_OF_THE_MACHINE = {"worker_name": "the host's name"}
"""Defaults that differ from machine to machine."""

_SETTINGS = """\
# Settings

<!-- Written by `make reference`. -->

All settings are environment variables. `icestream up` and `icestream serve` read those of the service,
`icestream worker` those of a worker. If a setting is not valid, nothing starts, and an error names it.

## The service

{service}

[security.md](security.md#what-a-catalog-may-reach) tells what places, hosts and secrets are.
[policies.md](policies.md) has what is set for each table.

## Workers

{worker}

## Lookup servers

`icestream lookup` reads these.

{lookup}

The [command line](cli.md) finds the service by `ICESTREAM_URL` and `ICESTREAM_API_KEY` too.

## Variables of others

| variable | of | meaning |
|---|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT` | both | Where traces go: [operations.md](operations.md#traces). |
| `REQUESTS_CA_BUNDLE`, or else `CURL_CA_BUNDLE` | both | \
The authorities to trust for REST catalogs and webhooks. |
| `SPARK_CONF_DIR`, `PYSPARK_PYTHON`, `HADOOP_CONF_DIR` | workers | As Spark has them: \
[deployment.md](deployment.md#spark-clusters). |
"""


_COMMANDS = """\
# Command line

<!-- Written by `make reference`. -->

    icestream up               # the service, its pages, a worker and a lookup server, on this machine
    icestream serve            # the service alone
    icestream worker           # a worker, on any Spark master
    icestream login            # keeps the address of a service and a key for it
    icestream status           # is all well, what is pending, what is wrong, and what to do
    icestream top              # the tables with most pending, running jobs and workers, redrawn
    icestream tables list --status blocked

All that the API does is a command. Where the service is and who calls, `icestream login URL` asks once: it
reads the key from the terminal or from standard input, sees whether the service knows it, and keeps both in
`~/.config/icestream/login.json`, which nobody else may read; `icestream logout` removes that. `--url` goes
before `ICESTREAM_URL`, and that before the file; without any, it is `http://127.0.0.1:8000`. The key in
`ICESTREAM_API_KEY` goes before the one in the file, which is told to no other address than its own.

- `--help` after any of them tells its options. `icestream --install-completion` completes them in bash,
  zsh and fish, with the names of tables, catalogs, policies, webhooks, senders and keys that the service
  knows, and of tables that can be enrolled.
- A table is its name with its catalog, `lake.shop.orders`, or `shop.orders` where that is clear, or its id.
  A job is its id, or the name of its table: the newest job. A webhook, a sender or a key is its id
  or its name, a standing pattern its id or what it matches.
- What can't be undone asks before it is done or retried, on a terminal, as the pages do, and so does what
  stops or replaces something for many tables. Elsewhere it does nothing without `--yes`.
- An empty word (`--policy ""`) is none where there may be none.
- `-o` says how an answer is printed. `table` is for people: a line for each item, as wide as the terminal,
  and why it is as it is; of one item, a tree. `wide` has more columns, and cuts nothing off. `json` and
  `yaml` are for programs: the answer as the API gives it. In a pipe nothing is cut off either way.
- What tables, catalogs and workers have named is shown without characters that steer a terminal.
- A change is refused if somebody else changed the same thing a moment before.
- The exit code is 0 if the service did what was asked, 1 if it did not, and 2 if the command was wrong.
  `status` ends with 1 if anything needs a person, or if the service can't be reached.
  `jobs wait` ends with 1 unless the job succeeded, and its last line says what the job did not do.
  A service that is started anew meanwhile is waited for, up to ten minutes, and `jobs wait` says so;
  `jobs follow-events` goes on after the last event.

## Programs

{programs}

## What the service does

{calls}
"""

_METRICS = """\
# Metrics

<!-- Written by `make reference`. -->

`/metrics` of the service is for Prometheus. It needs no key and tells no names: all figures are sums over all
tables, jobs and workers, read at each scrape, and each replica tells the same; only lookups are counted by
each replica, since it started. What is not called otherwise is a gauge. All series are there from the start,
as zeros.

{metrics}

The chart's rules and dashboard ask for these; [operations.md](operations.md#alerts) says what to do at each
alert. An autoscaler follows `icestream_workers_needed`. What happens to a single table is in the API
(`GET /api/v1/tables/{{table_id}}/health`) and in [webhooks](webhooks.md).
"""


def render() -> dict[str, str]:
    """Name -> the page as it is checked in."""
    programs, calls = _commands()
    return {
        "settings.md": _SETTINGS.format(
            service=_settings(SETTINGS[:1]), worker=_settings(SETTINGS[1:3]), lookup=_settings(SETTINGS[3:])
        ),
        "cli.md": _COMMANDS.format(programs=programs, calls=calls),
        "metrics.md": _METRICS.format(metrics=_metrics()),
    }


def _settings(classes: Iterable[type[BaseModel]]) -> str:
    rows = [_setting(name, field) for each in classes for name, field in each.model_fields.items()]
    return _table("setting | default | meaning", rows)


def _setting(name: str, field: FieldInfo) -> tuple[str, ...]:
    assert field.description, f"the setting {name} has no docstring"
    return f"`ICESTREAM_{name.upper()}`", _default(name, field), field.description


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default: Any = field.default
    if default in ("", (), {}) or default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return _OF_THE_MACHINE.get(name, f"`{default}`")


def _commands() -> tuple[str, str]:
    """Those that are programs of their own, and those that call the service."""
    found = list(_commands_of(typer.main.get_command(app)))
    groups = tuple(f"`{one['name']} " for one in load_document()["tags"])
    programs = [row for row in found if not row[0].startswith(groups)]
    return (
        _table("command | what it does", programs),
        _table("command | what it does", (row for row in found if row not in programs)),
    )


def _commands_of(group: Any, above: str = "") -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands_of(command, f"{name} ")
        else:
            arguments = [
                (one.metavar or one.name.upper())
                for one in command.params
                if one.param_type_name == "argument"
            ]
            first, *_ = re.split(r"\n\n", command.help)
            yield f"`{' '.join([above + name, *arguments])}`", first


def _metrics() -> str:
    database = Database("sqlite://")
    SQLModel.metadata.create_all(database.engine)
    with database.read() as session:
        text = render_metrics(session, Settings(), LookupMetrics()).decode()
    database.dispose()
    families = text_string_to_metric_families(text)
    return _table("metric | labels | meaning", map(_metric, families))


def _metric(family: Any) -> tuple[str, ...]:
    values: dict[str, list[str]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le":
                values.setdefault(label, []).append(f"`{value}`")
    labels = "; ".join(f"`{label}`: {', '.join(those)}" for label, those in values.items())
    name = f"{family.name}_total" if family.type == "counter" else family.name
    kind = "" if family.type == "gauge" else f" A {family.type}."
    return f"`{name}`", labels, family.documentation + kind


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head.split(" | "), ["---"] * len(head.split(" | ")), *rows]
    lines = ["| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in cells]
    return "\n".join(line.replace("|  |", "| |") for line in lines)


if __name__ == "__main__":
    for name, text in render().items():
        (DOCS / name).write_text(text)
