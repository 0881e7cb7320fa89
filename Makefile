# Icestream's commands. `make demo` and `make test` are all one needs; both install first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
LOCK := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url
# Where it is set, each of the many processes of the tests would compile all that it imports: two seconds a worker.
unexport PYTHONDONTWRITEBYTECODE
export ICESTREAM_JARS_DIR ?= $(HOME)/.cache/icestream/ivy

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: install
install: $(VENV)/installed $(VENV)/jars ## Install everything into .venv (does nothing when nothing changed)

$(VENV)/installed: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1)' || {
		echo "Icestream needs Python 3.11 or newer: name one, as in make $(MAKECMDGOALS) PYTHON=python3.12" >&2
		exit 1
	}
	PYTHON=$(PYTHON) scripts/install_system_packages venv
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	echo "Installing the Python packages ..."
	$(PIP) install --quiet --require-hashes -r requirements/uv.txt
	# uv is five times as fast; pip knows settings that uv doesn't, such as a mirror in pip.conf.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r requirements/dev.txt ||
		$(PIP) install --quiet --require-hashes --no-deps -r requirements/dev.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/jars: $(VENV)/installed worker/spark/jars.py scripts/fetch_jars
	@scripts/install_system_packages java
	echo "Fetching the JARs of Iceberg and JDBC, unless they are here ..."
	said=$$($(BIN)/python scripts/fetch_jars 2>&1) || { echo "$$said" >&2; exit 1; }
	touch $@

# What the examples of docs/ run in: an environment for each, since their packages are at odds with those of .venv.
build/airflow/installed build/dagster/installed: build/%/installed: requirements/%.txt | $(VENV)/installed
	@echo "Installing $* for its example ..."
	rm -rf build/$*
	$(BIN)/python -m venv build/$*
	$(BIN)/uv pip install --quiet --python build/$*/bin/python --require-hashes --no-deps -r $< ||
		build/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --no-deps -r $<
	touch $@

# PySpark of an older version, which goes before that of .venv: all else is the same.
SPARKS := 3.5 4.0
$(SPARKS:%=build/spark-%/installed): build/spark-%/installed: requirements/spark-%.txt | $(VENV)/installed
	@echo "Installing PySpark $* ..."
	rm -rf build/spark-$*
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target build/spark-$* --require-hashes --no-deps -r $< ||
		$(PIP) install --quiet --target build/spark-$* --require-hashes --no-deps -r $<
	PYTHONPATH=build/spark-$* $(BIN)/python scripts/fetch_jars
	touch $@

.PHONY: demo
demo: install ## Show Icestream at work on a sample table, in the browser
	@exec $(BIN)/icestream demo $(ARGS)

# Without it the tests only take longer.
$(VENV)/spark-classes.jsa: $(VENV)/jars tests/class_archive.py
	@echo "Keeping the classes of Spark, which the tests start many times ..."
	$(BIN)/python -m tests.class_archive >$(VENV)/spark-classes.log 2>&1 || { cat $(VENV)/spark-classes.log >&2; exit 1; }

# Else each of the four processes of the first run would compile all modules, the same ones at the same time.
# What can not be imported is told by the tests.
$(VENV)/compiled: $(VENV)/installed
	@$(BIN)/pytest --collect-only --numprocesses 0 -p no:cacheprovider -qq >/dev/null 2>&1 || true
	touch $@

# With `--dist` of pyproject.toml.
# Four, since on two cores two of them wait often for what they started.
PYTEST := $(BIN)/pytest --numprocesses 4

.PHONY: test
test: lint programs ## Run the linters, and each rule, refusal, fault and route once (ARGS="-k name" to choose)
	@$(PYTEST) -m "not thorough" $(ARGS)

.PHONY: thorough
thorough: programs ## Run what is like the tests of `make test`: other versions and formats, the other database, combinations
	@$(PYTEST) -m "thorough and not exhaustive" $(ARGS)

.PHONY: test-all
test-all: ## Run all tests: `make test`, then `make thorough`, then `make exhaustive`
	@$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory thorough
	$(MAKE) --no-print-directory exhaustive

