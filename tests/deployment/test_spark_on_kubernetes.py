"""A driver with the chart's configuration gets executors, with no more rights than the chart grants."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.deployment.chart import (
    NEWEST_KUBERNETES,
    ROOT,
    component,
    container,
    named,
    of_kind,
    pods,
    render,
    validate,
)
from tests.deployment.kubernetes_api import KubernetesApi
from tests.deployment.pods import given
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.integration

_DRIVER = """
import json, os
from worker.spark.session import create_spark
spark = create_spark(os.environ["ICESTREAM_SPARK_MASTER"])
squares = spark.sparkContext.parallelize(range(4), 4).map(lambda i: (i * i, os.environ["SPARK_EXECUTOR_ID"]))
print(json.dumps(squares.collect()))
spark.stop()
"""


@pytest.mark.exhaustive
def test_a_driver_runs_its_tasks_on_executors_that_it_may_make(tmp_path: Path) -> None:
    # Watching takes web sockets, which this API does not have: it is asked again and again.
    conf = {
        "spark.kubernetes.executor.enableApiWatcher": False,
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.driver.connectionTimeout": f"{PATIENCE_SECONDS * 1000:.0f}",
        "spark.kubernetes.driver.requestTimeout": f"{PATIENCE_SECONDS * 1000:.0f}",
    }
    executor = {"maxExecutors": 1, "cores": 2, "memory": "512m"}
    spark = {"driverMemory": "512m", "conf": conf, "executor": executor}
    manifests = render("spark-on-kubernetes", worker={"spark": spark})
    for name, content in named(manifests, "ConfigMap", "spark")["data"].items():
        # Where the chart mounts it.
        (tmp_path / name).write_text(content.replace("/etc/icestream/spark/", f"{tmp_path}/"))
    (role,) = of_kind(manifests, "Role")
    worker = next(pod for pod in pods(manifests) if component(pod) == "worker")
    driver = {"metadata": {"name": "driver", "namespace": "data", "uid": "0"}, "status": {"phase": "Running"}}
    java = shutil.which("java")
    assert java
    # What the image says.
    image = {
        "PATH": f"{ROOT / 'docker'}:{os.environ['PATH']}",
        "JAVA_HOME": str(Path(java).resolve().parents[1]),
        "SPARK_HOME": pyspark.__path__[0],
        "PYTHONPATH": str(ROOT),
    }
    facts = {"status.podIP": "127.0.0.1", "metadata.name": "driver", "limits.cpu": "2"}
    local = {"SPARK_LOCAL_DIRS": str(tmp_path)}
    with KubernetesApi(role, driver, tmp_path, lambda variables: variables | image | local) as api:
        own = {"ICESTREAM_SPARK_MASTER": f"k8s://{api.url}", "SPARK_CONF_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER],
            env=given(worker, facts, own),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr + api.logs()
    assert json.loads(done.stdout) == [[0, "1"], [1, "1"], [4, "1"], [9, "1"]]
    assert api.refused == []
    # Watching goes on although it is answered as if it were a list.
    assert {verb for verb, _ in api.allowed} - api.used <= {"delete", "watch"}

    (pod,) = api.created
    validate(pod, NEWEST_KUBERNETES)
    asked = container(pod)
    assert asked["command"] == ["spark-executor"]
    assert asked["image"] == container(worker)["image"]
    assert asked["resources"]["limits"]["memory"] == asked["resources"]["requests"]["memory"] == "10752Mi"
    assert asked["resources"]["requests"]["cpu"] == "2"
    assert asked["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["serviceAccountName"] == "r-icestream-executor"
    # Everything that it writes lies on the one volume, whose size is bounded.
    (volume,) = pod["spec"]["volumes"]
    assert volume["emptyDir"] == {"sizeLimit": "20Gi"}
    assert {"name": "SPARK_LOCAL_DIRS", "value": "/tmp"} in asked["env"]
    # It goes with its driver.
    assert pod["metadata"]["ownerReferences"][0]["name"] == "driver"
    assert api.pods.keys() == {"driver"}
