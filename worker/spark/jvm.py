"""Names of Java's, as Python says them: `jvm.java.util.ArrayList` asks Java for each part, each time."""

from functools import lru_cache
from typing import Any

from py4j.java_gateway import (
    GatewayClient,
    JavaClass,
    JavaObject,
    JavaPackage,
    JVMView,
)
from py4j.protocol import DEFAULT_JVM_ID


def jvm_of(java_object: JavaObject) -> JVMView:
    """The JVM that an object lives in."""
    return jvm_behind(java_object._gateway_client)


@lru_cache(maxsize=8)
def jvm_behind(client: GatewayClient) -> JVMView:
    return keep_names(JVMView(client, "icestream", id=DEFAULT_JVM_ID))


def keep_names(jvm: JVMView, *classes: str) -> JVMView:
    """Ask Java once for each package and class that is named in a view, and return the view.

    classes: further names, of classes that the view imports.

    For a package, Java searches all JARs for a class of that name. PySpark names classes a dozen times for
    each exception of Java's, also for the one that ends each iteration.
    """
    for name in ("java", "org", "py4j", *classes):
        setattr(jvm, name, _kept(getattr(jvm, name)))
    return jvm


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        value = _kept(super().__getattr__(name))
        if isinstance(value, (JavaPackage, JavaClass)):
            setattr(self, name, value)
        return value


def _kept(value: Any) -> Any:
    if isinstance(value, JavaPackage):
        return _Package(value._fqn, value._gateway_client, value._jvm_id)
    return value
