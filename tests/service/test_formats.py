"""How the pages write figures, and that every policy setting is told in words."""

import re
from pathlib import Path
from typing import Any

import pytest

from service.jobs.models import JobView
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.models import EffectivePolicy
from service.policies.settings import PolicySettings
from service.ui import formats
from service.ui.formats import size
from service.ui.job_results import Figure, figures_of

_NBSP = "\N{NO-BREAK SPACE}"


def test_every_policy_setting_has_words_of_its_own() -> None:
    settings = {
        f"{section}.{name}"
        for section, field in EffectivePolicy.model_fields.items()
        if isinstance(field.annotation, type)
        for name in (named.alias or name for name, named in field.annotation.model_fields.items())
    }
    assert "compact.dead_ratio" in settings
    assert settings == set(formats.POLICY_SETTINGS)
    assert {name.partition(".")[0] for name in settings} == set(formats.POLICY_SECTIONS)


def test_the_documentation_has_every_policy_setting() -> None:
    root = Path(formats.__file__).parents[2]
    policies = (root / "docs" / "policies.md").read_text()
    written = dict(re.findall(r"^\| `([a-z_.A-Z]+)` \| (.*?) \|", policies, re.MULTILINE))
    expected = {
        name: {True: "on", False: "off"}[value]
        if isinstance(value, bool)
        else value
        if isinstance(value, str)
        else f"{value:,}".removesuffix(".0")
        for name, value in BUILT_IN[STANDARD][1].values().items()
        if value not in ("", [], "UTC")
    }
    texts = {name for name, value in written.items() if value in ("none", "UTC")}
    assert {name: value for name, value in written.items() if name not in texts} == expected
    assert texts == set(formats.POLICY_SETTINGS) - set(expected)
    shown = re.findall(r"^ {4}(\{.*\})$", policies, re.MULTILINE)
    assert all(PolicySettings.model_validate_json(each).compact for each in shown)
    assert shown


def test_a_dry_run_tells_how_long_a_conversion_would_take() -> None:
    job: Any = JobView
    done = {"equality_delete_files_removed": 1, "bytes_read": 3_000_000, "bytes_written": 2000}
    foretold = figures_of(job.model_construct(result=done | {"estimated_seconds": 192.4}))
    assert foretold[0] == Figure(
        "Would take about", f"3{_NBSP}min 12{_NBSP}s", f"reading {size(3_000_000)}, writing {size(2000)}"
    )
    assert figures_of(job.model_construct(result=done)) == foretold[1:]
    by_history = done | {"estimate": {"seconds": 90.0, "jobs": 3, "off_by": 1.35}}
    assert figures_of(job.model_construct(result=by_history))[0] == Figure(
        "Would take about",
        f"1{_NBSP}min 30{_NBSP}s",
        "by the last 3 such jobs of this table; half of such estimates were off by 1.4 times at most",
    )


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (True, "index.enabled", "on"),
        (1_000_000, "convert.deletes", "1,000,000"),
        (0.5, "compact.dead_ratio", "50%"),
        (600.0, "compact.min_interval_seconds", f"10{_NBSP}min"),
    ],
)
def test_settings_are_written_with_their_unit(value: object, name: str, text: str) -> None:
    assert formats.setting(value, name) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (0.0042, "4.2 ms"),
        (0.042, "42 ms"),
        (0.35, "0.35 s"),
        (42, "42 s"),
        (192, "3 min 12 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds).replace(_NBSP, " ") == text


def test_times_within_a_sentence_are_times_for_the_script_too_and_the_rest_is_text() -> None:
    told = formats.sentence("waits until 2030-01-02 03:04:05 UTC, as <requested>")
    assert told == (f"Waits until {formats.moment('2030-01-02T03:04:05Z')}, as &lt;requested&gt;.")
    for text in ("Waits for a free worker.", "It names 2030-13-02 03:04:05 UTC."):
        assert formats.sentence(text) == text
    assert formats.sentence("attach `<standard>`") == "Attach <code>&lt;standard&gt;</code>."
    assert formats.sentence("s3://lake/m0.avro is damaged") == "s3://lake/m0.avro is damaged."


def test_names_break_after_dots_and_underscores_only() -> None:
    assert formats.breakable("sales.new_<b>") == "sales.<wbr>new_<wbr>&lt;b&gt;"


@pytest.mark.parametrize(
    ("size", "text"), [(None, "—"), (0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (59_800_000, "59.8 MB")]
)
def test_sizes_are_decimal(size: float | None, text: str) -> None:
    assert formats.size(size).replace(_NBSP, " ") == text
