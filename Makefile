# Every target does its own set-up: a virtual environment, torch, the tools and the C++ core.

PYTHON ?= python3
TORCH := torch==2.13.0

# make fuzz N=100000 SEED=1
N ?= 10000
SEED ?= 0
PROGRAMS ?= 2000
MINUTES ?= 60
JOBS ?= 2

BIN := .venv/bin
TOOLS := .venv/tools.stamp
INSTALLED := .venv/installed.stamp
CORE := build/core.stamp
SOURCES := $(wildcard torch_tiny/csrc/*/*)

# Several test processes share the cores, so none of them may spin while it waits.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

.PHONY: help demo test test-devices devices lint fuzz fuzz-compiled soak tsan asan bench format core clean

help:
	@echo 'make demo           train a small network on tiny and on the CPU, side by side'
	@echo 'make test           all tests; needs no GPU'
	@echo 'make test-devices   derivatives, operators and programs on OpenCL and WebGPU, for hours'
	@echo 'make fuzz           random programs against the CPU: N=10000 SEED=0'
	@echo 'make fuzz-compiled  the same with everything compiled: N=2000 SEED=0 JOBS=2'
	@echo 'make soak           one long process, everything at once: MINUTES=60 SEED=0'
	@echo 'make tsan, asan     the core under sanitizers: MINUTES=5'
	@echo 'make bench          all measurements against eager PyTorch'
	@echo 'make lint, format   ruff, mypy, clang-format'
	@echo 'make core, devices  what the others need: the C++ core; software drivers'
	@echo 'make clean          all but the virtual environment'

demo: core
	$(BIN)/python examples/digits.py

test: lint devices
	$(ONE_THREAD) $(BIN)/pytest -n 3 --dist worksteal
	$(ONE_THREAD) $(BIN)/python -m tests.on_devices -n 3 --dist worksteal

# Derivatives, the operator database and random programs on OpenCL and WebGPU; takes hours.
test-devices: core devices
	for kind in cl webgpu; do TORCH_TINY_DEVICES=$$kind TORCH_TINY_FALLBACK=error $(ONE_THREAD) \
		$(BIN)/python tests/derivatives_linalg.py --all || exit 1; done
	$(ONE_THREAD) $(BIN)/python -m tests.devices --programs $(PROGRAMS)

# OpenCL and WebGPU without a GPU; where they cannot be installed their tests are skipped.
devices: $(INSTALLED)
	@sh scripts/devices.sh

lint: core
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict torch_tiny
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)

fuzz: core
	$(ONE_THREAD) $(BIN)/python -m tests.programs --count $(N) --seed $(SEED)

# The same with everything compiled, three runs of each program: make fuzz-compiled N=2000 JOBS=16
fuzz-compiled: core
	TORCH_TINY_ENGINE=uop TORCH_TINY_CACHE= TORCH_TINY_TEST_STRICT=1 $(ONE_THREAD) \
		$(BIN)/python -m tests.programs \
		--count $(N) --seed $(SEED) --jobs $(JOBS)

# make soak MINUTES=60 SEED=0
soak: core
	$(ONE_THREAD) $(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

# The core under ThreadSanitizer; under AddressSanitizer and UBSan. make tsan MINUTES=10
tsan: SANITIZER := thread
asan: SANITIZER := address
tsan asan: MINUTES := 5
tsan asan: $(INSTALLED)
	TORCH_TINY_SANITIZE=$(SANITIZER) $(BIN)/python setup.py --quiet build \
		--build-lib build/$(SANITIZER)/tree
	$(ONE_THREAD) $(BIN)/python -m tests.sanitized $(SANITIZER) --minutes $(MINUTES)

bench: core
	$(BIN)/python -m bench

format: core
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

core: $(CORE)

# The first build comes with the installation; ninja then compiles only what changed.
$(CORE): $(SOURCES) setup.py $(INSTALLED)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(INSTALLED): pyproject.toml $(TOOLS)
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

$(TOOLS):
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH) 'setuptools>=77' ninja
	@touch $@

# Leaves the virtual environment; without .venv all is as in a fresh clone.
clean:
	rm -rf build dist *.egg-info torch_tiny/_build.py torch_tiny/*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(INSTALLED)
	find . -name __pycache__ -not -path './.venv/*' -exec rm -rf {} +
