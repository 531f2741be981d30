#!/bin/sh
# Installs what a fresh machine lacks to build, run and test redis-rl. `make` calls it. Where nothing is
# missing it changes nothing and needs no network. It asks nothing, and says what it installs.
#
#   ./setup.sh         what all targets of the Makefile need
#   ./setup.sh lint    and what `make lint` needs besides: rustfmt, clippy, a C++ compiler
#
# The environment may set REDIS_SERVER and CARGO_TARGET_DIR.
set -eu
cd "$(dirname "$0")"

purpose=${1:-}
server=${REDIS_SERVER:-redis-server}
target=${CARGO_TARGET_DIR:-target}
oldest_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Where libclang, which the build of the bindings needs, is on other systems than Debian's.
libclang_folders="/opt/homebrew/opt/llvm/lib /usr/local/opt/llvm/lib
  /Library/Developer/CommandLineTools/usr/lib /usr/lib64"

fail() {
  echo "$*" >&2
  exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# What is there

rust_is_new_enough() {
  version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
  [ -n "$version" ] && printf '%s\n' "$oldest_rust" "$version" | sort -C -V
}

what_is_wrong_with_rust() {
  if ! has cargo; then
    echo 'cargo is missing'
  elif version=$(cargo --version 2>/dev/null); then
    echo "$version is too old"
  else
    echo "$(command -v cargo) does not run"
  fi
}

lint_tools_are_there() {
  [ "$purpose" != lint ] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1
}

libclang_is_there() {
  { ls /usr/lib/llvm-*/lib/libclang*.so* && ls /usr/lib/llvm-*/lib/clang/*/include/stddef.h; } >/dev/null 2>&1 && return
  for folder in "${LIBCLANG_PATH:-/usr/lib64}" $libclang_folders; do
    ls "$folder"/libclang.* >/dev/null 2>&1 && return
  done
  return 1
}

# All but Rust, by the names of Debian's packages.
missing_packages() {
  has "$server" || echo "$server"
  has redis-cli || echo redis-tools
  has cc || echo gcc libc6-dev
  libclang_is_there || echo libclang-dev
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  [ "$purpose" != lint ] || has c++ || echo g++
}

# Debian and Ubuntu

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# The version of a package that apt would install, or nothing.
candidate() {
  LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9].*\)/\1/p'
}

# The package whose Rust is new enough: some releases have cargo-web, which takes the place of their cargo.
rust_package() {
  for package in cargo cargo-web; do
    version=$(candidate "$package")
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$oldest_rust"; then
      echo "$package"
      return
    fi
  done
}

lint_packages() {
  case "$1" in
    cargo-web) echo rustfmt-web rust-web-clippy ;;
    cargo) echo rustfmt rust-clippy ;;
  esac
}

install_with_apt() {
  as_user=
  [ "$(id -u)" = 0 ] || has sudo || as_user=yes
  # Without its lists, apt knows no package. Every release has one called cargo.
  [ -n "$as_user" ] || as_root apt-get update -qq || true
  [ -n "$(candidate cargo)" ] || fail 'apt has no list of packages. As root: apt-get update'

  if [ "$rust" = missing ]; then
    cargo_package=$(rust_package)
    [ -n "$cargo_package" ] || fail "$needs_rust: install it from https://rustup.rs, since no package that apt knows is new enough"
    packages="$packages $cargo_package"
  else
    cargo_package=$(dpkg -S "$(command -v cargo)" 2>/dev/null | cut -d: -f1)
  fi
  if [ "$lint_tools" = missing ]; then
    lint_packages=$(lint_packages "$cargo_package")
    [ -n "$lint_packages" ] || fail "make lint needs rustfmt and clippy: add them to the Rust of $(command -v cargo)"
    packages="$packages $lint_packages"
  fi
  if ! has "$server" && [ -z "$(candidate "$server")" ]; then
    fail "$server is no program in the path and no package that apt knows: name a server with REDIS_SERVER=/path/to/it"
  fi

  by_hand="apt-get install --no-install-recommends$packages"
  [ -z "$as_user" ] || fail "redis-rl needs what only root can install. As root: $by_hand"
  [ "$rust" = ready ] || echo "$needs_rust: taking the package $cargo_package"
  echo "Installing:$packages"
  # shellcheck disable=SC2086 # a word for each package
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $packages ||
    fail "Not everything could be installed. As root: $by_hand"

  # The service that comes with a server would take the port of `make run`.
  case "$packages " in
    *" $server "*)
      echo "Stopping the service $server that came with the package"
      { as_root systemctl disable --now "$server" || as_root service "$server" stop; } >/dev/null 2>&1 || true
      ;;
  esac
}

# macOS

install_with_brew() {
  [ "$rust" = ready ] || packages="$packages rust"
  # shellcheck disable=SC2086 # a word for each package
  formulas=$(printf '%s\n' $packages | sed -E 's/^redis-(server|tools)$/redis/; s/^valkey-server$/valkey/;
    s/^libclang-dev$/llvm/; s/^python3-venv$/python/; /^(gcc|g\+\+|libc6-dev)$/d' | sort -u)
  # shellcheck disable=SC2086
  brew install $formulas
}

# What is done about it

if ! mkdir -p "$target" 2>/dev/null || ! [ -w "$target" ]; then
  fail "cannot write to $target: use a clone of your own, or set CARGO_TARGET_DIR to a folder of your own"
fi

rust=ready
rust_is_new_enough || rust=missing
lint_tools=ready
lint_tools_are_there || lint_tools=missing
[ "$rust" = ready ] || needs_rust="$(what_is_wrong_with_rust), and redis-rl needs Rust $oldest_rust or later"

# A distribution's Rust and rustup's exclude one another: where rustup is, it brings what is missing.
if has rustup; then
  [ "$rust" = ready ] || fail "$needs_rust: rustup update stable && rustup default stable"
  if [ "$lint_tools" = missing ]; then
    echo 'Installing with rustup: rustfmt clippy'
    if ! rustup component add rustfmt clippy || ! lint_tools_are_there; then
      fail 'make lint needs rustfmt and clippy: rustup component add rustfmt clippy'
    fi
    lint_tools=ready
  fi
fi

packages=$(missing_packages | tr '\n' ' ' | sed 's/^\(.\)/ \1/; s/ $//')
if [ -z "$packages" ] && [ "$rust" = ready ] && [ "$lint_tools" = ready ]; then
  exit 0
fi
case "$packages" in
  */*) fail "there is no server at $server" ;;
esac
if has apt-get; then
  install_with_apt
elif has brew; then
  install_with_brew
else
  [ "$rust" = ready ] || fail "$needs_rust: install it from https://rustup.rs"
  [ "$lint_tools" = ready ] || packages="$packages rustfmt clippy"
  fail "Please install:$packages"
fi
rust_is_new_enough || fail "$(what_is_wrong_with_rust), and redis-rl needs Rust $oldest_rust or later: install it from https://rustup.rs"
