"""The configuration of Spark that a worker builds, on each kind of cluster that the documentation shows."""

import re
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from worker.agent.main import main
from worker.spark.jars import cached_jars, check_jars, own_jars, remember_jars
from worker.spark.session import is_local, spark_settings

DEPLOYMENT = Path(__file__).parents[3] / "docs" / "deployment.md"


def documented() -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Master -> environment and spark-defaults.conf, as the page shows them."""
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    for block in re.findall(r"(?:^    .+\n)+", DEPLOYMENT.read_text(), re.MULTILINE):
        lines = [line.strip() for line in block.splitlines()]
        variables = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
        conf = dict(line.split(maxsplit=1) for line in lines if line.startswith("spark."))
        if "ICESTREAM_SPARK_MASTER" in variables:
            found[variables["ICESTREAM_SPARK_MASTER"].partition(":")[0]] = variables, conf
    return found


@pytest.mark.parametrize("kind", ["spark", "yarn", "k8s"])
def test_what_is_documented_for_a_cluster_is_what_spark_gets(kind: str, tmp_path: Path) -> None:
    variables, conf = documented()[kind]
    settings = spark_settings({**variables, "ICESTREAM_JARS_DIR": str(tmp_path)})
    # Nothing that an operator is told to set is overridden by the worker.
    assert not settings.keys() & conf.keys()
    assert not is_local(variables["ICESTREAM_SPARK_MASTER"])
    assert settings["spark.submit.deployMode"] == "client"
    assert settings["spark.scheduler.mode"] == "FAIR"
    assert settings["spark.speculation"] == "false"
    assert "iceberg-spark-runtime" in settings["spark.jars.packages"]


@pytest.mark.integration
def test_spark_understands_what_is_documented_for_yarn(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own reader of commands, given what PySpark gives it and the file that an operator writes."""
    variables, conf = documented()["yarn"]
    defaults = "".join(f"{key} {value}\n" for key, value in conf.items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    settings = spark_settings({**variables, "ICESTREAM_JARS_DIR": str(tmp_path)})
    settings["spark.master"] = variables["ICESTREAM_SPARK_MASTER"]
    jvm: Any = spark.sparkContext._jvm
    command = [word for one in settings.items() for word in ("--conf", "=".join(one))]
    environment = {"SPARK_CONF_DIR": str(tmp_path), "HADOOP_CONF_DIR": str(tmp_path)}
    understood = jvm.org.apache.spark.deploy.SparkSubmitArguments(
        jvm.PythonUtils.toSeq([*command, "pyspark-shell"]), jvm.PythonUtils.toScalaMap(environment)
    )
    assert understood.useRest() is False
    assert (understood.master(), understood.deployMode()) == ("yarn", "client")
    assert understood.principal() == conf["spark.kerberos.principal"]
    assert understood.keytab() == conf["spark.kerberos.keytab"]
    assert understood.isPython()
    read = understood.sparkProperties()
    assert {key: read.apply(key) for key in conf} == conf


def test_the_environment_that_is_shipped_has_the_python_that_executors_start() -> None:
    variables, conf = documented()["yarn"]
    folder = conf["spark.yarn.dist.archives"].partition("#")[2]
    assert variables["PYSPARK_PYTHON"].startswith(f"./{folder}/")


def test_each_spark_has_a_runtime_of_its_own_and_another_one_is_refused() -> None:
    assert own_jars("3.5.9")[0] == "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0"
    assert own_jars("4.0.0")[:2] == (
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
    )
    with pytest.raises(
        ValueError, match=r"PySpark 4\.2\.1 is installed.* 3\.5, 4\.0 and 4\.1: .*clusters\.md"
    ):
        own_jars("4.2.1")


@pytest.mark.parametrize(
    ("stores", "folder", "cause"),
    [
        ("gcs, s4", "", "ICESTREAM_STORES names 's4'; beyond S3 there are: gcs, azure"),
        # Nobody can write there, as in an image.
        ("azure", "/proc/jars", r"azure-storage-file-datalake.*/proc/jars \(ICESTREAM_JARS_DIR\).*STORES="),
    ],
)
def test_a_worker_that_can_not_have_its_jars_says_so_and_ends(
    stores: str,
    folder: str,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ICESTREAM_API_KEY", "k" * 40)
    monkeypatch.setenv("ICESTREAM_STORES", stores)
    monkeypatch.setenv("ICESTREAM_JARS_DIR", folder or str(tmp_path))
    with monkeypatch.context() as without:
        without.setattr("worker.agent.main.create_spark", None)
        assert main() == 1
    assert re.search(cause, caplog.text)
    check_jars({"ICESTREAM_STORES": "gcs", "ICESTREAM_JARS_DIR": str(tmp_path / "new")})


def test_after_an_upgrade_no_jar_of_the_older_version_is_used(tmp_path: Path) -> None:
    before, after = ("store:sdk:1", "store:auth:1"), ("store:sdk:2", "store:auth:1")
    for name in ("sdk-1", "sdk-2", "auth-1", "further-1", "further-2"):  # as Ivy leaves them
        (tmp_path / "jars").mkdir(exist_ok=True)
        (tmp_path / "jars" / f"store_{name}.jar").touch()

    def remember(wanted: tuple[str, ...], *names: str) -> None:
        jars = [f"file://{tmp_path}/jars/store_{name}.jar" for name in names]
        remember_jars(tmp_path, wanted, [*jars, "file:///opt/an-operator/own.jar"])

    def cached(*wanted: str) -> list[str]:
        return [jar.name.removeprefix("store_") for jar in cached_jars(tmp_path, wanted)]

    remember(before, "sdk-1", "auth-1", "further-1")
    assert cached(*before) == ["auth-1.jar", "further-1.jar", "sdk-1.jar"]
    # What else is wanted has to be asked for.
    assert cached(*after) == []
    remember(after, "sdk-2", "auth-1", "further-2")
    assert cached(*after) == ["auth-1.jar", "further-2.jar", "sdk-2.jar"]
    assert cached(*before) == ["auth-1.jar", "further-1.jar", "sdk-1.jar"]
    # An image for two stores serves a worker of one.
    assert cached("store:sdk:2") == ["auth-1.jar", "further-2.jar", "sdk-2.jar"]
    (tmp_path / "jars" / "store_further-2.jar").unlink()
    assert cached(*after) == []


def test_only_a_local_master_is_kept_on_loopback() -> None:
    assert all(map(is_local, ["local", "local[*]", "local[2, 4]"]))
    assert not any(map(is_local, ["local-cluster[1,1,512]", "spark://localhost:7077", "yarn"]))


@pytest.mark.integration
def test_a_package_is_looked_up_once(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    for names in ("java.util", "org.apache.iceberg", "py4j.reflection.TypeUtil"):
        assert attrgetter(names)(jvm) is attrgetter(names)(jvm)


@pytest.mark.integration
def test_a_long_answer_of_java_waits_for_no_acknowledgement(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway

    def is_prompt() -> bool:
        connection = gateway.java_gateway_server.getCallbackClient().getPerThreadConnection()
        return bool(connection.getSocket().getTcpNoDelay())

    with ThreadPoolExecutor(1) as threads:
        assert is_prompt()
        assert threads.submit(is_prompt).result()


@pytest.mark.integration
def test_tasks_on_this_machine_begin_in_a_process_that_has_imported_what_they_need(
    spark: SparkSession,
) -> None:
    asked = ["'worker.jobs.pipeline' in __import__('sys').modules", "__import__('gc').get_freeze_count() > 0"]
    assert spark.sparkContext.parallelize(asked, 2).map(eval).collect() == [True, True]


@pytest.mark.integration
def test_a_local_file_of_hadoops_is_written_by_no_further_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    gateway: Any = spark.sparkContext._gateway
    fs, settings = jvm.org.apache.hadoop.fs, context.hadoopConfiguration()
    files = fs.FileSystem.get(jvm.java.net.URI.create(tmp_path.as_uri()), settings)

    def page_faults_of_children() -> int:
        return int(Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()[8])

    before = page_faults_of_children()
    for name, bits in (("own", 0o600), ("for all", 0o644)):
        path = fs.Path(str(tmp_path / name))
        files.create(path, True).close()
        files.setPermission(path, fs.permission.FsPermission(bits))
        assert (tmp_path / name).stat().st_mode & 0o7777 == bits
    assert page_faults_of_children() == before
    assert (tmp_path / ".own.crc").exists(), "Hadoop's checksums are written as ever"
    # Java knows no more than nine of them.
    folder = fs.Path(str(tmp_path / "sticky"))
    files.mkdirs(folder)
    files.setPermission(folder, fs.permission.FsPermission("1777"))
    assert (tmp_path / "sticky").stat().st_mode & 0o7777 == 0o1777