.PHONY: exhaustive
exhaustive fault-figures: export ICESTREAM_STORES := gcs,azure
exhaustive: emulators build/airflow/installed build/dagster/installed $(SPARKS:%=build/spark-%/installed) ## Run the rest: many histories, repeats of faults of real processes, emulators of stores, orchestrators, other Sparks
	@$(PYTEST) -m "exhaustive" $(ARGS)
	# What is shortest of `make test-spark`, unless tests were chosen.
	for spark in $(if $(ARGS),,$(SPARKS)); do
		$(MAKE) --no-print-directory test-spark SPARK=$$spark ARGS="-k 'executors or keeps_the_visible_rows or become_one or which_expiry'"
	done

# An attached cluster, what readers see, every kind of job, Iceberg's actions, and sessions that are vended.
SPARK_TESTS := tests/faults/test_spark_cluster.py tests/worker/erasure \
	$(addprefix tests/worker/exactness/test_,readers.py shared_vectors.py) \
	tests/worker/spark/test_sessions.py \
	$(addprefix tests/worker/jobs/test_,pipeline.py indexing.py verification.py report_duplicates.py writing.py \
	publishing.py publishing_clearing.py orphan_removal.py snapshot_expiry.py data_file_rewriting.py \
	manifest_rewriting.py position_delete_rewriting.py)
.PHONY: test-spark
test-spark: $(if $(SPARK),build/spark-$(SPARK)/installed) ## Run the tests of jobs with another Spark: SPARK=3.5 or SPARK=4.0
	@test -n "$(SPARK)" || { echo "Name a version: make test-spark SPARK=3.5, one of $(SPARKS)" >&2; exit 1; }
	PYTHONPATH=$(CURDIR)/build/spark-$(SPARK) $(PYTEST) -m "not exhaustive" $(SPARK_TESTS) $(ARGS)

.PHONY: fault-figures
fault-figures: emulators ## Run every test of a fault and count what was injected, lost and followed, into docs/faults.md
	@$(BIN)/python -m tests.faults.figures $(ARGS)

.PHONY: emulators
emulators: programs
	@scripts/install_system_packages npm
	scripts/install_azurite
	$(BIN)/python scripts/fetch_jars

# What tests start.
.PHONY: programs
programs: install
	@$(MAKE) --silent --jobs 2 $(VENV)/spark-classes.jsa $(VENV)/compiled
	scripts/install_system_packages java jdk maven postgresql
	# Debian has it, and not every system: the other one takes six times as long for a page.
	scripts/install_system_packages chromium-headless-shell >/dev/null 2>&1 || scripts/install_system_packages chromium
	scripts/install_helm >/dev/null

.PHONY: fast
fast: install ## Run the tests without Spark, PostgreSQL, Flink or a browser
	@$(BIN)/pytest -m "not integration" $(ARGS)

.PHONY: lint
lint: install ## Check style, types and the wall between service and worker
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "Checking types (the first time, this takes minutes) ..."
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: install ## Format the code
	@$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: openapi
openapi: install ## Write openapi/openapi.json anew
	@# Not at once: the command reads the document that is there.
	@$(BIN)/icestream openapi > openapi/openapi.json.new
	@mv openapi/openapi.json.new openapi/openapi.json

.PHONY: release-contract
release-contract: install ## Make openapi/openapi.json the contract that later versions must keep
	@$(BIN)/python -m tests.contracts

.PHONY: reference
reference: install ## Write docs/settings.md, cli.md and metrics.md anew after a change of what they list
	@$(BIN)/python -m tests.reference_pages

.PHONY: conformance
conformance: install ## Run the suite for readers with all four, for docs/conformance.md (ARGS="duckdb" for one)
	@scripts/install_system_packages java jdk maven
	$(BIN)/python -m tests.conformance.seen $(ARGS)

.PHONY: bench
bench: install ## Measure it all beside its alternatives, for docs/benchmarks.md (ARGS="--rows 50000000")
	@$(BIN)/python -m tests.benchmarks $(ARGS)

