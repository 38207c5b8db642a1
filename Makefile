# Every target sets up what it needs in .venv first, and again only when the files it is made from have changed.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow test-all lint format bench bench-all experiments clean

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
DEMO := .venv/.demo
DEV := .venv/.dev
# Build isolation is off so that the pinned build tools are used, for truenorm and for packages without wheels.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-input --no-build-isolation -c constraints.txt
NATIVE := $(wildcard src/truenorm/native/*)
BUILD_TOOLS := setuptools scikit-build-core nanobind cmake ninja

# The compiled part only makes things faster: without it there is one visible line, and everything works.
WARN = @$(BIN)/python -c "import truenorm._native" 2>/dev/null || \
	echo "WARNING: the compiled kernels were not built; using NumPy instead." \
	"To see why: $(BIN)/pip install -v --no-build-isolation --no-deps -e ." >&2

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## Make .venv with everything that developers need

$(DEMO): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@rm -f $@
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || \
		{ echo "ERROR: truenorm needs Python 3.11 or newer; $(PYTHON) is not (set PYTHON=...)." >&2; exit 1; }
	@$(PYTHON) -c "import venv, ensurepip" 2>/dev/null || \
		{ echo "ERROR: $(PYTHON) has no venv module (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up .venv (1/2): build tools ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) $(BUILD_TOOLS)
	@echo "Setting up .venv (2/2): compiling and installing truenorm ..."
	@$(PIP) -e '.[lab]'
	@touch $@

# The demo needs none of this.
$(DEV): $(DEMO)
	@echo "Setting up .venv: torch, test tools, linters ..."
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(DEMO) ## Show what truenorm does
	$(WARN)
	@$(BIN)/truenorm demo

test: $(DEV) ## Run the quick tests
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2

test-slow: $(DEV) ## Run the slow tests and the mutants
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2 -m slow || [ $$? -eq 5 ]  # 5: no test is marked slow
	@$(BIN)/python tools/mutants.py

test-all: test test-slow ## Run all tests

lint: $(DEV) ## Check format, style and types
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

format: $(DEV) ## Format the sources and apply safe fixes
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

bench: $(DEV) ## Measure beside other implementations, in about two minutes
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --quick

# Each command writes its results only when it has all of them. After an interruption run it again: suites that are in
# bench/results.partial.json are not measured again. The other commands take about a minute each.
bench-all: $(DEV) ## Measure everything in fifteen minutes and write it into README and docs; needs a quiet machine
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --record
	@$(BIN)/python -m bench.sweeps --write docs/speed.md
	@$(BIN)/python -m bench.steps --write docs/lab.md
	@$(BIN)/python -m bench.layers --write docs/torch.md
	@rm -f bench/results.partial.json

experiments: $(DEV) ## Run everything that docs/lab.md reports, in about ten minutes
	@$(BIN)/python -m tools.experiments --write docs/lab.md
	@$(BIN)/python -m tools.recordings

clean: ## Remove everything that can be made again
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +
