"""What a pod's container finds in its environment, for processes that take its place."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.deployment.chart import ROOT, Manifest, environment

SECRETS = {
    "admin-key": "admin-key-of-these-tests-0123456789",
    "worker-key": "worker-key-of-these-tests-0123456789",
    "lookup-token": "lookup-token-of-these-tests-0123456789",
    "erasure-secret": "erasure-secret-of-these-tests-0123456789",
    "receipt-secret": "whsec_" + "QUJD" * 12,
    "password": "p@ss:w/rd",
    "url": "postgresql+psycopg://user:password@host/name",
}
JARS = Path(os.environ.get("ICESTREAM_JARS_DIR", "~/.cache/icestream/ivy")).expanduser()


def given(pod: Manifest, facts: Mapping[str, str], overridden: Mapping[str, str]) -> dict[str, str]:
    """The variables of a pod's container.

    facts: what Kubernetes knows of the pod, by field or resource. overridden: what differs from a pod.
    """
    found = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": str(ROOT)}
    # The image has these elsewhere.
    found |= {"ICESTREAM_JARS_DIR": str(JARS)}
    found |= {name: os.environ[name] for name in ("JAVA_HOME", "JDK_JAVA_OPTIONS") if name in os.environ}
    for name, value in environment(pod).items():
        if isinstance(value, str):
            for known in found:
                value = value.replace(f"$({known})", found[known])
            found[name] = value
        elif "secretKeyRef" in value:
            found[name] = SECRETS[value["secretKeyRef"]["key"]]
        else:
            field = value.get("fieldRef") or value["resourceFieldRef"]
            found[name] = facts[field.get("fieldPath") or field["resource"]]
    return found | dict(overridden)
