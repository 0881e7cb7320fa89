"""What holds for all tests, whatever starts them."""

import os

import pytest
from hypothesis import settings

from tests.class_archive import java_options

# One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


class _Failures:
    """Says of each failure at once what a summary says at the end, which a run that is cut off never sees."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = str(crash.message if crash else report.longreprtext).partition("\n")[0]
            terminal.write_line(f"\n{report.when} of {report.nodeid} failed: {cause[:500]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Failures(config))
