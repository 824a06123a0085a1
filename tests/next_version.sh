#!/usr/bin/env bash
# Builds the next version's operator and CRD from this tree, with the feature `next-version`, and prints their folder.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${CARGO_TARGET_DIR:-$PWD/target}/next-version
mkdir -p "$folder"
# The same selection as everywhere, so that no other crate is built again; what it leaves in place of this version's programs
# the next build replaces.
cargo build --workspace --quiet --bin stagecoach-operator --bin crdgen --features stagecoach-operator/next-version >&2
cp "${CARGO_TARGET_DIR:-$PWD/target}/debug/stagecoach-operator" "$folder/"
"${CARGO_TARGET_DIR:-$PWD/target}/debug/crdgen" >"$folder/crd.yaml"
echo "$folder"
