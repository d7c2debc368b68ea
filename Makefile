# Everything from a fresh clone: each target makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := dev,all

.PHONY: help setup run test test-slow lint bench docs clean

help:
	@echo "make setup      install into .venv"
	@echo "make run        run the default benchmark: digits, class by class, three seeds"
	@echo "make test       run the tests (make test-slow: the long ones too)"
	@echo "make lint       ruff, mypy and import-linter"
	@echo "make bench      measure speed and memory, fill docs/performance.md and docs/scale.md"
	@echo "make docs       build the documentation site in build/site"

setup: $(INSTALLED)

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What nobody imports: tests of others, and what only networks of sentence-transformers need.
UNCOMPILED := /tests?/|/testing/_internal/|/transformers/

# A new pip resolves in half the time; an old one will do. torch goes first and alone: the pin keeps every
# later resolution from taking another build. Byte code is compiled by all cores, which pip does by one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit('acil needs Python 3.11.4 or newer, and this is %d.%d.%d. Give another: \
	make PYTHON=python3.12' % sys.version_info[:3] if sys.version_info < (3, 11, 4) else 0)"
	$(PYTHON) -m venv $(VENV)
	-$(PIP_INSTALL) --upgrade pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e ".[$(EXTRAS)]"
	$(BIN)/python -m compileall -q -j 0 -x "$(UNCOMPILED)" $(VENV)/lib
	@touch $@

run: $(INSTALLED)
	$(BIN)/acil bench run --dataset digits --out runs/digits --force

# One process a core and one thread a process: the matrices in tests are small.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: $(INSTALLED)
	$(PYTEST) -m "not slow"

test-slow: $(INSTALLED)
	$(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks --out docs/performance/benchmarks.json --page docs/performance.md
	$(BIN)/python -m benchmarks.cost --out docs/performance/cost-cpu.json --page docs/scale.md

# Installed only here: nothing else needs it. The tests check examples, links and commands.
DOCS := $(VENV)/.docs

$(DOCS): $(INSTALLED)
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open build/site/index.html, or run $(BIN)/mkdocs serve, which has the search, too."

clean:
	rm -rf $(VENV) build dist
