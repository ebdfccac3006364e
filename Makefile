# make setup | demo | test | lint | format | types | bench | bench-engine
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test lint format types unit bench bench-engine clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make setup   create .venv and install moesaic into it (.venv/bin/moesaic)"
	@echo "make demo    set up, then let a toy model answer and compare offloading systems"
	@echo "make test    set up, then run lint, types and every test"
	@echo "make bench   time the planners and the simulator, compare schedules with the optimum"
	@echo "make bench-engine   measure the engine here: speed, physical floor, its own overhead"
	@echo "make lint | format | types | unit   one check each"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Moesaic needs Python 3.11 or later, this is %d.%d: call make with PYTHON=/path/to/python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/moesaic demo

test: lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -n 2

bench: setup
	$(BIN)/python -m benchmarks.planners
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.schedule_quality

bench-engine: setup
	$(BIN)/moesaic bench --synthetic olmoe-1b-7b --layers 4 -p 64 -n 32

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
