"""Bounds of the worker so small that tables of a few rows exceed them."""

SMALL_BOUNDS = {
    "worker.io.file_formats.BATCH_ROWS": 3,
    "worker.keys.read.BATCH_ROWS": 3,
    "worker.index.run_files.ROW_GROUP_ROWS": 2,
    "worker.lookup.index_lookup._READ_ROWS": 5,
    "worker.lookup.index_lookup._TASK_ROWS": 4,
    "worker.index.build.RUN_ROWS": 8,
    "worker.index.build.MIN_TASK_ROWS": 8,
    "worker.index.build.COMMIT_ROWS": 20,
    "worker.index.commit.DICTIONARY_FILES": 2,
    "worker.index.compaction.TASK_ROWS": 8,
    "worker.index.compaction.FILE_ROWS": 4,
    "worker.index.compaction.RUNS_KEPT": 2,
    "worker.deletes.stage.FILES_PER_DELETES_TASK": 2,
    "worker.deletes.stage.MEMORY_POSITIONS": 4,
    "worker.lookup.positions.MEMORY_POSITIONS": 4,
    "worker.deletes.write._ROW_GROUP_ROWS": 2,
}
