"""What holds for all tests, whatever starts them."""

import os

import pytest
from hypothesis import settings

from tests.class_archive import java_options
from tests.progress import Progress

# One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Progress(config))
