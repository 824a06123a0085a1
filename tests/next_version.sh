#!/usr/bin/env bash
# Builds the next version's operator and CRD from this tree, with the feature `next-version`, into a folder.
#   next_version.sh FOLDER
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
# The same selection as everywhere, so that no other crate is built again; what it leaves in place of this version's programs
# the next build replaces.
cargo build --workspace --quiet --bin stagecoach-operator --bin crdgen --features stagecoach-operator/next-version
cp "$target/debug/stagecoach-operator" "$folder/"
"$target/debug/crdgen" >"$folder/crd.yaml"
