# Every target first sets up what it needs in .venv, and does so again only when the files that it is made from change.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup remove-unfinished demo test test-slow test-triton mutants test-all lint lint-python lint-cpp lint-page format \
	bench bench-all experiments docs dist test-versions clean

PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
DEMO := .venv/.demo
DEV := .venv/.dev
# Exists while packages are installed. If it is found, the last set-up did not end, and .venv is made anew.
UNFINISHED := .venv/.unfinished
# Build isolation is off so that the pinned build tools are used, for truenorm and for packages without wheels.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-input --no-build-isolation -c constraints.txt
NATIVE := $(shell find src/truenorm/native -type f)
CPP := $(filter %.cpp %.hpp %.inc,$(NATIVE))
BUILD_TOOLS := setuptools scikit-build-core nanobind cmake ninja

# The compiled part only makes things faster: without it there is one visible line, and everything works.
WARN = @$(BIN)/python -c "import truenorm._native" 2>/dev/null || \
	echo "WARNING: the compiled kernels were not built; using NumPy instead." \
	"To see why: $(BIN)/pip install -v --no-build-isolation --no-deps -e ." >&2

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## Make .venv with everything that developers need

ifneq ($(wildcard $(UNFINISHED)),)
$(DEMO): remove-unfinished
endif

remove-unfinished:
	@echo "The last set-up of .venv did not end: starting again."
	@rm -rf .venv

$(DEMO): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@rm -f $@
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || \
		{ echo "ERROR: truenorm needs Python 3.11 or newer; $(PYTHON) is not (set PYTHON=...)." >&2; exit 1; }
	@$(PYTHON) -c "import venv, ensurepip" 2>/dev/null || \
		{ echo "ERROR: $(PYTHON) has no venv module (on Debian: apt install python3-venv)." >&2; exit 1; }
	@mkdir -p .venv && touch $(UNFINISHED)
	@echo "Setting up .venv (1/2): build tools ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) $(BUILD_TOOLS)
	@echo "Setting up .venv (2/2): compiling and installing truenorm ..."
	@$(PIP) -e '.[lab,report]'
	@rm $(UNFINISHED) && touch $@

# The demo needs none of this.
$(DEV): $(DEMO)
	@echo "Setting up .venv: torch, test tools, linters (a few minutes) ..."
	@rm -f $@ && touch $(UNFINISHED)
	@$(PIP) -e '.[dev]'
	@$(PIP) --no-deps -e . -C cmake.define.TRUENORM_TORCH=ON  # now that there is a torch
	@rm $(UNFINISHED) && touch $@

demo: $(DEMO) ## Show what truenorm does, and write a report about it, truenorm-demo.html
	$(WARN)
	@$(BIN)/truenorm demo --report truenorm-demo.html

# Two processes share the cores: threads of NumPy's matrix products would wait for each other.
test test-slow test-triton mutants: export OPENBLAS_NUM_THREADS = 1

test: $(DEV) ## Run the quick tests
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-slow: $(DEV) ## Run the slow tests
	$(WARN)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow || [ $$? -eq 5 ]  # 5: no test is marked slow

# Triton takes 700 MB, and nothing else needs it.
test-triton: $(DEV) ## Run the tests of the kernels in Triton, in its interpreter and its compiler
	@$(PIP) triton
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow tests/torch/test_triton.py

mutants: $(DEV) ## Change the arithmetic in hundreds of places; a test must fail each time
	@$(BIN)/python tools/mutants.py

test-all: test test-slow test-triton mutants ## Run all tests

lint: lint-python lint-cpp lint-page ## Check format, style and types

lint-python: $(DEV)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

lint-cpp: $(DEV)
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

lint-page: $(DEV)
	@tools/lint_page.sh

format: $(DEV) ## Format the sources and apply safe fixes
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix
	@$(BIN)/clang-format -i $(CPP)

bench: $(DEV) ## Measure beside other implementations, in about two minutes
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --quick
	@$(BIN)/python -m bench.map --quick

# Each command writes its results only when it has all of them. After an interruption run it again: suites that are in
# bench/results.partial.json are not measured again. The other commands take about a minute each.
bench-all: $(DEV) ## Measure everything in fifteen minutes and write it into README and docs; needs a quiet machine
	@$(BIN)/python bench/startup.py
	@$(BIN)/python -m bench --record
	@$(BIN)/python -m bench.sweeps --write docs/speed.md
	@$(BIN)/python -m bench.neighbours --write docs/speed.md
	@$(BIN)/python -m bench.calls --write docs/speed.md
	@$(BIN)/python -m bench.steps --write docs/lab.md
	@$(BIN)/python -m bench.layers --write docs/torch.md
	@$(BIN)/python -m bench.compiled --write docs/torch.md
	@$(BIN)/python -m bench.retrofit --write docs/retrofit.md
	@rm -f bench/results.partial.json

experiments: $(DEV) ## Run everything that docs/lab.md and docs/retrofit.md report, in about fifteen minutes
	@$(BIN)/python -m tools.experiments --write docs/lab.md
	@$(BIN)/python -m tools.retrofit_models --write docs/retrofit.md
	@$(BIN)/python -m tools.retrofit_training --write docs/retrofit.md
	@$(BIN)/python -m tools.recordings

# Nothing else needs these packages.
docs: $(DEV) ## Build the documentation site, which works from disk: build/site/index.html
	@$(PIP) zensical mkdocstrings-python
	@$(BIN)/python -m tools.docs_site

# Neither needs .venv: they make environments of their own below build.
dist: ## Build the source archive and the wheels of a release into dist, and test them in empty environments
	@$(PYTHON) -m tools.dist

test-versions: ## Test the wheels in dist with the oldest and newest Python, NumPy and torch; takes 6 GB
	@$(PYTHON) -m tools.versions --write docs/versions.md

clean: ## Remove everything that can be made again
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/results.partial.json
	@find . -name __pycache__ -prune -exec rm -rf {} +
