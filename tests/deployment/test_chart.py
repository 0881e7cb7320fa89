"""What the chart makes of values."""

import re
from typing import Any

import pytest
import yaml

from service import __version__
from service.command import serving
from service.erasures.receipt import secrets_of
from service.records.api_keys import Role
from service.settings import Settings
from tests.deployment.chart import (
    CHART,
    EXAMPLES,
    NEWEST_KUBERNETES,
    OLDEST_KUBERNETES,
    ROOT,
    HelmError,
    Manifest,
    component,
    container,
    environment,
    named,
    of_kind,
    pods,
    render,
    run_helm,
    template,
)
from tests.deployment.pods import SECRETS, given
from worker.agent.main import WorkerSettings
from worker.lookup_server import main as lookup_server
from worker.lookup_server.main import LookupSettings
from worker.spark.tasks import DRAIN_SECONDS

pytestmark = pytest.mark.integration

KEYS: dict[str, Any] = {
    "database": {"existingSecret": "d"},
    "auth": {"existingSecret": "k"},
    "index": {"warehouse": "s3://b/i"},
}


def pod(manifests: list[Manifest], name: str) -> Manifest:
    (found,) = [one for one in pods(manifests) if component(one) == name]
    return found


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("kubernetes", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
def test_helm_finds_nothing_wrong_with_an_example(example: str, kubernetes: str) -> None:
    values = str(CHART / "examples" / f"{example}.yaml")
    said = run_helm("lint", "--strict", str(CHART), "--kube-version", kubernetes, "--values", values)
    assert "0 chart(s) failed" in said
    assert not re.search(r"^[ \t]+$", template(example, kubernetes), re.MULTILINE)


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(HelmError, match=re.escape("requires kubeVersion: >=1.27")):
        render(kubernetes="1.26")


@pytest.mark.parametrize("missing", KEYS)
def test_what_is_missing_is_told_with_what_to_do(missing: str) -> None:
    """The error names the value, and how to make what it names."""
    (value,) = KEYS[missing]
    values = {key: given for key, given in KEYS.items() if key != missing}
    with pytest.raises(HelmError, match=rf"{missing}\.{value} is not set\.") as told:
        render(None, **values)
    assert f"{missing}.{value}=" in str(told.value)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"databse": {}}, "additional properties 'databse' not allowed"),
        ({"service": {"replica": 2}}, "at '/service': additional properties 'replica' not allowed"),
        ({"service": {"replicas": "two"}}, "at '/service/replicas': got string, want integer"),
        ({"worker": {"slots": 0}}, "at '/worker/slots': minimum: got 0, want 1"),
        ({"worker": {"spark": {"mode": "yarn"}}}, "value must be one of 'local', 'kubernetes'"),
        (
            {"worker": {"spark": {"driverMemory": "2Gi"}}},
            "at '/worker/spark/driverMemory': '2Gi' does not match",
        ),
        ({"worker": {"spark": {"conf": {"executor.cores": 1}}}}, "'executor.cores' does not match"),
        ({"worker": {"scratch": {"emptyDir": {}}}}, "additional properties 'emptyDir' not allowed"),
        ({"index": {"warehouse": "hdfs://b/i"}}, "at '/index/warehouse': 'hdfs://b/i' does not match"),
        ({"allowedLocations": ["s3://a,s3://b"]}, "at '/allowedLocations/0'"),
        ({"service": {"image": {"digest": "sha256:12"}}}, "at '/service/image/digest'"),
        ({"database": {"host": "postgresql://h/d"}}, "put it into database.existingSecret under the key"),
        ({"service": {"image": {"digest": "sha512:" + 64 * "0"}}}, "at '/service/image/digest'"),
        ({"networkPolicy": {"clients": [{}]}}, "at '/networkPolicy/clients/0': minProperties"),
        ({"networkPolicy": {"clients": "everybody"}}, "at '/networkPolicy/clients'"),
        ({"networkPolicy": {"lake": {"to": [{"ports": []}]}}}, "at '/networkPolicy/lake/to/0'"),
        ({"networkPolicy": {"lake": {"ports": []}}}, "at '/networkPolicy/lake/ports': minItems"),
        (
            {"networkPolicy": {"extraEgress": [{}]}},
            "at '/networkPolicy/extraEgress/0': missing property 'to'",
        ),
        ({"networkPolicy": {"extraEgress": [{"to": []}]}}, "at '/networkPolicy/extraEgress/0/to': minItems"),
        ({"image": {"registry": "https://r"}}, "without a scheme"),
        ({"worker": {"image": {"repository": "r:5000/i:1"}}}, "set worker.image.tag or worker.image.digest"),
        ({"catalogs": {"env": [{"name": "ICESTREAM_X"}]}}, "set it in service.settings or worker.settings"),
        ({"catalogs": {"volumes": [{"name": "scratch"}]}}, "choose another name"),
        (
            {"service": {"settings": {"ICESTREAM_BOOTSTRAP_KEY": "k"}}},
            "is a secret and must not lie in values",
        ),
        ({"worker": {"settings": {"ICESTREAM_API_KEY": "k"}}}, "is a secret and must not lie in values"),
        ({"ingress": {"enabled": True}}, "Name a host: ingress.hosts"),
        ({"auth": {"oidc": {"issuer": "https://i"}}}, "auth.oidc.roles belong together: set all three"),
        ({"auth": {"oidc": {"roles": {"g": "root"}}}}, "value must be one of 'viewer', 'operator'"),
        ({"service": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "minReplicas is greater than"),
        ({"worker": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "minReplicas is greater than"),
        ({"worker": {"spark": {"executor": {"minExecutors": 9}}}}, "minExecutors is greater than"),
        ({"worker": {"spark": {"driverMemory": "3073m"}}}, "raise the limit, or lower driverMemory"),
        ({"service": {"preStopSeconds": 20}}, "terminationGracePeriodSeconds must be more than"),
        ({"lookup": {"preStopSeconds": 20}}, "more than lookup.preStopSeconds + 25"),
        ({"lookup": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "than lookup.autoscaling.max"),
        ({"lookup": {"settings": {}}}, "at '/lookup': additional properties 'settings' not allowed"),
        ({"service": {"settings": {"ICESTREAM_LOOKUP_TOKEN": "k"}}}, "must not lie in values"),
        ({"service": {"settings": {"ICESTREAM_ERASURE_SECRET": "k"}}}, "must not lie in values"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: Manifest, complaint: str) -> None:
    with pytest.raises(HelmError, match=re.escape(complaint)):
        render(**values)


def test_every_value_is_known_to_the_schema_and_has_a_default() -> None:
    def differing(schema: Manifest, values: Any, path: str) -> list[str]:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
        properties = schema.get("properties")
        if not isinstance(values, dict) or properties is None:
            return []
        missing = [f"{path}.{name}" for name in properties.keys() ^ values.keys()]
        for name in properties.keys() & values.keys():
            missing += differing(properties[name], values[name], f"{path}.{name}")
        return missing

    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    definitions = schema["definitions"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    # `global` is Helm's own. Requests and limits have no properties by name.
    assert differing(schema, values, "") == [".global"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_pod_runs_as_root_writes_its_image_or_gains_rights(example: str) -> None:
    found = list(pods(render(example)))
    assert len(found) >= 3
    for one in found:
        spec, only = one["spec"], container(one)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in [mount["mountPath"] for mount in only["volumeMounts"]]
        names = [volume["name"] for volume in spec["volumes"]]
        assert len(set(names)) == len(names)
        assert {mount["name"] for mount in only["volumeMounts"]} == set(names)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


@pytest.mark.parametrize("example", EXAMPLES)
def test_resources_are_asked_for_and_memory_is_bounded(example: str) -> None:
    for one in pods(render(example)):
        # Spark sets those of executors.
        if component(one) != "executor":
            resources = container(one)["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"])
            assert "memory" in resources["limits"]


def test_only_a_driver_of_executors_may_talk_to_kubernetes() -> None:
    for example in EXAMPLES:
        manifests = render(example)
        mounted = {component(one) for one in pods(manifests) if one["spec"]["automountServiceAccountToken"]}
        assert mounted == ({"worker"} if example == "spark-on-kubernetes" else set())
        assert bool(of_kind(manifests, "Role")) == bool(mounted)
        assert not any(one["automountServiceAccountToken"] for one in of_kind(manifests, "ServiceAccount"))


def test_a_driver_may_do_nothing_but_run_pods_in_its_namespace() -> None:
    manifests = render("spark-on-kubernetes")
    (role,) = of_kind(manifests, "Role")
    (binding,) = of_kind(manifests, "RoleBinding")
    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert set(rule["verbs"]) == {"create", "get", "list", "watch", "delete", "deletecollection"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    driver = pod(manifests, "worker")["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": driver, "namespace": "data"}]
    assert not of_kind(manifests, "ClusterRole")


def test_whoever_reads_the_lake_has_an_identity_of_the_cloud_and_may_ask_for_its_tokens() -> None:
    manifests = render("spark-on-kubernetes", lookup={
        "enabled": True,
        "serviceAccount": {"annotations": {"iam.gke.io/gcp-service-account": "reader@p"}},
    })  # fmt: skip
    annotation = "iam.gke.io/gcp-service-account"
    accounts = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["metadata"].get("annotations", {})
        for one in of_kind(manifests, "ServiceAccount")
    }
    members = {"service", "worker", "executor", "lookup"}
    assert {name for name, annotations in accounts.items() if annotation in annotations} == members
    for name in members:
        egress = named(manifests, "NetworkPolicy", name)["spec"]["egress"]
        reached = {
            (peer["ipBlock"]["cidr"], port["port"])
            for rule in egress
            for peer in rule.get("to", [])
            if "ipBlock" in peer
            for port in rule["ports"]
        }
        assert {("169.254.169.254/32", 80), ("169.254.169.252/32", 988)} <= reached


def test_whoever_reads_the_lake_has_an_identity_in_the_recipe_for_eks() -> None:
    page = (ROOT / "docs" / "spark-clusters.md").read_text()
    (recipe,) = re.findall(r"^    service:\n(?:    .*\n)+", page, re.MULTILINE)
    manifests = render(None, **KEYS | yaml.safe_load(recipe))
    conf = named(manifests, "ConfigMap", "spark")["data"]["spark-defaults.conf"]
    (of_executors,) = re.findall(r"executor\.serviceAccountName (.*)", conf)
    assert of_executors == named(manifests, "ServiceAccount", "executor")["metadata"]["name"]
    for name in ("service", "worker", "executor"):
        account = named(manifests, "ServiceAccount", name)
        assert "eks.amazonaws.com/role-arn" in account["metadata"]["annotations"], name


def test_secrets_are_only_referred_to() -> None:
    for example in EXAMPLES:
        manifests = render(example)
        assert not of_kind(manifests, "Secret")
        for one in pods(manifests):
            for name, value in environment(one).items():
                if name.endswith(("_KEY", "_TOKEN", "PGPASSWORD")):
                    assert set(value) == {"secretKeyRef"}


def test_the_database_is_a_url_from_a_secret_or_a_host_with_a_password_from_it() -> None:
    def database(**values: Any) -> dict[str, Any]:
        found = environment(pod(render(database={"existingSecret": "d"} | values), "migration"))
        return {name: found[name] for name in sorted(found) if name.startswith("PG") or "DATABASE" in name}

    url = {"secretKeyRef": {"name": "d", "key": "url"}}
    assert database() == {"ICESTREAM_DATABASE_URL": url}
    assert database(host="h", user="u@x", name="d") == {
        "ICESTREAM_DATABASE_URL": "postgresql+psycopg://u%40x@h:5432/d?sslmode=require",
        "PGPASSWORD": {"secretKeyRef": {"name": "d", "key": "password"}},
    }
    assert "@[fd00::1]:5433/" in database(host="fd00::1", port=5433)["ICESTREAM_DATABASE_URL"]
    assert database(host="h", sslMode="verify-full")["PGSSLROOTCERT"] == "system"
    assert database(host="h", caKey="c")["PGSSLROOTCERT"] == "/etc/icestream/database/ca.crt"
    for name in ("service", "migration"):
        spec = pod(render(database={"host": "h", "caKey": "c"}), name)["spec"]
        (volume,) = [one for one in spec["volumes"] if one["name"] == "database"]
        assert volume["secret"]["items"] == [{"key": "c", "path": "ca.crt"}]


def test_the_migration_is_done_before_and_needs_nothing_of_the_release() -> None:
    manifests = render("production")
    (job,) = of_kind(manifests, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    # A job can't be changed: the one of the last upgrade must go first.
    assert "before-hook-creation" in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    migration = pod(manifests, "migration")
    assert container(migration)["args"] == ["migrate"]
    assert container(migration)["image"] == container(pod(manifests, "service"))["image"]
    own = {one["metadata"]["name"] for one in manifests if one["kind"] in ("ConfigMap", "ServiceAccount")}
    assert migration["spec"].get("serviceAccountName") not in own
    assert not [volume for volume in migration["spec"]["volumes"] if "configMap" in volume]
    assert not of_kind(render(migration={"enabled": False}), "Job")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_programs_know_every_setting_that_the_chart_gives(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that they do not know they would ignore."""
    manifests = render(example, lookup={"enabled": True}, erasures={"enabled": True})
    service = given(pod(manifests, "service"), {}, {})
    facts = {"metadata.name": "p", "status.podIP": "127.0.0.1", "limits.cpu": "2"}
    worker, lookup = (given(pod(manifests, name), facts, {}) for name in ("worker", "lookup"))
    elsewhere = {"driver_memory", "jars_dir"}
    for variables, known in (
        (service, {*Settings.model_fields, *elsewhere}),
        (worker, {*WorkerSettings.model_fields, *elsewhere}),
        (lookup, {*LookupSettings.model_fields, *elsewhere}),
    ):
        names = {name.removeprefix("ICESTREAM_").lower() for name in variables if "ICESTREAM_" in name}
        assert names <= known
    for name, value in (service | worker | lookup).items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    settings.check_bootstrap_keys()
    hashing, signers = secrets_of(settings)
    assert (hashing.get_secret_value(), len(signers)) == (SECRETS["erasure-secret"], 1)
    assert settings.is_public
    settings.places.check(settings.index_warehouse)
    assert WorkerSettings().api_key == SECRETS["worker-key"]
    assert LookupSettings().lookup_token == SECRETS["lookup-token"]
    shown = settings.lookup_token
    assert shown is not None
    assert shown.get_secret_value() == SECRETS["lookup-token"]
    called = named(manifests, "Service", "lookup")
    (port,) = called["spec"]["ports"]
    assert settings.lookup_url == f"http://{called['metadata']['name']}:{port['port']}"
    assert container(pod(manifests, "lookup"))["ports"][0]["containerPort"] == LookupSettings().lookup_port
    if example == "production":
        assert settings.oidc_roles == {"lake-admins": Role.ADMIN, "data-team": Role.OPERATOR}


def test_service_and_migration_get_the_same_settings() -> None:
    manifests = render("production")
    service, migration = (environment(pod(manifests, name)) for name in ("service", "migration"))
    assert {name for name in service if name.startswith("ICESTREAM_")} == {
        name for name in migration if name.startswith("ICESTREAM_")
    }
    assert service["ICESTREAM_POLL_INTERVAL_SECONDS"] == "30"


def test_pods_end_in_their_own_time() -> None:
    manifests = render("production")
    for name, stop_seconds in (("service", serving.STOP_SECONDS), ("lookup", lookup_server.STOP_SECONDS)):
        spec = pod(manifests, name)["spec"]
        waits = int(container(pod(manifests, name))["lifecycle"]["preStop"]["exec"]["command"][1])
        assert spec["terminationGracePeriodSeconds"] > waits + stop_seconds
    assert pod(manifests, "worker")["spec"]["terminationGracePeriodSeconds"] > 2 * DRAIN_SECONDS


def test_a_change_of_sparks_settings_restarts_workers_only() -> None:
    before, after = render(), render(worker={"spark": {"conf": {"spark.speculation": True}}})
    conf = named(after, "ConfigMap", "spark")["data"]["spark-defaults.conf"]
    assert "spark.speculation true" in conf.splitlines()
    assert named(before, "Deployment", "worker") != named(after, "Deployment", "worker")
    assert named(before, "Deployment", "service") == named(after, "Deployment", "service")


def test_replicas_are_left_to_the_autoscaler() -> None:
    manifests = render("production")
    assert "replicas" not in named(manifests, "Deployment", "service")["spec"]
    assert "replicas" not in named(manifests, "Deployment", "worker")["spec"]
    assert "replicas" not in named(manifests, "Deployment", "lookup")["spec"]
    scalers = of_kind(manifests, "HorizontalPodAutoscaler")
    targets = [one["spec"]["scaleTargetRef"]["name"] for one in scalers]
    assert targets == ["r-icestream-service", "r-icestream-lookup"]
    (scaled,) = of_kind(manifests, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == "r-icestream-worker"
    assert scaled["spec"]["maxReplicaCount"] == 10
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["url"] == "http://r-icestream.data.svc:8000/metrics"
    assert trigger["metadata"]["targetValue"] == "1"
    plain = render(service={"replicas": 3}, worker={"replicas": 4}, lookup={"enabled": True, "replicas": 5})
    assert named(plain, "Deployment", "lookup")["spec"]["replicas"] == 5
    assert named(plain, "Deployment", "service")["spec"]["replicas"] == 3
    assert named(plain, "Deployment", "worker")["spec"]["replicas"] == 4


def test_keda_asks_prometheus_if_there_is_one() -> None:
    scaling = {"enabled": True, "prometheusAddress": "http://prometheus:9090"}
    manifests = render(worker={"autoscaling": scaling, "slots": 3})
    (scaled,) = of_kind(manifests, "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    # One replica for as many jobs as it runs at a time.
    assert trigger["metadata"]["threshold"] == "3"
    assert environment(pod(manifests, "worker"))["ICESTREAM_WORKER_SLOTS"] == "3"
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert 'namespace="data"' in trigger["metadata"]["query"]


def test_the_service_can_run_without_workers() -> None:
    manifests = render(worker={"enabled": False})
    assert {component(one) for one in pods(manifests)} == {"service", "migration"}
    assert not [one for one in manifests if component(one) in ("worker", "executor")]


def test_lookup_servers_come_with_a_value_and_leave_nothing_without() -> None:
    def of_lookups(*, enabled: bool) -> set[str]:
        manifests = render(worker={"enabled": False}, lookup={"enabled": enabled})
        told = {name for name in environment(pod(manifests, "service")) if "LOOKUP" in name}
        return told | {one["kind"] for one in manifests if component(one) == "lookup"}

    assert of_lookups(enabled=False) == set()
    objects = {"Deployment", "Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget"}
    assert of_lookups(enabled=True) == {"ICESTREAM_LOOKUP_URL", "ICESTREAM_LOOKUP_TOKEN", *objects}


def test_the_secrets_of_erasures_come_with_a_value_and_only_to_the_service() -> None:
    given = {"ICESTREAM_ERASURE_SECRET", "ICESTREAM_RECEIPT_SECRET"}
    for enabled in (False, True):
        manifests = render(erasures={"enabled": enabled}, lookup={"enabled": True})
        having = {component(one) for one in pods(manifests) if given & environment(one).keys()}
        assert having == ({"service", "migration"} if enabled else set())


def test_lookup_servers_know_the_stores_and_nothing_of_the_database() -> None:
    lookup = pod(render("production"), "lookup")
    names = set(environment(lookup))
    assert "AWS_REGION" in names
    assert not [name for name in names if "DATABASE" in name or name.startswith("PG") or "BOOTSTRAP" in name]
    assert "database" not in [volume["name"] for volume in lookup["spec"]["volumes"]]


def test_the_ingress_ends_tls_and_holds_no_event_back() -> None:
    (ingress,) = of_kind(render("production"), "Ingress")
    annotations = ingress["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert ingress["spec"]["tls"] == [{"secretName": "icestream-tls", "hosts": ["icestream.example.com"]}]
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = named(render("production"), "Service", "")
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    # TLS ends at the ingress: the service must believe it that a request came by HTTPS.
    proxies = environment(pod(render("production"), "service"))["ICESTREAM_TRUSTED_PROXIES"]
    assert Settings(trusted_proxies=proxies).trusted_proxies
    assert "ICESTREAM_TRUSTED_PROXIES" not in environment(pod(render(), "service"))


def test_images_are_named_by_registry_tag_or_digest() -> None:
    digest = "sha256:" + "0" * 64
    manifests = render(
        image={"registry": "r.example.com/x/", "pullSecrets": ["s"]},
        service={"image": {"digest": digest}},
        worker={"image": {"tag": "7"}},
    )
    assert container(pod(manifests, "service"))["image"] == f"r.example.com/x/icestream/service@{digest}"
    assert container(pod(manifests, "worker"))["image"] == "r.example.com/x/icestream/worker:7"
    assert all(one["spec"]["imagePullSecrets"] == [{"name": "s"}] for one in pods(manifests))
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container(pod(render(), "worker"))["image"] == f"icestream/worker:{version}"


def test_a_digest_wins_over_a_tag_in_every_pod_that_is_made() -> None:
    image = {"tag": "7", "digest": "sha256:" + 64 * "a"}
    manifests = render(
        "spark-on-kubernetes", service={"image": image}, worker={"image": image}, lookup={"enabled": True}
    )
    # An executor's template has none: Spark adds it.
    images = {component(one): container(one).get("image") for one in pods(manifests)}
    spark = named(manifests, "ConfigMap", "spark")["data"]["spark-defaults.conf"]
    conf = dict(line.split(" ", 1) for line in spark.splitlines())
    images["executor"] = conf["spark.kubernetes.container.image"]
    assert {"service", "migration", "worker", "executor", "lookup"} == images.keys()
    for name, found in images.items():
        repository = "service" if name in ("service", "migration") else "worker"
        assert found == f"icestream/{repository}@{image['digest']}"


def test_the_chart_deploys_the_version_of_the_project() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_what_catalogs_need_is_the_same_everywhere_but_in_the_migration() -> None:
    manifests = render("spark-on-kubernetes", lookup={"enabled": True}, catalogs={
        "env": [{"name": "AWS_REGION", "value": "r"}],
        "envFrom": [{"secretRef": {"name": "lake"}}],
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": True}],
    })  # fmt: skip
    for name in ("service", "worker", "executor", "lookup"):
        one = pod(manifests, name)
        assert environment(one)["AWS_REGION"] == "r"
        assert container(one)["envFrom"] == [{"secretRef": {"name": "lake"}}]
        assert "/keys" in [mount["mountPath"] for mount in container(one)["volumeMounts"]]
        assert "keys" in [volume["name"] for volume in one["spec"]["volumes"]]
    assert "AWS_REGION" not in environment(pod(manifests, "migration"))


def test_names_stay_within_what_kubernetes_allows() -> None:
    manifests = render(fullnameOverride="x" * 80, worker={"spark": {"mode": "kubernetes"}})
    assert all(len(one["metadata"]["name"]) <= 63 for one in manifests)


def test_replicas_are_spread_and_budgets_let_a_node_be_drained() -> None:
    manifests = render("production")
    for name in ("service", "worker", "lookup"):
        spread = pod(manifests, name)["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        labels = pod(manifests, name)["metadata"]["labels"]
        for one in spread:
            assert one["labelSelector"]["matchLabels"].items() <= labels.items()
        budget = named(manifests, "PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_the_workers_scratch_may_be_any_volume() -> None:
    def scratch(example: str) -> Manifest:
        volumes = pod(render(example), "worker")["spec"]["volumes"]
        return next(volume for volume in volumes if volume["name"] == "scratch")

    assert scratch("small") == {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}}
    assert set(scratch("production")) == {"name", "ephemeral"}


def test_service_and_workers_are_told_where_traces_go_and_may_go_there() -> None:
    key = {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": {"name": "o", "key": "h"}}}
    endpoint = "http://collector:4318"
    manifests = render("production", traces={"endpoint": endpoint, "sampleRatio": 0.1, "env": [key]})
    for name in ("service", "worker"):
        told = environment(pod(manifests, name))
        assert (told["OTEL_EXPORTER_OTLP_ENDPOINT"], told["OTEL_TRACES_SAMPLER_ARG"]) == (endpoint, "0.1")
        assert "OTEL_EXPORTER_OTLP_HEADERS" in told
        rules = named(manifests, "NetworkPolicy", name)["spec"]["egress"]
        assert {"port": 4318, "protocol": "TCP"} in [port for rule in rules for port in rule.get("ports", [])]
    silent = render("production")
    for name in ("service", "worker"):
        assert not [word for word in environment(pod(silent, name)) if word.startswith("OTEL_")]
        assert "4318" not in str(named(silent, "NetworkPolicy", name))


def test_the_log_is_json_unless_values_say_otherwise_and_webhooks_find_their_keys() -> None:
    secret = {"name": "WEBHOOK_ON_CALL", "valueFrom": {"secretKeyRef": {"name": "w", "key": "k"}}}
    manifests = render("production", logs={"format": "text", "requests": False}, webhooks={"env": [secret]})
    assert "WEBHOOK_ON_CALL" in environment(pod(manifests, "service"))
    assert "WEBHOOK_ON_CALL" not in environment(pod(manifests, "worker"))
    for log_format, rendered in (("text", manifests), ("json", render("production"))):
        for name in ("service", "worker", "lookup"):
            assert environment(pod(rendered, name))["ICESTREAM_LOG_FORMAT"] == log_format


def test_a_database_at_another_port_can_be_connected_to() -> None:
    for database, ports in (({"host": "pooler", "port": 6432}, [5432, 6432]), ({"host": "h"}, [5432])):
        manifests = render(database=database)
        for name in ("service", "migration"):
            egress = named(manifests, "NetworkPolicy", name)["spec"]["egress"][0]
            assert [one["port"] for one in egress["ports"]] == ports
