"""The Spark session, and the tasks of a stage: threads of the driver, or a job on Spark."""
