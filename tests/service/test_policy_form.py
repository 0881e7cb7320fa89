"""Settings of a policy, written into a form and read back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.schedules import Window
from service.ui.policy_form import read_setting, sections, write_setting

INHERITED = {name: [value] for name, value in BUILT_IN[STANDARD][1].values().items()}
SETTINGS = [setting for _, settings in sections(INHERITED) for setting in settings]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_policy_reads_back_as_it_was_written(name: str) -> None:
    values = BUILT_IN[name][1].model_dump(mode="json", exclude_none=True)
    written = {
        (section, field): write_setting(f"{section}.{field}", value)
        for section, part in values.items()
        for field, value in part.items()
    }
    assert all(written.values())
    read: dict[str, Any] = {section: {} for section in values}
    for (section, field), text in written.items():
        read[section][field] = read_setting(f"{section}.{field}", text)
    assert type(BUILT_IN[name][1]).model_validate(read) == BUILT_IN[name][1]


@given(st.integers(0, 10**15))
def test_any_amount_reads_back(value: int) -> None:
    for name in ("convert.age_seconds", "convert.bytes", "convert.deletes", "budget.table_bytes_per_day"):
        assert read_setting(name, write_setting(name, value)) == value


@given(st.floats(0, 1, exclude_min=True))
def test_any_share_reads_back(value: float) -> None:
    assert read_setting("compact.dead_ratio", write_setting("compact.dead_ratio", value)) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("convert.age_seconds", "1.5 h", 5400),
        ("convert.bytes", "64MB", 64_000_000),
        ("convert.deletes", "1,000,000", 1_000_000),
        ("convert.deletes", "10 MB", "10 MB"),
        ("convert.age_seconds", "soon", "soon"),
        ("compact.dead_ratio", "30%", 0.3),
        ("index.cron", "none", ""),
        ("publish.from", "2026", "2026"),
        ("schedule.windows", "always", []),
        ("schedule.windows", "22:00-06:00", [{"start": "22:00", "end": "06:00"}]),
        ("schedule.windows", "at night", ["at night"]),
        ("schedule.priority", "-5", -5),
        ("convert.readers", "athena,  trino-475", ["athena", "trino-475"]),
        ("convert.readers", "none", []),
        ("index.enabled", " ", None),
    ],
)
def test_text_is_read_as_people_mean_it(name: str, text: str, value: object) -> None:
    assert read_setting(name, text) == value


def test_what_is_no_window_is_told_so_and_how_one_is_written() -> None:
    with pytest.raises(
        ValidationError, match="'at night' is no window with a start and an end, such as 22:00"
    ):
        Window.model_validate(read_setting("schedule.windows", "at night")[0])
