# `make demo` and `make test` work on a machine with nothing but Python 3.11+ (venv and ensurepip
# included): each first makes .venv from the pinned, hashed lock files.

.DEFAULT_GOAL := help
.PHONY: help demo check test full tests lint integration servers bench bench-bookkeeper bench-log bench-spark bench-streams docker-test mutants mutants-map lock clean venv

PY := .venv/bin/python
# What the tests and the demo do must not depend on how the caller's Python is set up.
unexport PYTHONPATH PYTHONHOME DLOG_URL

# A file stays in one worker, so that its tests share their servers. At most three tests that fail
# beside others are tried once more alone, and named: tests/tidy/run.py. Tests wait for disks and
# servers, so there are two workers more than there are cores.
SIDE_BY_SIDE = -n $(WORKERS) -p tests.tidy.schedule
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell expr $(CORES) + 2)
PLUGINS := -p tests.tidy.skip_report -p tests.tidy.ring_times

help:
	@echo 'make demo    the story in under a minute, on the embedded backend'
	@echo 'make check   while you work, minutes: lint, types, and what needs no server, Java or Spark'
	@echo 'make test    lint, types and every promise, with real servers; each skip is named'
	@echo 'make full    before a release, up to two hours: long histories and chaos, and make test again'
	@echo 'make integration   of these, only the ones against real ZooKeeper and bookies'
	@echo 'make servers fetch ZooKeeper and BookKeeper for these (Java 17 and Maven), and say what is missing'
	@echo 'make docker-test   build the images of docker/, start them, run the quickstart against them'
	@echo 'make mutants  plant small bugs at random and show the ones that no test notices'
	@echo 'make mutants-map   record which test runs which lines, as make mutants wants to know'
	@echo 'make lint    ruff, ruff format, mypy --strict'
	@echo 'make bench   the first table of docs/PERFORMANCE.md: logs in files'
	@echo 'make bench-bookkeeper   the second: ledgers on bookies, beside the Java client'
	@echo 'make bench-log   the third: logs on a cluster, beside DistributedLog'
	@echo 'make bench-spark the fourth: Spark over logs, beside memory and its Kafka source'
	@echo 'make bench-streams the fifth: streams of shards, routing and health, hot configuration'
	@echo 'make lock    pin again (needs uv)'
	@echo 'make clean   remove what the others made'

venv:
	@.ci/venv

demo: venv
	@$(PY) -m examples.demo

# Three tiers of tests: tests/tiers.py says which test is in which, docs/TESTING.md what each answers.
check: TIER = check
check: lint tests

test: lint tests

full: TIER = full
full: export DLOG_CHAOS_SECONDS = 120
full: TWICE = --twice
full: DISK = --disk
full: lint tests

lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# tests/ and integration/ in one run: one list of what did not run, one closing line.
# A scratch directory of its own, so that two runs on one machine never meet; kept if it failed.
TIER ?= test
tests: venv
	@scratch=$$($(PY) -m tests.tidy.scratch $(DISK)) && export TMPDIR="$$scratch" && \
	if $(PY) -m tests.tidy.run $(TWICE) --tier $(TIER) $(PLUGINS) --basetemp="$$scratch/t" \
		$(PYTEST_ARGS) -- $(SIDE_BY_SIDE); \
	then rm -rf "$$scratch"; \
	else status=$$?; echo "scratch files: $$scratch" >&2; exit $$status; fi

# One part of `make test`, which starts real servers where Java and Maven are.
integration: override PYTEST_ARGS += integration
integration: tests

# Another part, which wants a Docker daemon on this machine.
docker-test: override PYTEST_ARGS += integration/test_docker.py
docker-test: TIER = full
docker-test: tests

# MUTANTS_ARGS='--seed S --count 300 --rooms writer reader --at-least 0.9'; see docs/TESTING.md.
mutants: venv
	$(PY) -m tests.mutants $(MUTANTS_ARGS)

mutants-map: venv
	$(PY) -m tests.mutants map $(MUTANTS_ARGS)

servers: venv
	$(PY) -m dlog.testing.cluster

bench: venv
	$(PY) -m benchmarks.embedded $(BENCH_ARGS)

bench-bookkeeper: venv
	$(PY) -m benchmarks.bookkeeper $(BENCH_ARGS)

bench-log: venv
	$(PY) -m benchmarks.log $(BENCH_ARGS)

bench-spark: venv
	$(PY) -m benchmarks.spark $(BENCH_ARGS)

bench-streams: venv
	$(PY) -m benchmarks.streams $(BENCH_ARGS)

LOCKING := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate
# No index address goes into the locks: they serve wherever the packages come from.
lock:
	uv pip compile --group build $(LOCKING) -o requirements-build.lock
	uv pip compile pyproject.toml --all-extras --group dev $(LOCKING) -o requirements-dev.lock

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants build dist docker/jars docker/wheels
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
