.DEFAULT_GOAL := help

RUN := .venv/bin/python -m
READY := .venv/.ready
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
MODEL_ARGS ?=
MATRIX ?=

LOCK := .venv/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

# Tests, demo and benchmarks start hundreds of programs: each would compile the package anew if that were not kept.
export PYTHONDONTWRITEBYTECODE :=

SPARKS := 3.5 4.0 4.1 4.2

BASE ?= HEAD
WHAT ?=

CHECKS := types house lint
TWO_AT_ONCE = $(MAKE) --no-print-directory --jobs=2 --output-sync

.PHONY: help setup demo check test matrix bench pairs chaos docs values screenshots lock wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv and install everything the tests need, system packages included where allowed

$(READY): pyproject.toml requirements/build.txt requirements/dev.txt tools/setup.sh
	tools/setup.sh
	@touch $@

demo: ## Kafka, Spark and SQLite with kill -9 in between, audited; needs Python and Java alone (DEMO_ARGS passes through)
	@$(or $(PYTHON),python3) tools/demo.py $(DEMO_ARGS)

check: $(READY) ## Lint, formatting, types and the house rules: no servers, under a minute
	@$(TWO_AT_ONCE) $(CHECKS)

.PHONY: $(CHECKS) classes collected
lint:
	$(RUN) ruff check
	$(RUN) ruff format --check

types:
	$(RUN) mypy --strict

house:
	$(RUN) pytest -q tests/house

classes: # or else each start of Spark in a test takes longer
	-$(RUN) tools.spark_classes

collected: # or else each of the workers compiles all tests, and a test that cannot be imported is known late
	$(RUN) pytest -qq --collect-only --ignore=tests/house > /dev/null

test: $(READY) ## Everything: check, then all tests on real servers (PYTEST_ARGS="-k ledger -x" passes through)
	@$(TWO_AT_ONCE) $(CHECKS) classes collected
	$(RUN) pytest -n 6 --dist worksteal --ignore=tests/house $(PYTEST_ARGS)

matrix: $(READY) ## The tests of Spark on each version that is supported, an hour (MATRIX="3.5 4.2" picks, PYTHON=python3.12)
	MATRIX="$(MATRIX)" PYTHON="$(PYTHON)" $(RUN) tools.spark_matrix $(PYTEST_ARGS)

.PHONY: model
model: $(READY) ## Check the protocol's TLA+ model, in docs/model (MODEL_ARGS="--mutants --deep" passes through)
	$(RUN) tests.model $(MODEL_ARGS)

bench: $(READY) ## Measure the ledger against doing without it (BENCH_ARGS passes through)
	$(RUN) benchmarks $(BENCH_ARGS)

pairs: $(READY) ## This tree against an older commit, in turns (BASE=commit, WHAT="one sink")
	$(RUN) benchmarks.pairs $(BASE) $(WHAT)

chaos: $(READY) ## The long tests: kill, freeze and cut real servers over and over (PYTEST_ARGS passes through)
	SCHEDULES=100000 $(RUN) pytest tests/simulation -s -o faulthandler_timeout=1500
	$(RUN) pytest -m hypothesis --hypothesis-profile=chaos --ignore=tests/house
	$(RUN) pytest -m chaos -s -o faulthandler_timeout=1500 $(PYTEST_ARGS)

docs: $(READY) ## Build the documentation as a site, in build/site
	$(RUN) tools.commands
	.venv/bin/zensical build --clean --strict

values: $(READY) ## Ask the databases which JSON values go into which columns, and write it into docs/tables.md
	$(RUN) tools.matrix

screenshots: $(READY) ## Take the pictures of the dashboard in docs/images anew; takes minutes
	$(RUN) tools.screenshots

lock: $(READY) ## Pin the newest allowed versions of all Python packages, with hashes, in requirements/
	$(LOCK) --upgrade --extra dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --upgrade --constraint requirements/dev.txt --output-file requirements/build.txt requirements/build.in
	$(LOCK) --upgrade --constraint requirements/dev.txt --extra spark --output-file requirements/demo.txt pyproject.toml requirements/demo.in
	for version in $(SPARKS); do echo "pyspark==$$version.*" | \
		$(LOCK) --upgrade --output-file requirements/spark-$$version.txt - || exit; done

wheel: $(READY) ## Build the wheel into dist/
	$(RUN) hatchling build -t wheel -d dist

clean: ## Remove what was built and cached; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests demo benchmarks examples tools -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
