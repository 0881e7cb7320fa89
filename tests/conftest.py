"""What holds for all tests, whatever starts them."""

import os

# Tests start many short-lived JVMs on few cores: what the optimising compiler makes there comes too late,
# and costs more than all else. One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
