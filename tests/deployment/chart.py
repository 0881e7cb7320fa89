"""What Helm makes of the chart with some values."""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.27", "1.37"
RELEASE, NAMESPACE = "r", "data"

Manifest = dict[str, Any]


class HelmError(Exception):
    """Helm refused; the text is what a user reads."""


class KubernetesError(Exception):
    """Kubernetes would refuse a manifest."""


@cache
def helm() -> str:
    """The path of Helm, which is built the first time."""
    done = subprocess.run([ROOT / "scripts" / "install_helm"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def run_helm(*arguments: str, values: Manifest | None = None) -> str:
    """values: come after all files. Raises HelmError."""
    given = ["--values", "-"] if values is not None else []
    done = subprocess.run(
        [helm(), *arguments, *given],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def template(example: str | None = "small", kubernetes: str = NEWEST_KUBERNETES, **values: Any) -> str:
    """The text of all manifests, with the values of an example and some more."""
    return _template(example, kubernetes, json.dumps(values))


@cache
def _template(example: str | None, kubernetes: str, values: str) -> str:
    files = ["--values", str(CHART / "examples" / f"{example}.yaml")] if example else []
    release = (RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", kubernetes)
    return run_helm("template", *release, *files, values=json.loads(values))


def render(
    example: str | None = "small", kubernetes: str = NEWEST_KUBERNETES, **values: Any
) -> list[Manifest]:
    # libyaml's loader: the same, ten times as fast.
    manifests = yaml.load_all(template(example, kubernetes, **values), yaml.CSafeLoader)
    return [manifest for manifest in manifests if manifest]


@cache
def _schemas() -> Any:
    """Those of Kubernetes, which would read the definitions of all kinds again for each manifest."""
    # Not at the top: the grammars of addresses that it brings take whoever collects tests seconds.
    import kubernetes_validate

    kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
    return kubernetes_validate


def validate(manifest: Manifest, kubernetes: str) -> None:
    """Raises KubernetesError if one of its fields is unknown, missing or of another type."""
    schemas = _schemas()
    try:
        schemas.validate(manifest, kubernetes, strict=True)
    except schemas.ValidationError as error:
        raise KubernetesError(str(error)) from error


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The manifest of this kind whose name is the release's, with `name` behind."""
    full = f"{RELEASE}-icestream{'-' if name else ''}{name}"
    (found,) = [one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, full)]
    return found


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Every pod that comes of the manifests: metadata and spec. Spark's executors are among them."""
    for one in manifests:
        if one["kind"] in ("Deployment", "Job"):
            yield one["spec"]["template"]
        if one["kind"] == "ConfigMap" and "executor.yaml" in one["data"]:
            yield yaml.safe_load(one["data"]["executor.yaml"])


def component(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])


def container(pod: Manifest) -> Manifest:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def environment(pod: Manifest) -> dict[str, Any]:
    """Name -> value, or where it comes from; each name once."""
    variables = container(pod).get("env", [])
    found = {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}
    assert len(found) == len(variables)
    return found
