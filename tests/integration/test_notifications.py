"""What docs/notifications.md has engines do: whoever commits tells the service."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlmodel import select

from service.records.notifications import Notification
from service.settings import Settings
from service.webhooks.signing import new_secret
from tests.factories import Catalog
from tests.patience import wait_until
from tests.service.conftest import ADMIN_KEY, Running, running

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "with a key"])
def test_the_listener_of_the_page_tells_of_a_commit(
    spark: SparkSession,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    notifier: Any,
    is_signed: bool,
) -> None:
    identifier = f"{catalog.name}.told.orders"
    spark.sql(f"CREATE NAMESPACE {catalog.name}.told")
    spark.sql(f"CREATE TABLE {identifier} (id bigint) USING iceberg")
    settings = Settings(
        data_dir=tmp_path / "data",
        bootstrap_key=ADMIN_KEY,
        background=False,
        allowed_locations=(tmp_path.as_uri(),),
    )
    with running(settings) as service:
        record = {"name": catalog.name, "type": "sql", "properties": catalog.properties}
        assert service.admin.post("/catalogs", json=record).status_code == 201
        table = service.enroll("told.orders", catalog=catalog.name)
        if is_signed:
            secret = new_secret()
            monkeypatch.setenv("WEBHOOK_FLINK", secret)
            sender = {"name": "flink", "catalog": catalog.name, "secret": "env:WEBHOOK_FLINK"}
            made = service.admin.post("/notification-senders", json=sender)
            notifier.notifySigned(service.url, made.json()["id"], secret)
        else:
            notifier.notifyWithKey(service.url, ADMIN_KEY, catalog.name)
        spark.sql(f"INSERT INTO {identifier} VALUES (1)")
        assert wait_until(lambda: _told(service), "the notification") == [table["id"]]


@pytest.fixture(scope="module")
def notifier(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A class with the methods of the page, which calls them as it says."""
    methods = "\n".join(re.findall(r"```java\n(.*?)```", PAGE.read_text(), re.DOTALL))
    calls = """
        public static void notifySigned(String service, String sender, String secret) {
            notifyIcestream(body -> signed(service, sender, secret, body));
        }
        public static void notifyWithKey(String service, String key, String catalog) {
            notifyIcestream(body -> withKey(service, key, catalog));
        }
    """
    for call in re.findall(r"notifyIcestream\(body -> .*?\)\)", calls):
        assert call in PAGE.read_text()
    directory = tmp_path_factory.mktemp("notifier")
    return _compiled(spark, directory, "Notifier", f"public class Notifier {{ {methods} {calls} }}")


def _told(service: Running) -> list[str]:
    with service.database.read() as session:
        return [one.table_id for one in session.exec(select(Notification))]


def _compiled(spark: SparkSession, directory: Path, name: str, source: str) -> Any:
    """A class of Java that sees Iceberg."""
    gateway: Any = spark.sparkContext._gateway
    jvm: Any = spark.sparkContext._jvm
    iceberg = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    listeners = iceberg.loadClass("org.apache.iceberg.events.Listeners")
    (directory / f"{name}.java").write_text(source)
    jar = listeners.getProtectionDomain().getCodeSource().getLocation().getPath()
    javac = Path(jvm.java.lang.System.getProperty("java.home")) / "bin" / "javac"
    subprocess.run([javac, "-cp", jar, "-d", directory, directory / f"{name}.java"], check=True)
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(directory)).toURI().toURL()
    made = jvm.java.net.URLClassLoader(urls, iceberg).loadClass(name)
    return made.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0)).newInstance(
        gateway.new_array(jvm.java.lang.Object, 0)
    )