.PHONY: bench-queue
bench-queue: install ## Measure the queue with 50 workers, over HTTP too, and the polling of 10,000 tables, for docs/benchmarks.md
	@scripts/install_system_packages postgresql
	$(BIN)/python -m tests.benchmarks.queue_load $(ARGS)

.PHONY: bench-pages
bench-pages: install ## Measure the pages of 10,000 tables and a million jobs, for docs/benchmarks.md
	@scripts/install_system_packages postgresql
	$(BIN)/python -m tests.benchmarks.pages $(ARGS)

.PHONY: bench-fleet
bench-fleet: install ## Find how many checkpoints a second fleets of tables hold, for docs/benchmarks.md
	@scripts/install_system_packages jdk maven
	$(BIN)/python -m tests.benchmarks.fleet $(ARGS)

.PHONY: bench-workers
bench-workers: install ## Find how work grows with workers and executors whose store is far away, for docs/benchmarks.md
	@scripts/install_system_packages jdk maven
	$(BIN)/python -m tests.benchmarks.fleet_workers $(ARGS)

.PHONY: bench-duplicates
bench-duplicates: install ## Measure reports of duplicates beside DuckDB, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.duplicates $(ARGS)

.PHONY: bench-readers
bench-readers: install ## Fit what a read of Spark and DuckDB costs to files, rows and deletes, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.reader_cost $(ARGS)

.PHONY: bench-maintenance
bench-maintenance: install ## Simulate policies over weeks, and read a maintained table beside a new one, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.maintenance
	@$(BIN)/python -m tests.benchmarks.maintained_reads $(ARGS)

.PHONY: bench-store
bench-store: install ## Count and time the requests of lookups and jobs in a store that answers after 20 ms, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.object_store $(ARGS)

.PHONY: bench-vectors
bench-vectors: install ## Measure conversions that touch 100,000 data files, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.vector_files $(ARGS)

.PHONY: bench-lookups
bench-lookups: install ## Measure lookup servers over HTTP, beside DuckDB, PyIceberg and Spark, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.lookups $(ARGS)

.PHONY: bench-writes
bench-writes: install ## Measure writes by key over HTTP, beside MERGE of Spark and upsert of PyIceberg, for docs/benchmarks.md
	@$(BIN)/python -m tests.benchmarks.writes $(ARGS)

.PHONY: bench-publish
bench-publish: install ## Measure how long what Flink stages waits for its publication, for docs/benchmarks.md
	@scripts/install_system_packages jdk maven
	$(BIN)/python -m tests.benchmarks.publish $(ARGS)

.PHONY: soak
soak: install ## Compare random histories of tables with a model (ARGS="--minutes 60", ARGS="--seed 123")
	@scripts/install_system_packages java
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: mutants
mutants: install $(VENV)/spark-classes.jsa ## Make small mistakes in the code, and see that the tests notice (ARGS="plan commit", ARGS="--share 0.2")
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: screenshots
screenshots: install ## Take a picture of every page, in both themes and two widths; and what documents show
	@scripts/install_system_packages java chromium
	$(BIN)/python -m tests.browser.screenshots build/screenshots
	$(BIN)/python -m tests.demo_output

.PHONY: lock
lock: $(VENV)/installed ## Lock the Python packages anew (ARGS="--upgrade" for newer versions)
	@$(BIN)/$(LOCK) --all-extras --output-file requirements/dev.txt $(ARGS)
	$(BIN)/$(LOCK) --extra service --constraint requirements/dev.txt --output-file requirements/service.txt
	$(BIN)/$(LOCK) --extra worker --constraint requirements/dev.txt --output-file requirements/worker.txt
	# The client beside an orchestrator, whose own packages decide.
	$(BIN)/$(LOCK) requirements/airflow.in --output-file requirements/airflow.txt $(ARGS)
	$(BIN)/$(LOCK) requirements/dagster.in --output-file requirements/dagster.txt $(ARGS)
	for spark in $(SPARKS); do
		$(BIN)/$(subst pyproject.toml,requirements/spark-$$spark.in,$(LOCK)) --output-file requirements/spark-$$spark.txt $(ARGS)
	done

.PHONY: clean
clean: ## Remove what the other commands made
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
