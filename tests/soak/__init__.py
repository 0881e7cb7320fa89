"""Random histories of small tables, compared with a model of their visible rows.

`make soak ARGS="--seed 123"` replays one, `make soak ARGS="--minutes 60"` looks for ones that fail.
"""
