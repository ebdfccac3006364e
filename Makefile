# make setup | demo | test | test-all | lint | format | types | bench | fuzz | fuzz-serve | bench-engine | bench-kernels
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
comma  := ,

# Keep compiled Python: workers that compile all of PyTorch's and our modules anew spend minutes.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX = $(CURDIR)/$(VENV)/bytecode

.PHONY: setup demo test test-all lint format types unit unit-all unit-without-native without-native
.PHONY: without-conductor bench fuzz fuzz-serve bench-engine bench-kernels clean

.PHONY: test-gpu native-test native-sanitize native-valgrind fuzz-native
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make setup   create .venv and install moesaic into it (.venv/bin/moesaic)"
	@echo "make demo    set up, then let the bundled model answer and compare policies on it"
	@echo "make test    set up, then run lint, types and the tests"
	@echo "make test-all   the same with every case of the tests marked long"
	@echo "make bench   time the planners and the simulator, compare schedules with the optimum"
	@echo "make bench-engine   measure the engine here: speed, physical floor, its own overhead"
	@echo "make bench-kernels   measure the CPU kernels against memory, matrix peak and PyTorch"
	@echo "make fuzz    read 10,000 hostile files of every format (FUZZ_FILES=n: fewer)"
	@echo "make fuzz-serve  ask the server 100,000 right and wrong things (FUZZ_REQUESTS=n: fewer)"
	@echo "make lint | format | types | unit | unit-without-native   one check each"
	@echo "make test-gpu   the CUDA machine and its kernels, where there is a GPU"
	@echo "make native-test | native-sanitize | native-valgrind   the native kernels without Python"
	@echo "make fuzz-native   random right and wrong calls of the native kernels, under the address sanitizer"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(shell find native -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Moesaic needs Python 3.11 or later, this is %d.%d: call make with PYTHON=/path/to/python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/moesaic demo

# Types are checked beside the tests: of two workers that need the same planner, one compiles it and
# the other waits, so that a core is free at the beginning.
test: lint
	@$(MAKE) --jobs=2 types unit
	@$(MAKE) unit-without-native

test-all: lint
	@$(MAKE) --jobs=2 types unit-all
	@$(MAKE) unit-without-native

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

# Each worker begins with a half of its own, so that not both begin where planners are compiled.
IN_TWO = $(BIN)/pytest -n 2 --dist worksteal

unit: setup
	$(IN_TWO) -m "not long"

unit-all: setup
	$(IN_TWO)

# What differs on a machine without native modules: ARM has no CPU kernels (`native`), and without a
# compiler there is no conductor either. All tests are imported, those marked so are run; the problems
# are no part of the package and take long to import. Both runs are one process each, since importing
# takes longer than the tests do.
unit-without-native: setup
	@$(MAKE) --jobs=2 without-native without-conductor

without-native: setup
	MOESAIC_TESTS_HIDE=native $(BIN)/pytest -n 0 -m without_native --ignore=tests/problems

without-conductor: setup
	MOESAIC_TESTS_HIDE=native,conductor $(BIN)/pytest -n 0 -m without_native tests/cuda tests/structure

# What needs a GPU, on a machine that has one; elsewhere the same tests run as far as they can.
test-gpu: setup
	$(BIN)/pytest -n 0 tests/cuda tests/kernels/test_gpu_*.py

bench: setup
	$(BIN)/python -m benchmarks.planners
	$(BIN)/python -m benchmarks.simulator
	$(BIN)/python -m benchmarks.dram
	$(BIN)/python -m benchmarks.schedule_quality

# Hostile files of every format; FUZZ_FILES of each.
FUZZ_FILES ?= 10000
fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzzing.fuzz --files $(FUZZ_FILES)

# Requests to the server's app, right and wrong.
FUZZ_REQUESTS ?= 100000
fuzz-serve: setup
	PYTHONPATH=tests $(BIN)/python -m fuzzing.fuzz_serve --requests $(FUZZ_REQUESTS)

bench-engine: setup
	$(BIN)/moesaic bench --accelerator none --synthetic olmoe-1b-7b --layers 4 -p 64 -n 32

bench-kernels: setup
	$(BIN)/python -m benchmarks.kernels

# The native kernels without Python; each kind of build has its own folder.
define build-native-tests
cmake -S native -B build/$(1) -DMOESAIC_PYTHON=OFF -DMOESAIC_TESTS=ON $(2) > /dev/null
cmake --build build/$(1) --parallel 2 > /dev/null
endef

native-test:
	$(call build-native-tests,native-test)
	build/native-test/native_tests

native-sanitize:
	$(call build-native-tests,native-address,-DMOESAIC_SANITIZE=address$(comma)undefined)
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/native-address/native_tests quick
	$(call build-native-tests,native-thread,-DMOESAIC_SANITIZE=thread)
	TSAN_OPTIONS=halt_on_error=1 build/native-thread/native_tests quick

# Right and wrong calls of the native entry points, under the address sanitizer; FUZZ_CALLS rounds of them.
FUZZ_CALLS ?= 2000
fuzz-native:
	$(call build-native-tests,native-address,-DMOESAIC_SANITIZE=address$(comma)undefined)
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/native-address/native_fuzz $(FUZZ_CALLS)

# Valgrind knows neither AVX-512 nor matrix tiles.
native-valgrind:
	@command -v valgrind > /dev/null || { echo "make native-valgrind needs valgrind, which is not installed; make native-sanitize needs none"; exit 1; }
	$(call build-native-tests,native-test)
	valgrind --quiet --error-exitcode=1 --leak-check=full --fair-sched=yes build/native-test/native_tests avx2 quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
