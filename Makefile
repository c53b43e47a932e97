# The only list of commands; CI runs `make check`. `make help` prints it.
# Everything made here lies in .venv, target, .cache and python/feedrate/_native*.so.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV        ?= .venv
BIN         := $(VENV)/bin
PY          := $(BIN)/python
CARGO       ?= cargo
CARGO_FLAGS ?=
# Arguments for pytest, e.g. make test-python PYTEST="tests/unit -k order"
PYTEST      ?=
MARK        ?= not slow and not long

RUST_SOURCES := $(shell find crates -type f \( -name '*.rs' -o -name '*.c' -o -name Cargo.toml \) 2>/dev/null) \
                Cargo.toml $(wildcard Cargo.lock)
# All crates but the Python binding: they build, test and run with no Python installed.
RUST_ONLY    := --workspace --exclude feedrate-py
# The image decoders are built by cmake, which the environment holds. Not for other commands: which Python is found must not change.
WITH_CMAKE   := PATH="$(abspath $(BIN)):$$PATH"

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' \
	  | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

# ---- set-up: one stamp for each thing that can be made once ---------------------------------

$(VENV)/.made: tools/setup.sh requirements/pip.txt
	@bash tools/setup.sh venv $(VENV)

# A group of pyproject.toml at the versions of requirements/constraints.txt. The groups share one
# environment, so a lock keeps two installs from running at once.
$(VENV)/.group-%: $(VENV)/.made pyproject.toml requirements/constraints.txt
	@bash tools/setup.sh group $(VENV) $*

# The release build of the extension module, in place in python/feedrate, and an editable install.
$(VENV)/.native: $(RUST_SOURCES) pyproject.toml | $(VENV)/.group-build
	@CARGO_FLAGS="$(CARGO_FLAGS)" bash tools/setup.sh native $(VENV)

.PHONY: setup build
setup: $(VENV)/.group-test $(VENV)/.group-lint $(VENV)/.native ## Everything a developer needs, in .venv
build: $(VENV)/.native ## The Python package with its release build, in .venv

# ---- the two commands of the README ---------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.group-demo $(VENV)/.native ## Train on photographs with torch's loader and with ours
	@$(PY) examples/demo/demo.py

.PHONY: test test-rust test-python
test: ## All quick tests: Rust, then Python
	@$(MAKE) test-rust
	@$(MAKE) test-python

test-rust: | $(VENV)/.group-build ## Tests and documentation examples of the crates
	@bash tools/setup.sh need-native $(VENV)
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  $(WITH_CMAKE) $(CARGO) nextest run $(CARGO_FLAGS) $(RUST_ONLY) --all-features --no-tests=warn --no-fail-fast; \
	else \
	  $(WITH_CMAKE) $(CARGO) test $(CARGO_FLAGS) $(RUST_ONLY) --all-features --all-targets --no-fail-fast; \
	fi
	@$(WITH_CMAKE) $(CARGO) test $(CARGO_FLAGS) $(RUST_ONLY) --all-features --doc

test-python: $(VENV)/.group-test $(VENV)/.native ## Python tests; PYTEST="..." passes arguments on
	@$(PY) -m pytest -m "$(MARK)" $(PYTEST)

# ---- what CI runs ---------------------------------------------------------------------------

.PHONY: check lint lint-rust lint-python
check: ## What CI runs: lint, then every test but the soak
	@$(MAKE) lint
	@$(MAKE) test MARK="not slow"

lint: ## Formatting, clippy, rustdoc, ruff, mypy, stubs; changes nothing
	@$(MAKE) lint-rust
	@$(MAKE) lint-python

lint-rust: | $(VENV)/.group-build
	@bash tools/setup.sh need-native $(VENV)
	@$(CARGO) fmt --all --check
	@$(WITH_CMAKE) PYO3_PYTHON="$(abspath $(PY))" $(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets --all-features -- -D warnings
	@$(WITH_CMAKE) PYO3_PYTHON="$(abspath $(PY))" RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) --workspace --no-deps --all-features

lint-python: $(VENV)/.group-lint $(VENV)/.group-test $(VENV)/.native
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@MYPYPATH=python $(PY) -m mypy.stubtest feedrate._native \
	  --allowlist tools/stubtest-allowlist.txt --ignore-unused-allowlist

.PHONY: fmt
fmt: $(VENV)/.group-lint ## Format Rust and Python
	@$(CARGO) fmt --all
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

# ---- longer things --------------------------------------------------------------------------

.PHONY: bench soak fuzz suite sanitize aarch64
bench: $(VENV)/.group-bench $(VENV)/.native ## Compare with torch, torchdata and SPDL: tables and a plot
	@$(PY) -m benchmarks.run $(BENCH)

soak: $(VENV)/.group-test $(VENV)/.native ## Chaos, long fuzzing and slow exits (an hour)
	@FEEDRATE_SLOW=1 $(PY) -m pytest -m slow $(PYTEST)

fuzz: | $(VENV)/.group-build ## Damage files for every parser, in turns, until stopped or for FUZZ="--seconds 3600" each
	@$(WITH_CMAKE) $(PY) tools/fuzz.py $(FUZZ)

suite: $(VENV)/.group-test $(VENV)/.native ## PyTorch's own test_dataloader.py against our class
	@$(PY) tools/pytorch_suite.py feedrate.torch:DataLoader $(SUITE)

sanitize: ## Address and thread sanitizer on feedrate-shm
	@bash tools/sanitize.sh

aarch64: | $(VENV)/.group-build ## Compile-check all crates for Linux on aarch64 (rustup brings its std; needs a C cross compiler)
	@command -v aarch64-linux-gnu-gcc >/dev/null || { \
	  echo "feedrate: install a C and C++ compiler for aarch64 (Debian: gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu)" >&2; exit 1; }
	@rustup target add aarch64-unknown-linux-gnu
	@$(WITH_CMAKE) $(CARGO) check $(CARGO_FLAGS) --workspace --all-features --target aarch64-unknown-linux-gnu

.PHONY: clean
clean: ## Remove everything that make made
	rm -rf $(VENV) target .cache python/feedrate/_native*.so
