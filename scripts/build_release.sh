#!/usr/bin/env bash
# Builds packages as they are released, stripped, and prints nothing: build_release.sh TARGET PACKAGE...
#   TARGET   Cargo's folder; the binaries are in TARGET/release
# The same sources give the same bytes wherever they and Cargo's folders are: no path of this machine is in them.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
target=$(realpath "$1"); shift
prefix="--remap-path-prefix"
export CARGO_TARGET_DIR=$target
export RUSTFLAGS="$prefix=$PWD=/src $prefix=$target=/target $prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo -Cstrip=symbols"
# each by itself: what one package needs of a common dependency changes no other one
for package in "$@"; do cargo build --quiet --release --locked --package "$package"; done
