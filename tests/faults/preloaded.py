"""What the test builds of the service and of a worker without Spark import, for tests.faults.forked.

Imported by no test: it changes what it imports.
"""

from tests.faults import service_build, stub_worker

service_build.load()
stub_worker.load()
