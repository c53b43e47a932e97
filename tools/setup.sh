#!/usr/bin/env bash
# The set-up steps of the Makefile. Each is quiet when all is well and says what to do when not.
#   setup.sh need-cargo | need-native DIR | venv DIR | group DIR NAME | native DIR
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    printf '\nfeedrate: %s\n' "$1" >&2
    exit 1
}
say() { printf 'feedrate: %s\n' "$1" >&2; }

# Two `make`s, or `make -j`, may want the same step at once.
locked() {
    mkdir -p .cache
    if command -v flock >/dev/null; then
        exec 9>.cache/setup.lock
        flock 9
    fi
}

# Runs a command with its output kept aside, shown only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

need_cargo() {
    command -v cargo >/dev/null || die "cargo was not found. Install Rust 1.88 or newer (rustup.rs, or your distribution) and open a new shell."
    command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null ||
        die "no C compiler was found (Rust needs one to link). On Debian: apt-get install gcc libc6-dev"
}

# What the C of the image decoders needs besides a compiler: cmake, which the group `build` brings into DIR, and on x86-64 nasm.
need_native() {
    need_cargo
    command -v cmake >/dev/null || [ -x "$1/bin/cmake" ] ||
        die "cmake was not found; '$1' should hold it: run 'make setup'"
    case "$(uname -m)" in x86_64 | amd64) ;; *) return ;; esac
    command -v nasm >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        say "installing nasm, the assembler that libjpeg-turbo needs"
        { quietly apt-get -qq update &&
            DEBIAN_FRONTEND=noninteractive quietly apt-get -qq install -y --no-install-recommends nasm; } ||
            die "'apt-get install nasm' failed (see above)"
        return
    fi
    die "nasm was not found, the assembler that libjpeg-turbo (feature 'image') needs. Install it: apt-get install nasm, dnf install nasm, ... (wheels need neither nasm nor cmake)"
}

new_enough() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || die "PYTHON=$PYTHON is not a Python 3.11 or newer ($("$PYTHON" --version 2>&1 || true))"
        command -v "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer was not found (python3 is: $(python3 --version 2>&1 || true)). Install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

case "${1:-}" in
need-cargo)
    need_cargo
    ;;
need-native)
    locked
    need_native "$2"
    ;;
venv)
    dir=$2
    locked
    python=$(find_python)
    if ! new_enough "$dir/bin/python"; then
        say "making $dir with $("$python" --version)"
        rm -rf "$dir"
        quietly "$python" -m venv "$dir" ||
            die "'$python -m venv' failed. On Debian: apt-get install python3-venv"
    fi
    quietly "$dir/bin/python" -m pip install -q --disable-pip-version-check -r requirements/pip.txt ||
        die "pip could not be installed; is the package index reachable?"
    touch "$dir/.made"
    ;;
group)
    dir=$2 group=$3
    locked
    say "installing the '$group' packages (the first time can take minutes)"
    quietly "$dir/bin/python" -m pip install -q --disable-pip-version-check --prefer-binary \
        --group "$group" -c requirements/constraints.txt ||
        die "installing the '$group' group of pyproject.toml failed (see above)"
    touch "$dir/.group-$group"
    ;;
native)
    dir=$2
    locked
    need_native "$dir"
    say "building the extension module (release)"
    absolute=$(cd "$dir" && pwd)
    # shellcheck disable=SC2086
    VIRTUAL_ENV=$absolute PATH="$absolute/bin:$PATH" quietly "$dir/bin/maturin" develop --release ${CARGO_FLAGS:-} ||
        die "the build failed (see above)"
    touch "$dir/.native"
    ;;
*)
    die "usage: setup.sh need-cargo | need-native DIR | venv DIR | group DIR NAME | native DIR"
    ;;
esac
