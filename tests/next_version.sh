#!/usr/bin/env bash
# Builds the next version's operator and CRD from this tree, with the feature `next-version`, into a folder.
#   next_version.sh FOLDER
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
# The selection of packages is the same as in other builds, so that Cargo builds no other crate again. The programs
# replace this version's programs in the target folder, until the next build replaces them again.
cargo build --workspace --quiet --bin stagecoach-operator --bin crdgen --features stagecoach-operator/next-version
cp "$target/debug/stagecoach-operator" "$folder/"
"$target/debug/crdgen" >"$folder/crd.yaml"
