"""Every call of the HTTP API as a command (`icestream tables list`), made from the OpenAPI document.

So the command line knows whatever the API does, with its words. It needs neither FastAPI nor a database, only
ICESTREAM_URL and ICESTREAM_API_KEY.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.command.completion import names_of, tables_to_enroll
from service.command.operations import Field, Operation, Output, argument, load_document, operations
from service.confirmations import may_ask

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How it is printed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.", show_default=False)]
_PANEL = "What the service does"
_TABLE_TO_ENROL = Annotated[
    str | None,
    argument("TABLE", "Its name with the catalog before it, or without beside --catalog.", tables_to_enroll),
]
_JOB = argument("JOB", "Id of a job, or name of a table: its newest job.", names_of("/tables"))
_TABLE = argument("TABLE", "Name or id of a table.", names_of("/tables"))


def add_commands(app: typer.Typer) -> None:
    """A group of commands for each tag of the document."""
    groups: dict[str, typer.Typer] = {}
    document = load_document()
    descriptions = {tag["name"]: tag["description"] for tag in document["tags"]}
    for operation in operations(document):
        if operation.group not in groups:
            groups[operation.group] = typer.Typer(no_args_is_help=True)
            words = descriptions[operation.group]
            app.add_typer(
                groups[operation.group],
                name=operation.group,
                help=words,
                rich_help_panel=_PANEL,
            )
        groups[operation.group].command(operation.name, help=operation.description)(_command(operation))
    groups["jobs"].command("wait")(wait)
    groups["tables"].command("lookup")(look_up)


def _command(operation: Operation) -> Callable[..., None]:
    def call(**given: Any) -> None:
        from service.command import calls as client

        client.call(operation, given, given.pop("output", Output.TABLE), is_sure=given.pop("yes", False))

    parameters = [
        _parameter(
            field.python_name,
            field.annotation(),
            inspect.Parameter.empty if field.is_required and not _is_in_name(operation, field) else None,
        )
        for field in operation.fields
    ]
    if operation.id == "enroll_table":
        parameters.append(_parameter("table", _TABLE_TO_ENROL, None))
    if may_ask(operation.id):
        parameters.append(_parameter("yes", Yes, False))
    if not operation.is_stream:
        parameters.append(_parameter("output", OutputOption, Output.TABLE))
    parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_in_name(operation: Operation, field: Field) -> bool:
    """Whether the name of a table that is to be enrolled says it."""
    return operation.id == "enroll_table" and field.name in ("catalog", "identifier")


def wait(
    job_id: Annotated[str, _JOB],
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait until a job has ended, and show it. Ends with 1 unless it succeeded."""
    from service.command import calls as client

    client.wait(job_id, output)


def look_up(
    table: Annotated[str, _TABLE],
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUES",
            help="column=value, with commas between columns, or a JSON object; for each key.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Keys from a file: CSV with a header, or a JSON object in each line; - is standard input.",
            exists=True,
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    select: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to show; for each one.")
    ] = None,
    key_column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the key; for each one."),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="A branch or tag.", show_default=False)
    ] = None,
    snapshot_id: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="An older snapshot, instead of a branch.", show_default=False),
    ] = None,
    max_staleness_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How old the look at the catalog may be.", min=0, max=3_600),
    ] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell where the rows of keys are, whether they are live, and what they hold."""
    from service.command import lookup

    asked = {
        "select": select or None,
        "key_columns": key_column or None,
        "branch": branch,
        "snapshot_id": snapshot_id,
        "max_staleness_seconds": max_staleness_seconds,
    }
    lookup.look_up(table, key or [], file, asked, output)
