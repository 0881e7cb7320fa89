"""The command line: starts the programs, and calls the API.

Each command imports what it needs itself: the worker's image has no FastAPI, and `--help` waits for nothing.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from service import __version__
from service.command import api_commands
from service.command.completion import names_of
from service.command.operations import Output, argument

if TYPE_CHECKING:
    from service.command.up import Demo
    from service.settings import Settings

app = typer.Typer(
    name="icestream",
    help="Replaces the equality deletes of Apache Iceberg tables by deletion vectors.",
    no_args_is_help=True,
    # Descriptions of the API have brackets, which Rich would take for its own markup.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default="127.0.0.1")
]
Port = Annotated[
    int | None, typer.Option(metavar="NUMBER", help="Port to listen on; 0 takes any.", show_default="8000")
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIRECTORY", help="Where everything is kept.", show_default="./icestream-data"),
]
DownTo = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="An older migration to go back to; what it does not know is lost."),
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")]


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"icestream {__version__}")
        raise typer.Exit


@app.callback()
def choose(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the service; without it, ICESTREAM_URL, and then the one that `login` has kept.",
            show_default="http://127.0.0.1:8000",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Show the version, and end."),
    ] = False,
) -> None:
    if url is not None:
        from service.command.saved_login import ask_at

        ask_at(url)


@app.command()
def status(output: api_commands.OutputOption = Output.TABLE) -> None:
    """Tell whether all is well: what is pending, what is wrong, and what to do. Ends with 1 if not."""
    from service.command import watch

    watch.status(output)


@app.command()
def top(
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.5, max=3_600, help="Between two looks.")
    ] = 2,
) -> None:
    """Show the tables with most pending, running jobs and workers, redrawn until Ctrl-C."""
    from service.command import watch

    watch.top(interval)


@app.command()
def login(
    url: Annotated[
        str | None,
        argument("URL", "Address of the service.", show_default="that of --url"),
    ] = None,
) -> None:
    """Keep the address of a service and a key for it, so that commands need neither.

    The key is asked for, or read from standard input where that is no terminal.
    """
    from service.command.calls import log_in

    log_in(url)


@app.command()
def logout() -> None:
    """Forget the address and the key that `login` has kept on this machine. The key stays good."""
    from service.command.calls import log_out

    log_out()


@app.command()
def up(host: Host = None, port: Port = None, data_dir: DataDir = None, browser: Browser = True) -> None:
    """Start everything on this machine: the service with its page, one worker and a lookup server."""
    _run_up(_settings(host=host, port=port, data_dir=data_dir), browser=browser, demo=None)


@app.command()
def demo(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    browser: Browser = True,
    exits: Annotated[
        bool | None,
        typer.Option("--exit/--stay", help="End after the report.", show_default="stay, in a terminal"),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=10_000, help="Rows of the sample table.", show_default="3000000"),
    ] = None,
) -> None:
    """The same as `up`, with a sample table and a stream of upserts and deletes into it."""
    from service.command.up import Demo

    interactive = sys.stdout.isatty()
    exits = not interactive if exits is None else exits
    # Whoever watches should not wait for the poller.
    poll_interval_seconds = None if "ICESTREAM_POLL_INTERVAL_SECONDS" in os.environ else 2
    arguments = [*(["--once"] if exits else []), *(["--rows", str(rows)] if rows else [])]
    _run_up(
        _settings(host=host, port=port, data_dir=data_dir, poll_interval_seconds=poll_interval_seconds),
        browser=browser and interactive,
        demo=Demo(exits, tuple(arguments)),
    )


@app.command()
def serve(host: Host = None, port: Port = None) -> None:
    """Start the service alone; its database must be migrated, and workers are started elsewhere."""
    from service.app import create_app
    from service.command.serving import run
    from service.db import private_files
    from service.db.database import Database

    settings = _settings(host=host, port=port)
    private_files.tighten_data_directory(settings.data_dir)
    with _one_sentence():
        database = Database(settings.database_url)
        database.check_start()
        database.dispose()
        service = create_app(settings)
    run(service, service.state.stopping, settings)


@app.command()
def login_link(
    data_dir: DataDir = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="How your browser reaches the service.",
            show_default="as this machine does",
        ),
    ] = None,
) -> None:
    """Print a link that signs a browser in once, within ten minutes; on the machine of the service."""
    from service.command.login_link import make_link

    settings = _settings(data_dir=data_dir)
    with _one_sentence():
        typer.echo(make_link(settings, url))


@app.command()
def worker() -> None:
    """Start a worker; ICESTREAM_URL and ICESTREAM_API_KEY name the service."""
    os.execv(sys.executable, [sys.executable, "-m", "worker.agent.main"])  # noqa: S606


@app.command()
def lookup() -> None:
    """Start a lookup server, which needs no JVM; ICESTREAM_LOOKUP_TOKEN is what the service shows it."""
    os.execv(sys.executable, [sys.executable, "-m", "worker.lookup_server.main"])  # noqa: S606


@app.command()
def accept(
    catalog: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="By the name that it is registered with.",
            autocompletion=names_of("/catalogs"),
        ),
    ],
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Where the tables go; it is made if it is not there.")
    ] = "icestream_acceptance",
    location: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="A prefix for the tables' files, such as s3://lake/acceptance.",
            show_default="where the catalog puts them",
        ),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write the report to this file, which ends with .json or .md; may be repeated.",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the tables there.")] = False,
    yes: api_commands.Yes = False,
    clean_up: Annotated[
        bool,
        typer.Option("--clean-up", help="Remove what earlier runs have left in the namespace, and end."),
    ] = False,
    of_run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="With --clean-up: what this run has left, however young it is; may be repeated.",
            show_default="all that began two hours ago or earlier",
        ),
    ] = None,
) -> None:
    """Try everything on tables of its own in your catalog and store, remove them, and report.

    Needs what a worker needs: Java, and whatever the catalog's record refers to. Ends with 0 if all passed,
    1 if something failed, 2 if nothing began, 3 if nothing failed and something that could be tried was not,
    and 4 if it was stopped.
    """
    from service.command.accept import run

    run(
        catalog,
        namespace,
        location=location,
        reports=report or [],
        runs=of_run or [],
        flags={"keep": keep, "yes": yes, "clean-up": clean_up},
    )


@app.command()
def migrate(down_to: DownTo = None, yes: api_commands.Yes = False) -> None:
    """Bring the control database to this version's schema, or back to an older one."""
    from service.app import prepare
    from service.command.calls import make_sure
    from service.confirmations import MIGRATING_BACK
    from service.db import database, private_files

    settings = _settings()
    if down_to is not None and not yes:
        make_sure(f"migrate --down-to {down_to}", MIGRATING_BACK)
    private_files.tighten_data_directory(settings.data_dir)
    with _one_sentence():
        if down_to is None:
            prepare(settings)
        else:
            database.migrate(settings.database_url, down_to)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document, which describes the API to programs."""
    from service.command.openapi import render

    typer.echo(render(), nl=False)


@app.command()
def export_index(
    metadata: Annotated[str, argument("METADATA", "Location of the table's metadata file.")],
    index_warehouse: Annotated[str, typer.Option(metavar="LOCATION", help="Where the indexes lie.")],
    key_column: Annotated[list[str], typer.Option(metavar="COLUMN", help="One of the key; once for each.")],
    to: Annotated[str, typer.Option(metavar="LOCATION", help="Where the files go.")],
    branch: Annotated[str, typer.Option(metavar="NAME", help="Whose index it is.")] = "main",
) -> None:
    """Experimental: write an index in the form of Iceberg's draft for secondary indexes (index-format.md)."""
    options = {"--metadata": metadata, "--index-warehouse": index_warehouse, "--to": to, "--branch": branch}
    words = [f"{name}={value}" for name, value in options.items()]
    words += [f"--key-column={name}" for name in key_column]
    os.execv(sys.executable, [sys.executable, "-m", "worker.query.export", *words])  # noqa: S606


