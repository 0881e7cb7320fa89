"""The JVM as Python sees it: names of Java's, each asked for once, and objects of classes of ours.

A call through py4j costs about 0.2 ms, and each object that it returns another one, which lets it go.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import (
    GatewayClient,
    JavaClass,
    JavaMember,
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
    """Ask Java once for each package, class and static method that is named in a view, and return the view.

    classes: further names, of classes that the view imports.

    For a package, Java searches all JARs for a class of that name. PySpark names classes a dozen times for
    each exception of Java's, also for the one that ends each iteration.
    """
    for name in ("java", "org", "py4j", *classes):
        setattr(jvm, name, _kept(getattr(jvm, name)))
    return jvm


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _keep(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _keep(self, name, super().__getattr__(name))


def _keep(owner: Any, name: str, value: Any) -> Any:
    """But for the value of a static field, which may change."""
    value = _kept(value)
    if isinstance(value, (JavaPackage, JavaClass, JavaMember)):
        setattr(owner, name, value)
    return value


def _kept(value: Any) -> Any:
    if isinstance(value, JavaPackage):
        return _Package(value._fqn, value._gateway_client, value._jvm_id)
    return _Class(value._fqn, value._gateway_client) if isinstance(value, JavaClass) else value


def java_object(neighbour: JavaObject, source: Path, name: str, *arguments: object) -> JavaObject:
    """An object of a class of ours, which its source file has, beside another. Raises Java's errors."""
    return _maker(neighbour._gateway_client, source, name).make(*arguments)


@lru_cache(maxsize=16)
def java_functions(client: GatewayClient, source: Path, name: str) -> JavaObject:
    """The one object of a class of ours that keeps nothing, made once for a JVM."""
    return _maker(client, source, name).make()


@lru_cache(maxsize=64)
def _maker(client: GatewayClient, source: Path, name: str) -> JavaObject:
    (constructor,) = _classes(client, source).loadClass(name).getConstructors()
    (of_makers,) = _classes(client, _SHARED).loadClass("Maker").getConstructors()
    return of_makers.newInstance(_view(client).java.util.List.of(constructor).toArray())


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


def java_map(jvm: JVMView, values: Mapping[str, str]) -> JavaObject:
    """A `java.util.HashMap`, made in one call."""
    return _reader(jvm, "HashMap").readValue(json.dumps(dict(values)))


def java_strings(jvm: JVMView, values: Sequence[str]) -> JavaObject:
    """A `java.util.ArrayList`, likewise."""
    return _reader(jvm, "ArrayList").readValue(json.dumps(list(values)))


def told_by_java(value: JavaObject) -> Any:
    """What JSON says of it: a map, a list of strings, or whatever it is."""
    return json.loads(json_mapper(jvm_of(value)).writeValueAsString(value))


@lru_cache(maxsize=8)
def json_mapper(jvm: JVMView) -> JavaObject:
    """Iceberg's."""
    return jvm.org.apache.iceberg.util.JsonUtil.mapper()


@lru_cache(maxsize=16)
def _reader(jvm: JVMView, kind: str) -> JavaObject:
    """Of texts in JSON that are such a thing of `java.util`."""
    return json_mapper(jvm).readerFor(getattr(jvm.java.util, kind)().getClass())
