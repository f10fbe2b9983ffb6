# Everything runs in a virtual environment of its own, made on first use: `make demo` and `make test`
# work on a machine that has Python 3.10 or newer, make and a C compiler.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# The demo needs a fraction of it: where the whole is not there yet, it gets an environment of its own.
DEMO := $(if $(wildcard $(VENV)/installed),$(VENV),build/demo)
KERNEL := $(wildcard src/boltdp/kernel/*.[ch])

.PHONY: check docs reproduce reproduce-quick demo demo-postgres wheel test test-slow test-wheel explore fuzz mutants lint format bench bench-postgres bench-spark bench-whitebox clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train on real health data and draw accuracy against epsilon"
	@echo "make demo-postgres   the same idea inside a PostgreSQL server, started for it"
	@echo "make check      lint, type-check and test the fast core, in under two minutes"
	@echo "make test       lint, type-check and test everything"
	@echo "make test-slow  the tests that take minutes"
	@echo "make wheel      a wheel for every Python and an sdist, in dist/"
	@echo "make test-wheel the tests of that wheel, installed; the Pythons from 3.10 to 3.13 that are found try it too"
	@echo "make docs       build the documentation as a site, into build/site; any warning or broken link fails"
	@echo "make explore    the tests of properties, with examples that were not tried before"
	@echo "make fuzz       damaged files, states and rows, the kernel under sanitizers; HOURS=1 for longer"
	@echo "make mutants    plant faults, and write which tests and audits catch each to docs/mutants.md: half an hour"
	@echo "make bench      measure speed, as ratios with their targets"
	@echo "make bench-postgres  the same for PostgreSQL, on a server of its own"
	@echo "make bench-spark     the same for Spark, beside its own MLlib; ROWS=40000000 for a larger size too"
	@echo "make bench-whitebox    the white-box algorithms, in memory and in PostgreSQL"
	@echo "make reproduce-quick   all figures of the paper, smaller, and the report: under 20 minutes"
	@echo "make reproduce  all of them, in full"
	@echo "make lint       ruff, mypy --strict and which room may import which"
	@echo "make format     let ruff format the code"
	@echo "make clean      remove the virtual environment and build products"

$(VENV)/installed: pyproject.toml setup.py constraints.txt tools/environment $(KERNEL)
	PYTHON=$(PYTHON) tools/environment $(VENV)
	touch $@

build/demo/installed: pyproject.toml setup.py constraints.txt tools/environment $(KERNEL)
	PYTHON=$(PYTHON) tools/environment build/demo --editable ".[demo]"
	touch $@

demo: $(DEMO)/installed
	$(DEMO)/bin/python demo/demo.py

demo-postgres: $(VENV)/installed
	$(VENV)/bin/boltdp postgres demo

lint: $(VENV)/installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo

format: $(VENV)/installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# The fast core, for the inner loop: no server, no Spark, no browser, no wheel, and no attack that searches for long.
CORE := tests/algorithms tests/encoding tests/kernel tests/privacy tests/schema tests/test_losses.py \
	tests/test_model.py tests/test_recorded_bits.py tests/test_docs.py
LONG := tests/schema/test_every_kind.py tests/privacy/test_objective_corners.py \
	tests/privacy/test_weight_uncertainty.py tests/privacy/test_attack_whitebox.py tests/privacy/test_attack_persons.py \
	tests/privacy/test_objective_numbers.py
check: lint
	$(RUN) -m pytest $(CORE) $(LONG:%=--ignore=%) -m "not slow" -q -n auto --dist worksteal

test: lint
	$(RUN) -m pytest -m "not slow" -n auto --dist worksteal --cov --cov-fail-under=100

test-slow: $(VENV)/installed
	$(RUN) -m pytest -m slow

wheel: $(VENV)/installed
	rm -rf dist
	PYTHON=$(RUN) tools/wheel dist

# The checkout has the tests and the pages that they check; `boltdp` itself is found only where it was installed.
INSTALLED := build/installed
test-wheel: wheel
	rm -rf $(INSTALLED)
	PYTHON=$(PYTHON) tools/environment $(INSTALLED) "$$(ls dist/*.whl)[dev]"
	$(INSTALLED)/bin/python -c "import boltdp, sys; sys.exit(not boltdp.__file__.startswith(sys.prefix))"
	$(INSTALLED)/bin/python -m pytest tests --pyargs boltdp -m "not slow" -n auto --dist worksteal
	BOLTDP_WHEEL=$$(ls dist/*.whl) $(INSTALLED)/bin/python -m pytest tests/test_wheel.py -m slow

docs: $(VENV)/installed
	$(RUN) -m website

explore: $(VENV)/installed
	$(RUN) -m pytest -m "hypothesis and not slow" --hypothesis-profile=explore

fuzz: $(VENV)/installed
	$(RUN) -m fuzz $(if $(HOURS),--hours $(HOURS))

mutants: $(VENV)/installed
	$(RUN) -m mutants

bench: $(VENV)/installed
	$(RUN) -m bench

bench-postgres: $(VENV)/installed
	$(RUN) -m bench postgres

bench-spark: $(VENV)/installed
	$(RUN) -m bench spark $(if $(ROWS),--rows $(ROWS))

bench-whitebox: $(VENV)/installed
	$(RUN) -m bench whitebox

reproduce-quick: $(VENV)/installed
	$(RUN) -m experiments.reproduce all --quick --jobs 2
	$(RUN) -m experiments.reproduce report

reproduce: $(VENV)/installed
	$(RUN) -m experiments.reproduce all --jobs 2
	$(RUN) -m experiments.reproduce report

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/boltdp/kernel/*.so
