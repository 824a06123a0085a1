#!/usr/bin/env bash
# Starts a node on this machine that has Stagecoach's images, installing and building what it takes; `make build` comes first.
#   start.sh CACHE FOLDER      the node's files go to FOLDER; prints how to reach it
set -euo pipefail
cache=$1 folder=$2
cd "$(dirname "$0")/../.."
tests/node/packages.sh
STAGECOACH_CLUSTER_TOOLS=$(tests/cluster/tools.sh "$cache" node)
export STAGECOACH_CLUSTER_TOOLS
images/build.sh "$cache/images" >&2
images=()
for image in operator trainer probe busybox; do images+=(--image "$cache/images/$image.tar"); done
target/debug/stagecoach-node up "$folder" --pause "$cache/images/pause.tar" "${images[@]}"
echo "export PATH=$STAGECOACH_CLUSTER_TOOLS:\$PATH"
