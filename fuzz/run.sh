#!/bin/sh
# Fuzzes both targets for a number of seconds each (60 if not said), with the stable compiler.
#
#     fuzz/run.sh [seconds]              look for new inputs: kept in target/fuzz/found/
#     fuzz/run.sh minimise               replace the committed corpus by the fewest files that cover as much
#
# What fails is written to target/fuzz/<target>-crash-...; a copy of it in fuzz/corpus/<target>/ is
# then replayed by `cargo test`.
set -eu
cd "$(dirname "$0")/.."

# Where every edge counts its visits and every comparison is seen: what cargo-fuzz passes, without the
# sanitizers, which only a nightly compiler has. The code under test has no unsafe line.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
export RUSTFLAGS
# With a target named, build scripts are compiled without these flags.
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz

for target in syntax state; do
  program="target/fuzz/$host/release/$target"
  found="target/fuzz/found/$target"
  corpus="fuzz/corpus/$target"
  mkdir -p "$found"
  if [ "${1:-}" = minimise ]; then
    smallest="target/fuzz/smallest/$target"
    rm -rf "$smallest"
    mkdir -p "$smallest"
    "$program" -set_cover_merge=1 -use_counters=0 -use_value_profile=0 "$smallest" "$corpus" "$found"
    rm -rf "$corpus"
    cp -r "$smallest" "$corpus"
  else
    "$program" -max_total_time="${1:-60}" -timeout=5 -max_len=512 -print_final_stats=1 \
      -use_value_profile=1 -dict="fuzz/$target.dict" -artifact_prefix="target/fuzz/$target-" \
      "$found" "$corpus"
  fi
done
