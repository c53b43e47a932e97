#!/usr/bin/env bash
# The tests of feedrate-shm under AddressSanitizer, and those of its lock-free paths under ThreadSanitizer, on the stable toolchain: without
# a standard library built for it, the latter does not see that library's locks, and reports whatever they order.
# Each gets its own target directory: sanitized and plain code cannot be mixed.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/setup.sh need-cargo

host=$(rustc -vV | sed -n 's/^host: //p')
case $host in
x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
*)
    echo "feedrate: sanitizers are set up for Linux with glibc only, this is $host" >&2
    exit 1
    ;;
esac

run() {
    local name=$1 flags=$2
    shift 2
    echo "== $name sanitizer"
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="$flags" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/$name" \
        cargo test --quiet -p feedrate-shm --all-features --target "$host" "$@"
}

run address "-Zsanitizer=address" --lib --tests
export TSAN_OPTIONS="suppressions=$PWD/crates/feedrate-shm/tsan.supp ${TSAN_OPTIONS:-}"
run thread "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" --test lockfree
