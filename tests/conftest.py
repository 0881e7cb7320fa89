"""What holds for all tests, whatever starts them."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.class_archive import java_options
from tests.patience import PATIENCE_SECONDS
from tests.progress import Progress

# One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def patient_database() -> Iterator[None]:
    """The control database refuses after seconds that a busy machine may need: who tests that sets others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOCK", "POOL", "ANSWER", "TURN", "IDLE"):
            patch.setattr(f"service.db.database._{name}_SECONDS", int(PATIENCE_SECONDS))
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Progress(config))
