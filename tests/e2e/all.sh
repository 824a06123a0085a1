#!/usr/bin/env bash
# Runs all tests that need a node, on the node that run.sh started. The arguments, if any, are the names of tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || cargo test --quiet --workspace --test node containers:: -- --ignored
# one test after the other, because most of them disturb the whole node
cargo test --quiet --workspace --test product -- --ignored --test-threads=1 --nocapture "$@"
