# Two commands do everything on a fresh machine: `make demo` and `make test`.
# The rest: `make lint`, `make bench`, `make torture` (an hour of faults), `make lock`, `make clean`.
# Another Python: `make test PYTHON=python3.13`; add `VENV=.venv-3.13` to keep the environment of the first.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The stamp is named after the Python that the environment was made with: another one makes it anew.
READY := $(VENV)/.ready-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
# Penstock is compiled once, not by each of the hundreds of processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_WORKERS ?= 3
# Databases of tests live in memory where there is room: they are thrown away, and a disk is a sixth of their time.
TEST_TMP := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 6000000 ] 2>/dev/null && echo /dev/shm || echo $${TMPDIR:-/tmp})

.PHONY: setup demo test lint bench torture lock clean

setup: $(READY)

# Debian ships Python without the venv module's wheels; install them when they are missing.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -qy $(notdir $(PYTHON))-venv; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

test: lint
	TMPDIR=$(TEST_TMP) $(BIN)/pytest -n $(PYTEST_WORKERS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Another size or section: make bench BENCH='main peers --quick'
bench: setup
	$(BIN)/python -m bench $(BENCH)

torture: setup
	$(BIN)/python -m tests.torture --db sqlite --seconds 1200
	$(BIN)/python -m tests.torture --db postgresql --seconds 1200
	$(BIN)/python -m tests.torture --db mariadb --seconds 1200
	$(BIN)/python -m tests.torture.schedules --seeds 500
	$(BIN)/python -m tests.torture.idempotency --duplicates 2000

lock: setup
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --generate-hashes --all-extras --group dev --no-header --no-annotate --upgrade -q pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache demo
