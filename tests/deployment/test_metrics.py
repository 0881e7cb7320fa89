"""What alerts, dashboard and autoscaler ask for is what the service tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlmodel import SQLModel

from service.db.database import Database
from service.lookups.metrics import LookupMetrics
from service.metrics import render_metrics
from service.settings import Settings
from tests.deployment.chart import Manifest, named, of_kind, render

pytestmark = pytest.mark.integration

RUNBOOK = Path(__file__).parents[2] / "docs" / "operations.md"
ADDED_BY_PROMETHEUS = {"namespace", "service"}
"""Labels that a scrape by a ServiceMonitor adds."""


@pytest.fixture(scope="module")
def told() -> dict[str, list[dict[str, str]]]:
    """Metric -> the labels of each of its series, of a service without any table."""
    database = Database("sqlite://")
    SQLModel.metadata.create_all(database.engine)
    with database.read() as session:
        text = render_metrics(session, Settings(), LookupMetrics()).decode()
    families = list(text_string_to_metric_families(text))
    database.dispose()
    found: dict[str, list[dict[str, str]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


def selectors(node: Any) -> Iterator[Any]:
    """The vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "args"):
        below = getattr(node, name, None)
        for one in below if isinstance(below, list) else [below]:
            if one is not None and not isinstance(one, str):
                yield from selectors(one)


def check(expression: str, told: dict[str, list[dict[str, str]]]) -> None:
    """Raises if it can't be parsed, or chooses what no scrape has."""
    found = list(selectors(promql_parser.parse(expression)))
    assert found, expression
    for selector in found:
        assert selector.name in told, f"{selector.name} of {expression} is told by nobody"
        wanted = {one.name: one.value for one in selector.matchers.matchers}
        wanted = {name: value for name, value in wanted.items() if name not in ADDED_BY_PROMETHEUS}
        assert any(wanted.items() <= labels.items() for labels in told[selector.name]), expression


def test_alerts_ask_for_what_is_told(told: dict[str, list[dict[str, str]]]) -> None:
    (rule,) = of_kind(render("production"), "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert len(alerts) == 12
    for alert in alerts:
        check(alert["expr"], told)
        assert 'namespace="data", service="r-icestream"' in alert["expr"]
        assert {"summary", "description"} == set(alert["annotations"])
        assert alert["labels"]["severity"] in ("critical", "warning")
    by_name = {alert["alert"]: alert for alert in alerts}
    assert set(by_name) == set(re.findall(r"^### (Icestream\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    for status in ("Blocked", "Unknown"):
        alert = by_name[f"IcestreamTables{status}"]
        assert f'status="{status.lower()}"' in alert["expr"]
        assert "{{ $value }}" in alert["annotations"]["summary"]
    overdue = by_name["IcestreamMaintenanceOverdue"]["expr"]
    assert re.fullmatch(r"max\(icestream_oldest_due_maintenance_age_seconds{.*}\) > 172800", overdue)
    dear = by_name["IcestreamReadsDear"]["expr"]
    now, fresh = dear.split(" > 3 * ")
    assert "icestream_read_seconds{" in now
    overhead = r"max\(icestream_read_overhead_seconds{.*}\)"
    assert re.fullmatch(rf"\(max\(icestream_read_seconds{{.*}}\) - {overhead}\)", fresh)
    # Of rows that are removed as they grow old, a difference of counts would hide as many new ones.
    for failed in ("JobsFail", "WebhookDeliveriesDead"):
        expression = by_name[f"Icestream{failed}"]["expr"]
        assert re.fullmatch(r"time\(\) - max\(\w+_last_failure_timestamp_seconds{.*}\) < 3600", expression)
    assert not alerts_about_lookups(render(metrics={"prometheusRule": {"enabled": True}}))


def alerts_about_lookups(manifests: list[Manifest]) -> list[str]:
    (rule,) = of_kind(manifests, "PrometheusRule")
    alerts = [alert["alert"] for group in rule["spec"]["groups"] for alert in group["rules"]]
    return [name for name in alerts if "Lookup" in name]


def test_the_dashboard_asks_for_what_is_told(told: dict[str, list[dict[str, str]]]) -> None:
    data = named(render("production"), "ConfigMap", "dashboard")["data"]["icestream.json"]
    dashboard = json.loads(data)
    labels = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            check(re.sub(r"\$\w+", "x", expression), told)
            labels |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for label in re.findall(r"by \((?!le\))(\w+)\)", expression):
                assert f"{{{{{label}}}}}" in target["legendFormat"]
    assert labels == {"status", "kind"}
    shown = {name for name in told if name in data}
    assert shown == set(told)


def test_panels_lie_beside_each_other() -> None:
    dashboard = json.loads(named(render("production"), "ConfigMap", "dashboard")["data"]["icestream.json"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_autoscaler_asks_for_what_is_told(told: dict[str, list[dict[str, str]]]) -> None:
    (plain,) = of_kind(render("production"), "ScaledObject")
    assert plain["spec"]["triggers"][0]["metadata"]["valueLocation"] in told
    address = {"autoscaling": {"enabled": True, "prometheusAddress": "http://p"}}
    (asking,) = of_kind(render(worker=address), "ScaledObject")
    check(asking["spec"]["triggers"][0]["metadata"]["query"], told)


def test_an_expression_that_asks_for_something_else_is_found(told: dict[str, list[dict[str, str]]]) -> None:
    for wrong in ("icestream_tablez", 'sum(icestream_tables{status="sick"})', "absent(icestream_jobs_total)"):
        with pytest.raises(AssertionError):
            check(wrong, told)
    check('max(icestream_tables{status="healthy"}) > 0 and icestream_workers_alive == 0', told)
