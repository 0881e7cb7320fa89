"""What is shown of answers that have too much for a screen: `-o json` has the rest."""

from collections.abc import Callable, Iterator
from typing import Any

from service.command.columns import shown
from telemetry.plurals import counted

Json = dict[str, Any]
_OUTCOMES = ("happened", "present", "edited")


def as_shown(operation_id: str, answer: Json) -> tuple[Json, list[Json]]:
    """The fields that make a tree, and the rows of the table below it, whose columns the operation tells."""
    view = _VIEWS.get(operation_id)
    return view(answer) if view else (answer, [])


def _policy(answer: Json) -> tuple[Json, list[Json]]:
    rows = [
        {"setting": name, "value": _setting(name, told["value"]), **told["source"]}
        for name, told in answer["values"].items()
    ]
    return {name: answer[name] for name in ("table_id", "policy")}, rows


def _setting(name: str, value: Any) -> str | None:
    own = name.rpartition(".")[2]
    return counted(len(value), "window") if value and own == "windows" else shown(own, value)


def _replay(answer: Json) -> tuple[Json, list[Json]]:
    outcomes = [answer[name] for name in _OUTCOMES]
    over_time = ", ".join(f"{len(outcomes[0][name]):,} {name}" for name in ("intervals", "reads"))
    told = {name: value for name, value in answer.items() if name not in (*_OUTCOMES, "off")}
    figures = [dict(_figures(one)) for one in outcomes]
    names = dict.fromkeys(name for each in figures for name in each)
    rows = [
        {
            "figure": name.replace("_", " "),
            **{
                outcome: _figure(name, each.get(name))
                for outcome, each in zip(_OUTCOMES, figures, strict=True)
            },
            "off": f"{answer['off'][name]:.2f}x" if name in answer["off"] else None,
        }
        for name in names
    ]
    return {**told, "over_time": f"{over_time}: -o json shows them"}, rows


def _figures(outcome: Json) -> Iterator[tuple[str, Any]]:
    """Those of all jobs before those of each kind."""
    yield "jobs", sum(one["jobs"] for one in outcome["jobs"])
    yield from ((name, value) for name, value in outcome.items() if not isinstance(value, list))
    for one in outcome["jobs"]:
        yield from ((f"{one['kind']}_{name}", one[name]) for name in one if name != "kind")


def _figure(name: str, value: Any) -> str | None:
    return shown(name, round(value, 2) if isinstance(value, float) else value)


_VIEWS: dict[str, Callable[[Json], tuple[Json, list[Json]]]] = {
    "get_table_policy": _policy,
    "replay_table_policy": _replay,
}
