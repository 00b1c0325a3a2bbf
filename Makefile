# `make demo` and `make test` do their own set-up; a second run finds the stamps and spends no time on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run side by side, each worker with one thread: most of them wait for Python, not for products.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help setup demo test test-fast lint format bench screenshots clean

help:
	@echo "make demo       set up, run the main job on a real model, open the dashboard"
	@echo "make test       set up, run all tests          make test-fast   without the slow ones"
	@echo "make lint       ruff, pyright, import rules    make format      ruff, in place"
	@echo "make bench      benchmarks against the peers   make clean       remove what the others made"

setup: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; found $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "venv failed; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.app: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) for the demo: about 1 GB, a minute or two"
	@$(PIP) -e '.[app]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) for development: about 1.5 GB, a minute or two"
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.app $@

demo: $(VENV)/.app
	@$(BIN)/interp demo $(DEMO)

test: $(VENV)/.dev
	@$(PYTEST) $(TESTS)

test-fast: $(VENV)/.dev
	@$(PYTEST) -m "not slow and not browser" $(TESTS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@PYTHONPATH=app $(BIN)/lint-imports

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/.dev
	@echo "setting up $(VENV) with the peers of the benchmarks: a minute or two"
	@$(PIP) -e '.[dev,bench]'
	@$(PIP) --no-deps 'dictionary-learning==0.1.0'
	@touch $@

# steering-vectors needs an older transformers, so it has an environment of its own.
$(VENV)-peer/.ready: | $(BIN)/python
	@$(PYTHON) -m venv $(VENV)-peer
	@$(VENV)-peer/bin/python -m pip install --disable-pip-version-check --quiet 'steering-vectors==0.12.*' torch
	@touch $@

bench: $(VENV)/.bench $(VENV)-peer/.ready
	@for script in benchmarks/forward.py benchmarks/generate.py benchmarks/load.py benchmarks/record.py benchmarks/store_read.py benchmarks/heads.py benchmarks/patching.py benchmarks/sae.py benchmarks/sae_planted.py benchmarks/uncertainty.py; do $(BIN)/python $$script || exit 1; done
	@$(BIN)/python benchmarks/steering.py --peer-python $(VENV)-peer/bin/python

clean:
	rm -rf $(VENV) $(VENV)-peer build dist runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
