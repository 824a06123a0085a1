#!/usr/bin/env bash
# Starts a node, runs a command that needs one, and undoes the node's changes to the machine, even after a failure.
#   run.sh CACHE COMMAND...      needs the binaries of `make build`
set -euo pipefail
cache=$1; shift
cd "$(dirname "$0")/../.."
# the path must be short, because the folder contains sockets
STAGECOACH_NODE=$(mktemp -d "${TMPDIR:-/tmp}/stagecoach-node-XXXXXX")
export STAGECOACH_NODE STAGECOACH_IMAGES=$cache/images

end() {
    local status=$?
    trap - EXIT INT TERM HUP
    [ $status = 0 ] || { mkdir -p "$cache/e2e-logs" && cp -r "$STAGECOACH_NODE/logs/." "$cache/e2e-logs"; } 2>/dev/null || true
    # if the node can't be ended, its folder stays, because it lists the changes that are left
    if target/debug/stagecoach-node down "$STAGECOACH_NODE"; then rm -rf "$STAGECOACH_NODE"; else status=1; fi
    exit $status
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

tests/node/start.sh "$cache" "$STAGECOACH_NODE"
STAGECOACH_CLUSTER_TOOLS=$(tests/cluster/tools.sh "$cache" node)
export STAGECOACH_CLUSTER_TOOLS
"$@"
