.DEFAULT_GOAL := help

RUN := .venv/bin/python -m
READY := .venv/.ready
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=

LOCK := .venv/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

# Tests, demo and benchmarks start hundreds of programs: each would compile the package anew if that were not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo check test bench chaos docs screenshots lock wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv and install everything the tests need, system packages included where allowed

$(READY): pyproject.toml requirements/build.txt requirements/dev.txt tools/setup.sh
	tools/setup.sh
	@touch $@

demo: $(READY) ## Kafka, Spark and SQLite with kill -9 in between, audited (DEMO_ARGS passes through)
	$(RUN) demo $(DEMO_ARGS)

check: $(READY) ## Lint, formatting, types and the house rules: no servers, under a minute
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy --strict
	$(RUN) pytest -q tests/house

test: check ## Everything: check, then all tests on real servers (PYTEST_ARGS="-k ledger -x" passes through)
	$(RUN) pytest -n 4 --dist worksteal $(PYTEST_ARGS)

bench: $(READY) ## Measure the ledger against doing without it (BENCH_ARGS passes through)
	$(RUN) benchmarks $(BENCH_ARGS)

chaos: $(READY) ## The long tests: kill, freeze and cut real servers over and over (PYTEST_ARGS passes through)
	SCHEDULES=100000 $(RUN) pytest tests/simulation -s
	$(RUN) pytest -m chaos -s $(PYTEST_ARGS)

docs: $(READY) ## Build the documentation as a site, in build/site
	$(RUN) tools.commands
	.venv/bin/zensical build --clean --strict

screenshots: $(READY) ## Take the pictures of the dashboard in docs/images anew; takes minutes
	$(RUN) tools.screenshots

lock: $(READY) ## Pin the newest allowed versions of all Python packages, with hashes, in requirements/
	$(LOCK) --upgrade --extra dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --upgrade --constraint requirements/dev.txt --output-file requirements/build.txt requirements/build.in

wheel: $(READY) ## Build the wheel into dist/
	$(RUN) hatchling build -t wheel -d dist

clean: ## Remove what was built and cached; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests demo benchmarks examples tools -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
