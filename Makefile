# redis-rl: `make` alone lists what can be done.

PORT ?= 6379
REDIS_SERVER ?= redis-server
# Where cargo puts what it builds. A relative folder is one of the repository's.
override CARGO_TARGET_DIR := $(if $(filter /%,$(CARGO_TARGET_DIR)),,$(CURDIR)/)$(or $(CARGO_TARGET_DIR),target)
LIBRARY := libredis_rl.$(if $(filter Darwin,$(shell uname -s)),dylib,so)
MODULE := $(CARGO_TARGET_DIR)/release/$(LIBRARY)
# Empty at each start: a server that finds the dump of a newer one does not start.
RUN_FOLDER := $(CARGO_TARGET_DIR)/run/$(PORT)
# What the tests, the demo and the benchmarks load.
REDIS_RL_MODULE ?= $(MODULE)
export REDIS_SERVER CARGO_TARGET_DIR REDIS_RL_MODULE

# Where `make install` puts the library; the server reads it by full path.
MODULE_FOLDER ?= /usr/lib/redis/modules
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# make splits its lists at spaces, so targets and prerequisites are relative; in recipes full paths are quoted.
PYTHON := .venv/bin/python
# Says that .venv is complete: .venv/bin/python is a link to the system's, whose time is not ours to set.
VENV := .venv/complete

BENCH := cargo run --quiet --release --locked --manifest-path benches/Cargo.toml --target-dir "$(CARGO_TARGET_DIR)/bench-build"

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: build ## start a server with the module in the foreground (PORT=6379 REDIS_SERVER=redis-server)
	@printf '%s\n' \
	  'Worth typing in another terminal:' \
	  '  redis-cli -p $(PORT) RL.TOKENBUCKET try:bucket 5 0.5' \
	  '  redis-cli -p $(PORT) RL.SLIDING try:window 100 60 MS' \
	  '  redis-cli -p $(PORT) RL.ALL 2 {try}:second {try}:minute TOKENBUCKET 10 1 SLIDING 100 60'
	@rm -rf "$(RUN_FOLDER)" && mkdir -p "$(RUN_FOLDER)"
	exec "$(REDIS_SERVER)" --bind 127.0.0.1 --port $(PORT) --save '' --dir "$(RUN_FOLDER)" --loadmodule "$(MODULE)"

.PHONY: build
build: setup ## build the module: target/release/libredis_rl.so
	cargo build --release --locked

.PHONY: test
test: build $(VENV) ## run every test: arithmetic, then real servers
	cargo test --locked --workspace
	cargo test --locked --manifest-path benches/Cargo.toml --target-dir "$(CARGO_TARGET_DIR)/bench-build"
	cargo build --locked --features inject-panic
	$(PYTHON) -m pytest tests

.PHONY: test-matrix
test-matrix: build $(VENV) ## run the core tests on each server that can be had
	cargo build --locked --features inject-panic
	$(PYTHON) tests/servers/fetch.py
	$(PYTHON) tests/servers/matrix.py

# The manifest of a workspace's member stands for its whole workspace: seen before, it costs nothing.
.PHONY: lint
lint: ## check format and lints of every Cargo package
	@./setup.sh lint
	@for manifest in $$(git ls-files '*Cargo.toml'); do \
	  echo "Checking $$manifest"; \
	  cargo fmt --all --check --manifest-path "$$manifest" || exit 1; \
	  cargo clippy --quiet --locked --workspace --all-targets --manifest-path "$$manifest" -- -D warnings || exit 1; \
	done

.PHONY: demo
demo: build $(VENV) ## show the race that this exists for, in under a minute
	$(PYTHON) examples/demo/demo.py

.PHONY: bench
bench: build ## measure, and write docs/benchmarks.md with its charts
	$(BENCH)

.PHONY: check-instructions
check-instructions: build ## compare the instructions of a call with the committed figures; no decision may allocate
	$(BENCH) -- instructions --check
	$(BENCH) --example decision

.PHONY: fuzz
fuzz: setup ## fuzz the argument parser and the state codec (FUZZ_SECONDS=60 each)
	fuzz/run.sh $(or $(FUZZ_SECONDS),60)

.PHONY: package
package: build ## build the Debian package in target/package and see a server load it
	package=$$(packaging/build-deb.sh "$(MODULE)") && packaging/check-deb.sh "$$package"

.PHONY: install
install: build ## copy the module into MODULE_FOLDER and print the loadmodule line
	$(SUDO) install -D -m 0755 "$(MODULE)" "$(MODULE_FOLDER)/$(LIBRARY)"
	@echo 'Add to the configuration of the server, in its own file and not in one that it includes:'
	@echo 'loadmodule $(MODULE_FOLDER)/$(LIBRARY)'

.PHONY: clean
clean: ## remove what was built
	cargo clean
	rm -rf .venv .pytest_cache .hypothesis

.PHONY: setup
setup: ## install what a fresh machine lacks; the other targets begin with it
	@./setup.sh

$(VENV): tests/requirements.txt | setup
	python3 -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $(VENV)
