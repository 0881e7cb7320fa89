"""The kinds of jobs, each of the stages plan -> read -> index | lookup -> deletes -> commit."""
