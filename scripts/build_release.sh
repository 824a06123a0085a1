#!/usr/bin/env bash
# Builds stripped packages for a release, and prints nothing: build_release.sh TARGET PACKAGE...
#   TARGET   Cargo's target folder. The binaries are in TARGET/release
# The binaries contain no path of this machine, so the same sources give the same bytes in any folder.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
target=$(realpath "$1"); shift
prefix="--remap-path-prefix"
export CARGO_TARGET_DIR=$target
export RUSTFLAGS="$prefix=$PWD=/src $prefix=$target=/target $prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo -Cstrip=symbols"
# one build per package, so that the features that a package enables in a dependency change no other package
for package in "$@"; do cargo build --quiet --release --locked --package "$package"; done
