# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick check check-ci check-third check-slow check-long check-replication gpu lint docs golden notebooks dist
.DEFAULT_GOAL := test

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,entities,cluster,trainers,docs]'
	touch $@

demo: .venv/installed
	$(BIN)/heldin demo

# One thread for each of the two workers. Byte code is kept, whatever the environment says: it halves the start.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# Each worker begins with one half of the tests in their order: most of what modules share is made once.
test: .venv/installed
	$(PYTEST) -n 2 --dist worksteal -p tests.times -m "not slow and not gpu"

# The tests of the packages that differ from SINCE, and of the packages above them.
SINCE ?= HEAD
quick: .venv/installed
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m tests.quick $(SINCE) -n 2 --dist worksteal -m "not slow and not gpu"

check: test check-slow check-long check-replication check-plugins

# Of the slow suites what fits into CI: statistics, bounds, accounting and everything that they rest on.
CI_SUITES := $(addprefix tests/,attacks audit bounds canaries corpus coverage defenses models)
check-ci: .venv/installed
	$(PYTEST) -n 2 --dist worksteal -p tests.times -m "slow and not long and not gpu" $(CI_SUITES)

# A third of the other slow suites (THIRD=1, 2 or 3; the commit chooses), as far as MINUTES allow: tests/thirds.py.
THIRD ?= $(shell echo $$((0x$$(git rev-parse --short=7 HEAD) % 3 + 1)))
MINUTES ?= 25
check-third: .venv/installed
	@echo "slow suites: third $(THIRD) of 3; again with: make check-third THIRD=$(THIRD)"
	$(PYTEST) -n 2 --dist worksteal -p tests.times -p tests.thirds --third $(THIRD) --minutes $(MINUTES) -rs \
		-m "slow and not long and not gpu" tests $(addprefix --ignore=,$(CI_SUITES))

check-slow: .venv/installed
	$(PYTEST) -n 2 --dist worksteal -p tests.times -m "slow and not long and not gpu"

check-long: .venv/installed
	$(PYTEST) -n 2 --dist worksteal -p tests.times -m "long and not gpu"

# The replications of papers, which no other target collects.
check-replication: .venv/installed
	$(PYTEST) -n 2 --dist worksteal -p tests.times -m "not gpu" tests/replication

# The example packages, installed as a user would: their own tests, and their suites.
PLUGINS := build/plugins
check-plugins: .venv/installed
	rm -rf $(PLUGINS)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --no-index --target $(PLUGINS) examples/plugins/*/
	PYTHONPATH=$(PLUGINS) $(BIN)/python -m pytest -q --noconftest -p no:cacheprovider examples/plugins
	PYTHONPATH=$(PLUGINS) HELDIN_CACHE_DIR=$(PLUGINS)/cache $(BIN)/heldin plugins --check

# On a machine with a GPU; says so and fails where there is none.
gpu: .venv/installed
	$(BIN)/python benchmarks/gpu.py --check
	$(BIN)/python -m pytest tests/gpu -m gpu; tests=$$?; $(BIN)/python benchmarks/gpu.py && exit $$tests

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/plugins/*/heldin_*.py
	$(BIN)/lint-imports

# The approved texts of reports, after a change of words: read the difference before you commit it.
golden: .venv/installed
	$(BIN)/python -m tests.reports.golden_pages
	$(BIN)/python docs/made_pages.py
	$(BIN)/python docs/config_pages.py
	$(BIN)/python docs/architecture.py
	HELDIN_APPROVE=1 $(BIN)/python -m pytest tests/reports -m "not slow and not gpu"

# The outputs that the notebooks of the documentation show: five minutes.
notebooks: .venv/installed
	HELDIN_APPROVE=1 $(BIN)/python -m pytest tests/docs/test_notebooks.py

docs: .venv/installed
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build

# The files for a package index: built in an environment of their own, and compared with the packages here.
dist: .venv/installed
	$(PYTHON) -m venv .venv/dist
	.venv/dist/bin/python -m pip install --quiet build==1.6.1 twine==7.0.0
	rm -rf dist build
	.venv/dist/bin/python -m build --outdir dist
	.venv/dist/bin/python -m twine check --strict dist/*
	$(BIN)/python -m tests.distributions dist
