# Two commands do everything: `make demo` and `make test`. A second call does not reinstall.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported; pip would compile all of them, for most of its time.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile -c constraints.txt
# A file of tests runs on one of three processes (two cores, but some tests only wait), each with one thread.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# Tests start a hundred interpreters, which need not all compile the same files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types layers pytest slow soak test-all pytest-without-torch bench docs package constraints clean

demo: $(VENV)/.installed
	$(BIN)/digrad demo

test: lint
	$(MAKE) --jobs=2 pytest layers types

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/ruff check src tests benchmarks examples docs

# Code whose types are right is not looked at again until a file changes.
types: $(VENV)/.types

$(VENV)/.types: $(VENV)/.installed-test $(shell find src -not -path '*/__pycache__*' -not -path '*.egg-info*')
	$(BIN)/pyright --pythonpath $(BIN)/python
	touch $@

layers: $(VENV)/.installed-test
	$(BIN)/lint-imports --no-cache

# The short suite compiles 1 600 programs, each of which runs for a moment: XLA shall be quick. `make slow` compiles as
# users do.
pytest pytest-without-torch: export XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false
pytest pytest-without-torch: export JAX_DISABLE_MOST_OPTIMIZATIONS ?= 1
pytest: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

# The long runs, kept out of `make test`, and property tests on examples of their own choice.
slow: $(VENV)/.installed-slow
	$(BIN)/python -m pytest -q -m "slow or hypothesis" --hypothesis-profile=default

# A thousand runs on hosts in network namespaces, in each of which something is killed (root; half a day).
soak: $(VENV)/.installed-test
	DIGRAD_SOAK=1000 $(BIN)/python -m pytest -q -n 0 -m slow tests/torch/machines/test_soak.py

# The short suite without torch, on each of these interpreters that this machine has.
INTERPRETERS ?= 3.11 3.12 3.13
WITHOUT_TORCH := --ignore=tests/torch --ignore=src/digrad/torch --ignore-glob='*/torch_*.py'
test-all: $(addprefix test-,$(INTERPRETERS))

test-3.%:
	@python=$$(for found in python3.$* $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.$*.*/bin/python; do \
		$$found -c '' 2>/dev/null && echo $$found && break; done); \
	if [ -n "$$python" ]; then $(MAKE) PYTHON=$$python VENV=.venv-3.$* pytest-without-torch; \
	else echo "Python 3.$* is not on this machine: skipped"; fi

pytest-without-torch: $(VENV)/.installed-plain
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow" $(WITHOUT_TORCH)

# Speed and memory, as docs/results/bench shows them: an hour and 12 GB of a machine that does nothing else.
bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

# The site, from docs/ and the docstrings: open docs/_build/html/index.html.
docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html

# Wheel and source distribution in dist/, each installed into an empty environment and tried outside of the checkout.
package: $(VENV)/.installed-build
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	for file in dist/*.whl dist/*.tar.gz; do \
		rm -rf dist/empty && $(PYTHON) -m venv dist/empty \
		&& dist/empty/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt $$file \
		&& dist/empty/bin/digrad --version && (cd dist/empty && bin/digrad demo --out demo) || exit 1; done
	rm -rf dist/empty

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("digrad needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[test,docs,torch]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-build: constraints.txt | $(VENV)/bin/python
	$(INSTALL) build hatchling
	touch $@

$(VENV)/.installed-slow: $(VENV)/.installed-test
	$(INSTALL) -e '.[test,docs,torch,trainers]'
	touch $@

$(VENV)/.installed-plain: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[test,docs]'
	touch $(VENV)/.installed $@

# Pin what is installed now, after `pip install -U` of what should move.
constraints: $(VENV)/.installed-slow
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) $(addprefix .venv-,$(INTERPRETERS)) docs/_build dist
