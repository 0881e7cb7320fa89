"""The Spark session and catalog of the worker's tests."""

from tests.spark import spark as spark
from tests.worker.conftest import catalog as catalog
