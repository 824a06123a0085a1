#!/usr/bin/env bash
# Starts a node, runs the tests that need one, and takes back all it did to the machine, whatever happens.
#   run.sh CACHE [TEST...]      by default all tests; `make build` comes first
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=$1; shift
tests/cluster/packages.sh
STAGECOACH_CLUSTER_TOOLS=$(tests/cluster/tools.sh "$cache" node)
STAGECOACH_IMAGES=$cache/images
# sockets are in there, whose paths must be short
STAGECOACH_NODE=$(mktemp -d "${TMPDIR:-/tmp}/stagecoach-node-XXXXXX")
export STAGECOACH_CLUSTER_TOOLS STAGECOACH_IMAGES STAGECOACH_NODE
images/build.sh "$STAGECOACH_IMAGES"
cargo test --no-run --quiet --package stagecoach-cluster --package stagecoach-e2e

end() {
    local status=$?
    trap - EXIT INT TERM HUP
    [ $status = 0 ] || mkdir -p "$cache/e2e-logs" && cp -r "$STAGECOACH_NODE/logs/." "$cache/e2e-logs" 2>/dev/null || true
    target/debug/stagecoach-cluster down "$STAGECOACH_NODE" || status=1
    rm -rf "$STAGECOACH_NODE"
    exit $status
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

if [ $# = 0 ]; then
    # that a node leaves nothing behind, on a machine without one
    cargo test --quiet --package stagecoach-cluster --test node_ends -- --ignored
fi
target/debug/stagecoach-cluster up "$STAGECOACH_NODE" --pause "$STAGECOACH_IMAGES/pause.tar"
if [ $# = 0 ]; then
    cargo test --quiet --package stagecoach-cluster --test node -- --ignored
fi
# one after the other: most of them disturb the whole node
cargo test --quiet --package stagecoach-e2e --test product -- --ignored --test-threads=1 --nocapture "$@"
