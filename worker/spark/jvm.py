"""The JVM as Python sees it: names of Java's, each asked for once, and objects of classes of ours."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import (
    GatewayClient,
    JavaClass,
    JavaObject,
    JavaPackage,
    JVMView,
)
from py4j.protocol import DEFAULT_JVM_ID

_SHARED = Path(__file__).with_name("Shared.java")


def jvm_of(value: JavaObject) -> JVMView:
    """The JVM that an object lives in."""
    return _view(value._gateway_client)


@lru_cache(maxsize=8)
def _view(client: GatewayClient) -> JVMView:
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


def java_object(neighbour: JavaObject, source: Path, name: str, *arguments: object) -> JavaObject:
    """An object of a class of ours, which its source file has, beside another. Raises Java's errors."""
    values = jvm_of(neighbour).java.util.List.of(*arguments)
    return _constructor(neighbour._gateway_client, source, name).newInstance(values.toArray())


@lru_cache(maxsize=64)
def _constructor(client: GatewayClient, source: Path, name: str) -> JavaObject:
    (constructor,) = _classes(client, source).loadClass(name).getConstructors()
    return constructor


@lru_cache(maxsize=8)
def _classes(client: GatewayClient, source: Path) -> JavaObject:
    """The loader of the classes in a file, which know those of `_SHARED`. It is made once for a JVM."""
    jvm = _view(client)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    # Iceberg's JARs are known to Spark's own loader only.
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    compiler.setParentClassLoader(loader if source == _SHARED else _classes(client, _SHARED))
    compiler.cook(source.read_text())
    return compiler.getClassLoader()