@app.command()
def conformance(
    cases: Annotated[
        list[str] | None,
        argument("CASES", "Names of cases, or patterns as `key-of-*`; else all."),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A command that prints the rows of the table at `{metadata}`, a JSON object a line; or one"
            " of pyiceberg, duckdb, spark and flink.",
        ),
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="Tell the cases and their rules.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Keep the tables in this one, which must be empty."),
    ] = None,
    location: Annotated[
        str | None,
        typer.Option(metavar="URI", help="What metadata calls that directory.", show_default="its file: URI"),
    ] = None,
    format_version: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=2, max=3, help="Of the tables.", show_default="2 and 3"),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=3_600, help="For a table.")] = 60,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="For the outcomes, in JSON.")] = None,
) -> None:
    """Run any reader over Iceberg tables with deletes of every kind. Ends with 1 unless it passes all."""
    try:
        from conformance import command
    except ModuleNotFoundError as error:
        sys.exit(f"The tables are written with {error.name}: pip install 'icestream[conformance]'.")
    try:
        code = command.conformance(
            cases or [],
            reader=reader,
            lists=lists,
            directory=write,
            location=location,
            version=format_version,
            timeout_seconds=timeout,
            report_to=report,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        sys.exit(_sentence(f"The tables can't be written: {error}"))
    raise typer.Exit(code)


def _run_up(settings: "Settings", *, browser: bool, demo: "Demo | None") -> NoReturn:
    from service.command.up import run

    with _one_sentence():
        raise SystemExit(run(settings, browser=browser, demo=demo))


def _settings(**given: object) -> "Settings":
    """From the environment, with what the command line gives on top."""
    from pydantic import ValidationError

    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            sys.exit(f"{reason}.")
        setting = "_".join(("ICESTREAM", *(str(part).upper() for part in first["loc"])))
        sys.exit(f"{setting} is not valid: {reason}.")


@contextmanager
def _one_sentence() -> Iterator[None]:
    """What stands in the way of starting goes to standard error, without a traceback."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.errors import DatabaseError, StartError, is_database_trouble

    try:
        yield
    except StartError as error:
        sys.exit(_sentence(str(error)))
    except SQLAlchemyError as error:
        if not is_database_trouble(error):
            raise
        sys.exit(_sentence(f"The control database cannot be used: {DatabaseError(error)}"))


def _sentence(words: str) -> str:
    """On one line, however many the words of others have."""
    return f"{' '.join(words.split()).rstrip('.')}."


api_commands.add_commands(app)


def main() -> None:
    app()
