# Every command of the project. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test integration lint format bench soak docs wheel clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell command -v python3.11 || command -v python3)

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv from requirements.lock (done once; again when the lock changes)

$(STAMP): requirements.lock pyproject.toml .ci/setup
	@.ci/setup "$(PYTHON)" "$(VENV)"
	@touch $@

demo: setup ## run the retail pipeline, kill it in the middle, restart it, compare
	@$(BIN)/holdfast demo

test: setup ## unit, property, simulation and a few real-Spark tests
	@$(BIN)/python -m pytest -q

integration: setup ## what starts real processes and kills them, a Kafka broker too (its jars come through Maven)
	@$(BIN)/python -m tests.components.jars >/dev/null
	@$(BIN)/python -m pytest -q -m chaos tests/chaos

lint: setup ## ruff and mypy
	@$(BIN)/ruff check src tests bench docs examples
	@$(BIN)/ruff format --check src tests bench docs examples
	@$(BIN)/mypy

format: setup ## let ruff put the code in shape
	@$(BIN)/ruff check --fix-only -q src tests bench docs examples
	@$(BIN)/ruff format -q src tests bench docs examples

bench: setup ## every benchmark with --quick, then one page with all results
	@for name in wave windows state latency restart scale executor_loss ingest topology transform; do \
		$(BIN)/python -m bench.$$name --quick --json bench/results/$$name.json || exit 1; \
	done
	@$(BIN)/python -m bench.report

soak: setup ## 100,000 waves (WAVES), then half an hour of kills (SOAK_MINUTES, SOAK_SEED); nothing may grow
	@$(BIN)/python -m pytest -q -m soak tests/soak

docs: setup ## the documentation as HTML in docs/html
	@$(BIN)/python -m docs.build

wheel: setup ## a wheel in dist/ that works alone
	@rm -rf build dist
	@$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build
	@ls dist

clean: ## remove what the other commands made, but not .venv
	@rm -rf build dist docs/html bench/results .pytest_cache .hypothesis .mypy_cache .ruff_cache spark-warehouse artifacts
	@find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
