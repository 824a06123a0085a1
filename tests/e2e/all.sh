#!/usr/bin/env bash
# All tests that need a node, on the one that run.sh started; arguments are names of tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || cargo test --quiet --workspace --test node containers:: -- --ignored
# one after the other: most of them disturb the whole node
cargo test --quiet --workspace --test product -- --ignored --test-threads=1 --nocapture "$@"
