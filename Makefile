# redis-rl: `make` alone lists what can be done.

PORT ?= 6379
REDIS_SERVER ?= redis-server
export REDIS_SERVER

# The oldest Rust that builds the crate: `rust-version` in Cargo.toml.
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
LIBRARY := libredis_rl.$(if $(filter Darwin,$(shell uname -s)),dylib,so)
MODULE := $(CURDIR)/target/release/$(LIBRARY)
# Where `make install` puts the library; the server reads it by full path.
MODULE_FOLDER ?= /usr/lib/redis/modules
BENCH := CARGO_TARGET_DIR=target/bench-build cargo run --quiet --release --locked --manifest-path benches/Cargo.toml
PYTHON := .venv/bin/python
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## start a server with the module in the foreground (PORT=6379 REDIS_SERVER=redis-server)
	@printf '%s\n' \
	  'Worth typing in another terminal:' \
	  '  redis-cli -p $(PORT) RL.TOKENBUCKET user:42 5 0.5' \
	  '  redis-cli -p $(PORT) RL.SLIDING user:42:minute 100 60 MS' \
	  '  redis-cli -p $(PORT) RL.ALL 2 a:{42} b:{42} TOKENBUCKET 10 1 SLIDING 100 60'
	exec $(REDIS_SERVER) --bind 127.0.0.1 --port $(PORT) --dir target --loadmodule $(MODULE)

.PHONY: build
build: setup ## build the module: target/release/libredis_rl.so
	cargo build --release --locked

.PHONY: test
test: build $(PYTHON) ## run every test: arithmetic, then real servers
	cargo test --locked
	cargo build --locked --features inject-panic
	$(PYTHON) -m pytest tests

.PHONY: test-matrix
test-matrix: build $(PYTHON) ## run the core tests on each server that can be had
	cargo build --locked --features inject-panic
	$(PYTHON) tests/servers/fetch.py
	$(PYTHON) tests/servers/matrix.py

.PHONY: lint
lint: setup ## check format and lints
	cargo fmt --all --check
	cargo fmt --manifest-path benches/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: demo
demo: build $(PYTHON) ## show the race that this exists for, in under a minute
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
	packaging/check-deb.sh "$$(packaging/build-deb.sh)"

.PHONY: install
install: build ## copy the module into MODULE_FOLDER and print the loadmodule line
	$(SUDO) install -D -m 0755 $(MODULE) $(MODULE_FOLDER)/$(LIBRARY)
	@echo 'Add to the server configuration:'
	@echo 'loadmodule $(MODULE_FOLDER)/$(LIBRARY)'

.PHONY: clean
clean: ## remove what was built
	cargo clean
	rm -rf .venv .pytest_cache .hypothesis

# Where libclang, which the build of the bindings needs, is on other systems than Debian's.
LIBCLANG_FOLDERS := $(LIBCLANG_PATH) /opt/homebrew/opt/llvm/lib /usr/local/opt/llvm/lib \
  /Library/Developer/CommandLineTools/usr/lib /usr/lib64

# What a fresh machine lacks, installed by its package manager. Nothing is installed where all is there.
# A redis-server that comes with it does not stay on the port that `make run` uses.
.PHONY: setup
setup:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust $(RUST_VERSION) or later from https://rustup.rs'; exit 1; }
	@printf '%s\n' '$(RUST_VERSION)' "$$(cargo --version | cut -d' ' -f2)" | sort -C -V || \
	  { echo "$$(cargo --version) is too old: redis-rl needs Rust $(RUST_VERSION) or later: rustup update stable, or https://rustup.rs"; exit 1; }
	@missing=''; \
	command -v $(REDIS_SERVER) >/dev/null || missing="$$missing redis-server"; \
	command -v redis-cli >/dev/null || missing="$$missing redis-tools"; \
	command -v cc >/dev/null || missing="$$missing gcc"; \
	{ ls /usr/lib/llvm-*/lib/libclang*.so* && ls /usr/lib/llvm-*/lib/clang/*/include/stddef.h; } >/dev/null 2>&1 || \
	  ls $(foreach folder,$(LIBCLANG_FOLDERS),$(folder)/libclang.*) 2>/dev/null | grep -q . || missing="$$missing libclang-dev"; \
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	[ -z "$$missing" ] && exit 0; \
	echo "Installing:$$missing"; \
	if command -v apt-get >/dev/null; then \
	  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing || exit 1; \
	  case "$$missing" in *redis-server*) \
	    $(SUDO) systemctl disable --now redis-server >/dev/null 2>&1 || true;; \
	  esac; \
	elif command -v brew >/dev/null; then \
	  brew install $$(printf '%s\n' $$missing | sed 's/redis-server\|redis-tools/redis/; s/libclang-dev/llvm/; s/python3-venv/python/; s/^gcc$$//' | sort -u); \
	else \
	  echo "Please install:$$missing"; exit 1; \
	fi

$(PYTHON): tests/requirements.txt
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $(PYTHON)
