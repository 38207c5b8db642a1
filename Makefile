# Every target sets up .venv first, and again only when what it is made from changed.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow test-all lint format bench bench-all experiments clean

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
STAMP := .venv/.stamp
TORCH := .venv/.torch
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-input -c constraints.txt
NATIVE := $(wildcard src/truenorm/native/*)
BUILD_TOOLS := scikit-build-core nanobind cmake ninja

# One visible line where the compiled part is missing; everything works without it.
WARN = @$(BIN)/python -c "import truenorm._native" 2>/dev/null || \
	echo "WARNING: no truenorm._native, going on in pure Python; why: $(BIN)/pip install -v --no-build-isolation --no-deps -e ." >&2

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with truenorm (editable) and the pinned tools

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@rm -f $@
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || \
		{ echo "ERROR: truenorm needs Python 3.11 or newer; $(PYTHON) is not (set PYTHON=...)." >&2; exit 1; }
	@$(PYTHON) -c "import venv, ensurepip" 2>/dev/null || \
		{ echo "ERROR: $(PYTHON) has no venv module (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up .venv: the pinned build tools ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) $(BUILD_TOOLS)
	@echo "Setting up .venv: truenorm and the pinned developer tools ..."
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

# What truenorm is compared with, in tests and benchmarks. The demo does not wait for it.
$(TORCH): $(STAMP)
	@echo "Setting up .venv: the pinned torch ..."
	@$(PIP) --no-build-isolation -e '.[torch]'
	@touch $@

demo: $(STAMP) ## Show what truenorm does
	$(WARN)
	@$(BIN)/truenorm demo

test: $(TORCH) ## Run the quick tests
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2

test-slow: $(TORCH) ## Run the slow tests and the mutants
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2 -m slow || [ $$? -eq 5 ]  # 5: no test is marked slow
	@$(BIN)/python tests/mutants.py

test-all: test test-slow ## Run all tests

lint: $(TORCH) ## Check format, style and types
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

format: $(STAMP) ## Format the sources and apply safe fixes
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

bench: $(TORCH) ## Measure beside the peers, in about two minutes
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --quick

bench-all: $(TORCH) ## Measure everything in ten minutes, and write it into README and docs; leave the machine alone
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --json bench/results.json
	@$(BIN)/python -m bench.table bench/results.json --write README.md
	@$(BIN)/python -m bench.sweeps --write docs/speed.md
	@$(BIN)/python -m bench.steps --write docs/lab.md
	@$(BIN)/python -m bench.layers --write docs/torch.md

experiments: $(STAMP) ## Run everything that docs/lab.md reports, in about ten minutes
	@$(BIN)/python -m bench.experiments --write docs/lab.md
	@$(BIN)/python -m bench.recordings

clean: ## Remove everything that can be made again
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +
