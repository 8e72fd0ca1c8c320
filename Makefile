# Two commands do everything: `make demo` and `make test`. A second call does not reinstall.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Tests run on two processes, a file on one of them; more threads than cores make timings worthless.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test lint types layers pytest slow soak constraints clean

demo: $(VENV)/.installed
	$(BIN)/digrad demo

test: lint types layers pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check src tests examples docs
	$(BIN)/ruff check src tests examples docs

types: $(VENV)/.installed-test
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/.installed-test
	$(BIN)/lint-imports --no-cache

pytest: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

# The long runs, kept out of `make test`, and property tests on examples of their own choice.
slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m "slow or hypothesis" --hypothesis-profile=default

# A thousand runs on three hosts in network namespaces, in each of which something is killed (root; about a day).
soak: $(VENV)/.installed-test
	DIGRAD_SOAK=1000 $(BIN)/python -m pytest -q -n 0 -m slow tests/torch/machines/test_hosts.py -k at_any_moment

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("digrad needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e '.[test,torch]'
	touch $@

# Pin what is installed now, after `pip install -U` of what should move.
constraints: $(VENV)/.installed-test
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV)
