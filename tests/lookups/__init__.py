"""Random histories of small tables and their indexes, without a JVM: lookups find what a plain model has.

Where tests/soak has Spark in the loop and seconds for a history, these have milliseconds, so there may be ten
thousand. Tables are real ones, written file by file; indexes are made by the worker's own jobs.
To replay one: `python -c "from tests.lookups.seeds import *; print(run_seed(123))"`.
"""
