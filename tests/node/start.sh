#!/usr/bin/env bash
# Starts a node with Stagecoach's images on this machine. It installs and builds the prerequisites, except `make build`.
#   start.sh CACHE FOLDER      puts the node's files into FOLDER, and prints the variables for its clients
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
