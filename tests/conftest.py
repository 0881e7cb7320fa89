"""What holds for all tests, whatever starts them."""

import os

from hypothesis import settings

# Tests start many short-lived JVMs on few cores: what the optimising compiler makes there comes too late,
# and costs more than all else. One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
