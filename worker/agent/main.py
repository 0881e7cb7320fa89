"""The worker process: reads its settings, starts Spark, and runs jobs until it is asked to stop."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from telemetry.logs import LogFormat, add_ids, add_process_ids, configure_logs
from telemetry.traces import start_traces, stop_traces
from worker.agent.reporter import RETRY_SECONDS
from worker.agent.worker import Worker, end_at_once, run_workers
from worker.contract.control_plane import ControlPlane, ControlPlaneError, RefusedKeyError
from worker.process.redaction import Redaction
from worker.process.slots import Slot, are_busy
from worker.spark.executors import UnfitExecutorsError, check_executors
from worker.spark.jars import check_jars
from worker.spark.jvm_watch import JvmWatch
from worker.spark.session import ClusterError, create_spark
from worker.spark.tasks import TaskRunner

log = logging.getLogger("icestream.worker")
START_SECONDS = 60.0
"""For the service to answer the first call: both may be started at the same time."""
STOP_SECONDS = 20.0  # for all that is left to do once the process is asked to stop


class WorkerSettings(BaseSettings):
    """From the environment: ICESTREAM_URL, ICESTREAM_API_KEY, and so on."""

    model_config = SettingsConfigDict(env_prefix="ICESTREAM_", use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:8000"
    """The service."""
    api_key: str
    """A key of the role `worker`."""
    spark_master: str = "local[*]"
    """Any Spark master."""
    worker_name: str = socket.gethostname()
    """How the pages and the jobs call this worker."""
    worker_slots: int = Field(1, ge=1, le=16)
    """Jobs that run at a time, each as a worker of its own for the service; they share a Spark session."""
    log_format: LogFormat = "text"
    """How each line of the log is written: `text`, or `json` for an object each line."""
    alive_file: Path | None = None
    """A file that is touched once Spark has started, and then every minute at least: for probes."""


def _end_in_time(runner: TaskRunner) -> None:
    """Whoever asked this process to stop does not wait for ever, even if the service or Spark's JVM hangs."""

    told = f"Something still hangs {STOP_SECONDS:.0f} s after the signal"
    timer = threading.Timer(STOP_SECONDS, end_at_once, [runner, told])
    timer.daemon = True
    timer.start()


def _read_settings() -> WorkerSettings:
    """From the environment. Ends the process for what is missing or not valid there."""
    try:
        return WorkerSettings()  # the key comes from the environment
    except ValidationError as error:
        first = error.errors()[0]
        setting = f"ICESTREAM_{str(first['loc'][0]).upper()}"
        if first["type"] == "missing":
            _refuse(f"{setting} is not set: a worker needs a key of the role worker, which an admin makes.")
        _refuse(f"{setting} is not valid: {first['msg']}.")


def _await_service(control_plane: ControlPlane, url: str) -> None:
    """Until it takes the key. Ends the process if it does not, or does not answer for a minute."""
    told, deadline = False, time.monotonic() + START_SECONDS
    while True:
        try:
            return control_plane.check_key()
        except RefusedKeyError as error:
            _refuse(f"ICESTREAM_API_KEY is no key of a worker at {url}: {error}")
        except ControlPlaneError as error:
            if time.monotonic() >= deadline:
                _refuse(f"ICESTREAM_URL is {url}, where no service is: {error}")
            if not told:
                log.warning("%s: %s; trying again for %.0f s", url, error, START_SECONDS)
                told = True
        time.sleep(RETRY_SECONDS)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"{' '.join(sentence.split()).rstrip('.')}.\n")
    raise SystemExit(2)


def main() -> int:
    settings = _read_settings()
    configure_logs(settings.log_format)
    start_traces("icestream-worker")
    slots = [Slot(number, settings.worker_slots) for number in range(1, settings.worker_slots + 1)]
    name_lines = add_process_ids if len(slots) == 1 else add_ids
    try:
        control_planes = [ControlPlane(settings.url, settings.api_key, name_lines) for _ in slots]
    except ControlPlaneError as error:
        _refuse(f"ICESTREAM_URL is {settings.url}: {error}")
    if settings.alive_file is not None:
        # What an earlier process left says nothing about this one.
        settings.alive_file.unlink(missing_ok=True)
    try:
        check_jars(os.environ)
    except ValueError as error:
        log.error("%s", error)
        return 1
    # Spark takes seconds and memory to start.
    _await_service(control_planes[0], settings.url)
    try:
        spark = create_spark(settings.spark_master, structured_logs=settings.log_format == "json")
    except ClusterError as error:
        log.error("%s", error)
        with suppress(ControlPlaneError):  # the log has it
            control_planes[0].register(settings.worker_name, str(error))
        return 1
    runner = TaskRunner(spark)
    try:
        check_executors(runner)
    except UnfitExecutorsError as error:
        log.error("%s", error)
        with suppress(ControlPlaneError):  # the log has it
            control_planes[0].register(settings.worker_name, str(error))
        spark.stop()
        return 1
    redaction = Redaction()
    workers = [
        Worker(
            control_plane, TaskRunner(spark, slot=slot), settings.alive_file, slot=slot, redaction=redaction
        )
        for slot, control_plane in zip(slots, control_planes, strict=True)
    ]

    def stop(number: int, frame: FrameType | None) -> None:
        _end_in_time(runner)
        for worker in workers:
            worker.stop(number, frame)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    log.info("Ready: Spark %s on %s", spark.version, settings.spark_master)
    try:
        with JvmWatch(runner):
            run_workers(workers, [slot.name(settings.worker_name) for slot in slots])
    finally:
        for control_plane in control_planes:
            control_plane.close()
        stop_traces()
        code = 0 if runner.is_usable else 1
        if code == 0:
            spark.stop()
    others = threading.enumerate()[1:]
    if are_busy() or any(thread.is_alive() and not thread.daemon for thread in others):
        # A task that nobody waits for any more, such as a read that hangs, must not keep the process.
        logging.shutdown()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
