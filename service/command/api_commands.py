"""Every call of the HTTP API as a command (`icestream tables list`), made from the OpenAPI document.

So the command line knows whatever the API does, with its words. It needs neither FastAPI nor a database, only
ICESTREAM_URL and ICESTREAM_API_KEY.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.command.operations import Operation, Output, load_document, operations


def add_commands(app: typer.Typer) -> None:
    """A group of commands for each tag of the document."""
    groups: dict[str, typer.Typer] = {}
    document = load_document()
    descriptions = {tag["name"]: tag["description"] for tag in document["tags"]}
    for operation in operations(document):
        if operation.group not in groups:
            groups[operation.group] = typer.Typer(no_args_is_help=True)
            words = descriptions[operation.group]
            app.add_typer(groups[operation.group], name=operation.group, help=words, rich_help_panel="API")
        groups[operation.group].command(operation.name, help=operation.description)(_command(operation))
    groups["jobs"].command("wait")(wait)
    groups["tables"].command("lookup")(look_up)


def _command(operation: Operation) -> Callable[..., None]:
    def call(**given: Any) -> None:
        from service.command import calls as client

        client.call(operation, given, given.pop("output"))

    parameters = [
        inspect.Parameter(
            field.python_name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required else None,
            annotation=field.annotation(),
        )
        for field in sorted(operation.fields, key=lambda field: not field.is_required)
    ]
    shown = Annotated[Output, typer.Option("--output", "-o", help="How the answer is printed.")]
    parameters.append(
        inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=Output.TABLE, annotation=shown)
    )
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def wait(
    job_id: Annotated[str, typer.Argument(help="Id of a job.", show_default=False)],
    output: Annotated[Output, typer.Option("--output", "-o", help="How the job is printed.")] = Output.TABLE,
) -> None:
    """Wait until a job has ended, and show it. Ends with 1 unless it succeeded."""
    from service.command import calls as client

    client.wait(job_id, output)


def look_up(
    table: Annotated[str, typer.Argument(help="Name or id of a table.", show_default=False)],
    key: Annotated[
        list[str] | None,
        typer.Option(help="column=value, with commas between columns, or a JSON object; for each key."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Keys from a file: CSV with a header, or a JSON object in each line; - is standard input.",
            exists=True,
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    select: Annotated[list[str] | None, typer.Option(help="A column to show; for each one.")] = None,
    key_column: Annotated[
        list[str] | None,
        typer.Option(help="A column of the key; for each one."),
    ] = None,
    branch: Annotated[str | None, typer.Option(help="A branch or tag.", show_default=False)] = None,
    snapshot_id: Annotated[
        int | None, typer.Option(help="An older snapshot, instead of a branch.", show_default=False)
    ] = None,
    max_staleness_seconds: Annotated[
        float, typer.Option(help="How old the look at the catalog may be.", min=0, max=3_600)
    ] = 1,
    output: Annotated[Output, typer.Option("--output", "-o", help="How rows are printed.")] = Output.TABLE,
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
