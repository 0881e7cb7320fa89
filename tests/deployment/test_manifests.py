"""Manifests as Kubernetes and its operators read them: fields, references, and what may reach what."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.deployment.chart import (
    EXAMPLES,
    NEWEST_KUBERNETES,
    OLDEST_KUBERNETES,
    KubernetesError,
    Manifest,
    component,
    container,
    environment,
    named,
    of_kind,
    pods,
    render,
    validate,
)
from tests.thorough import first_always

pytestmark = pytest.mark.integration


def check(manifest: Manifest, kubernetes: str) -> None:
    """Raises if a field is unknown, missing or of another type."""
    # Not at the top: these models take whoever collects tests seconds.
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

    operators: dict[str, Any] = {one.__name__: one for one in (ScaledObject, ServiceMonitor, PrometheusRule)}
    model = operators.get(manifest["kind"])
    if model is None:
        validate(manifest, kubernetes)
        return
    read = json.loads(model.model_validate(manifest).model_dump_json(by_alias=True, exclude_unset=True))
    assert read == manifest


@pytest.mark.parametrize("example", EXAMPLES)
@first_always("kubernetes", [NEWEST_KUBERNETES, OLDEST_KUBERNETES])
def test_kubernetes_takes_every_manifest(example: str, kubernetes: str) -> None:
    manifests = render(example, kubernetes)
    for manifest in manifests:
        check(manifest, kubernetes)
        assert manifest["metadata"].get("namespace") is None
    for pod in pods(manifests):
        # Spark gives an executor its image.
        spec = pod["spec"] | {"containers": [{"image": "x"} | container(pod)]}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": spec}, kubernetes)


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject", "ServiceMonitor"])
def test_a_field_that_is_not_known_is_found(kind: str) -> None:
    manifest = of_kind(render("production"), kind)[0]
    manifest["spec"]["replicaz"] = 1
    with pytest.raises((AssertionError, KubernetesError)):
        check(manifest, NEWEST_KUBERNETES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_have_names_and_labels_of_their_own(example: str) -> None:
    manifests = render(example)
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    for one in manifests:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/instance"] == "r"


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_a_manifest_refers_to_is_there_or_the_users(example: str) -> None:
    manifests = render(example)
    accounts = {one["metadata"]["name"] for one in of_kind(manifests, "ServiceAccount")}
    configurations = {one["metadata"]["name"] for one in of_kind(manifests, "ConfigMap")}
    for pod in pods(manifests):
        assert pod["spec"].get("serviceAccountName") in accounts | {None}
        for volume in pod["spec"]["volumes"]:
            assert volume.get("configMap", {}).get("name") in configurations | {None}
    for one in of_kind(manifests, "Service"):
        (selected,) = (pod for pod in pods(manifests) if matches(one["spec"]["selector"], pod))
        assert component(selected) == component(one)
        for port in one["spec"]["ports"]:
            assert port["targetPort"] in [known["name"] for known in container(selected)["ports"]]
    service = named(manifests, "Service", "")
    for monitor in of_kind(manifests, "ServiceMonitor"):
        assert matches(monitor["spec"]["selector"]["matchLabels"], service)
        assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }
    worker = next(pod for pod in pods(manifests) if component(pod) == "worker")
    assert environment(worker)["ICESTREAM_URL"] == f"http://{service['metadata']['name']}:8000"


def matches(selector: dict[str, str], labelled: Manifest) -> bool:
    labels: dict[str, str] = labelled["metadata"]["labels"]
    return selector.items() <= labels.items()


def upgrades() -> list[tuple[str, str]]:
    return [(before, after) for before in EXAMPLES for after in EXAMPLES if before != after]


@pytest.mark.parametrize(("before", "after"), upgrades())
def test_an_upgrade_from_one_example_to_another_changes_nothing_immutable(before: str, after: str) -> None:
    """Kubernetes refuses such a change, and the release is stuck."""
    immutable: dict[str, Callable[[Manifest], Any]] = {
        "Deployment": lambda one: one["spec"]["selector"],
        "RoleBinding": lambda one: one["roleRef"],
        "Service": lambda one: one["spec"].get("clusterIP"),
    }
    old, new = (
        {(one["kind"], one["metadata"]["name"]): one for one in render(example)}
        for example in (before, after)
    )
    for key in old.keys() & new.keys():
        if key[0] in immutable:
            assert immutable[key[0]](old[key]) == immutable[key[0]](new[key])
    for kind, name in [("Deployment", "service"), ("Deployment", "worker"), ("Service", "")]:
        assert named(list(old.values()), kind, name)["metadata"]["name"] in [key[1] for key in new]
    # A job is immutable as a whole; this one is made anew each time.
    assert all("helm.sh/hook" in one["metadata"]["annotations"] for one in of_kind([*new.values()], "Job"))


def test_an_upgrade_to_a_new_version_keeps_selectors() -> None:
    for one in render("production"):
        if one["kind"] == "Deployment":
            selector = one["spec"]["selector"]["matchLabels"]
            assert not {"app.kubernetes.io/version", "helm.sh/chart"} & set(selector)


# Network policies: a small model of what Kubernetes does with them.


def may_connect(manifests: list[Manifest], source: str, target: str, port: int) -> bool:
    """Whether the policies let a component's pod reach another's, or `outside` (`inside` for a stranger)."""
    labels = {component(pod): pod["metadata"]["labels"] for pod in pods(manifests)}

    def chosen(selector: Manifest, name: str) -> bool:
        wanted = selector.get("matchLabels", {})
        return name in labels and wanted.items() <= labels[name].items()

    def allows(direction: str, peers: str, owner: str, other: str) -> bool:
        policies = [
            one["spec"]
            for one in of_kind(manifests, "NetworkPolicy")
            if direction.capitalize() in one["spec"]["policyTypes"]
            and chosen(one["spec"]["podSelector"], owner)
        ]
        rules = [rule for policy in policies for rule in policy.get(direction) or []]
        return not policies or any(
            port in [one["port"] for one in rule["ports"]]
            and (
                not rule.get(peers)  # an empty list is everybody
                or any("podSelector" in peer and chosen(peer["podSelector"], other) for peer in rule[peers])
            )
            for rule in rules
        )

    sends = source not in labels or allows("egress", "to", source, target)
    return sends and (target not in labels or allows("ingress", "from", target, source))


def test_network_policies_allow_what_is_needed_and_nothing_else() -> None:
    manifests = render(
        "spark-on-kubernetes",
        lookup={"enabled": True},
        networkPolicy={"kubernetesApi": {"to": "anywhere", "ports": [443, 6443]}},
    )
    members = ("service", "worker", "executor", "migration", "lookup")
    tried = {
        (source, target, port)
        for source in (*members, "outside")
        for target in (*members, "outside")
        for port in (53, 443, 5432, 6443, 7078, 7079, 8000, 8020, 9999)
        if (source, target) != ("outside", "outside")
    }
    allowed = {one for one in tried if may_connect(manifests, *one)}
    # Workers get all their replicas' blocks from executors; drivers know nothing of each other.
    assert allowed == {
        *((member, "outside", 53) for member in members),
        *((member, "outside", 443) for member in ("service", "worker", "executor", "lookup")),
        *((member, "outside", 5432) for member in ("service", "migration")),
        ("worker", "outside", 6443),
        ("worker", "service", 8000),
        ("service", "lookup", 8020),
        ("worker", "executor", 7079),
        *(("executor", target, port) for target, port in (("worker", 7078), ("worker", 7079))),
        ("executor", "executor", 7079),
    }


def test_only_named_clients_reach_the_service() -> None:
    manifests = render("production")
    assert may_connect(manifests, "worker", "service", 8000)
    assert not may_connect(manifests, "outside", "service", 8000)
    policy = named(manifests, "NetworkPolicy", "service")["spec"]["ingress"][0]["from"]
    namespaces = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in policy
        if "namespaceSelector" in peer
    ]
    assert namespaces == ["ingress-nginx", "monitoring", "keda"]


@pytest.mark.parametrize("worker", [True, False])
def test_a_list_that_names_nobody_admits_nobody(worker: bool) -> None:
    """Kubernetes takes an empty list of peers for everybody."""
    empty: Manifest = {name: {"to": []} for name in ("dns", "database", "lake", "traces", "kubernetesApi")}
    manifests = render(
        "spark-on-kubernetes" if worker else "small",
        networkPolicy={**empty, "clients": [], "extraEgress": []},
        traces={"endpoint": "http://collector:4318"},
        worker={"enabled": worker},
        lookup={"enabled": worker},
    )
    members = {component(one) for one in pods(manifests)}
    for port in (53, 443, 988, 4318, 5432, 6443, 8000, 8020):
        assert not [one for one in members if may_connect(manifests, "outside", one, port)]
        assert not [one for one in members if may_connect(manifests, one, "outside", port)]
    assert may_connect(manifests, "worker", "service", 8000) is worker


def test_everybody_may_call_the_service_only_where_values_say_so() -> None:
    manifests = render(networkPolicy={"clients": "anywhere"})
    assert may_connect(manifests, "outside", "service", 8000)
    assert not may_connect(manifests, "outside", "service", 9999)
    assert not may_connect(manifests, "outside", "worker", 8000)


def test_no_policy_at_all_if_none_is_wanted() -> None:
    assert not of_kind(render(networkPolicy={"enabled": False}), "NetworkPolicy")


def test_executors_get_what_spark_on_kubernetes_needs() -> None:
    manifests = render("spark-on-kubernetes")
    text = named(manifests, "ConfigMap", "spark")["data"]["spark-defaults.conf"]
    conf = dict(line.split(" ", 1) for line in text.splitlines())
    worker = next(pod for pod in pods(manifests) if component(pod) == "worker")
    ports = {one["name"]: str(one["containerPort"]) for one in container(worker)["ports"]}
    assert conf["spark.driver.port"] == ports["driver"]
    assert conf["spark.driver.blockManager.port"] == conf["spark.blockManager.port"] == ports["blocks"]
    assert conf["spark.kubernetes.namespace"] == "data"
    assert conf["spark.kubernetes.container.image"] == container(worker)["image"]
    account = conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert account in [one["metadata"]["name"] for one in of_kind(manifests, "ServiceAccount")]
    mounts = {one["mountPath"] for one in container(worker)["volumeMounts"]}
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/etc/icestream/spark/executor.yaml"
    assert environment(worker)["SPARK_CONF_DIR"] in mounts
    template = yaml.safe_load(named(manifests, "ConfigMap", "spark")["data"]["executor.yaml"])
    assert container(template)["name"] == conf["spark.kubernetes.executor.podTemplateContainerName"]
    assert conf["spark.dynamicAllocation.maxExecutors"] == "20"
    assert conf["spark.executor.heartbeatInterval"] == "20s"
    # A name that all workers share would make their executors' names collide.
    assert "spark.kubernetes.executor.podNamePrefix" not in conf
