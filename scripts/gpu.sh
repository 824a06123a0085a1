#!/usr/bin/env bash
# The two parts of `make gpu`. The machine with the GPU may have neither Rust nor a network.
#   gpu.sh pack FOLDER             copies the necessary binaries to FOLDER, stripped, and packs them as FOLDER.tar.gz
#   gpu.sh run FOLDER [RESULTS [PART...]]
#                                  runs the binaries of FOLDER or FOLDER.tar.gz, with the libtorch of $LIBTORCH, or of
#                                  a Python that has torch 2.11 for CUDA 13; with names of parts, measures only these
set -euo pipefail
cd "$(dirname "$0")/.."

pack() {
    local folder=$1 tests
    mkdir -p "$folder"
    tests=$(cargo test --workspace --lib --no-run --message-format=json | python3 -c '
import json, sys
built = [json.loads(line) for line in sys.stdin]  # all lines: cargo fails if its output has no reader
print(next(b["executable"] for b in built if b.get("executable") and b["target"]["name"] == "stagecoach_kernels" and "lib" in b["target"]["kind"]))')
    strip -o "$folder/kernel-tests" "$tests"
    # without a GPU, the stand-in replaces NCCL and the driver
    for name in stagecoach stagecoach-bench libhost_waits.so libnccl_stand_in.so; do strip -o "$folder/$name" "target/debug/$name"; done
    git describe --always --abbrev=40 --dirty >"$folder/commit"
    tar -czf "$folder.tar.gz" -C "$folder" kernel-tests stagecoach stagecoach-bench libhost_waits.so libnccl_stand_in.so commit
}

run() {
    local folder=$1 results=${2:-bench/results} torch
    if [[ $folder == *.tar.gz ]]; then
        folder=$(mktemp -d)
        tar -xzf "$1" -C "$folder"
    fi
    folder=$(cd "$folder" && pwd)
    mkdir -p "$results"
    torch=${LIBTORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)} || {
        echo "gpu.sh: no libtorch here: python3 has no torch, and LIBTORCH does not name its folder" >&2
        exit 1
    }
    LD_LIBRARY_PATH=$torch/lib:$(find "$torch/../nvidia/" -name lib -type d 2>/dev/null | paste -sd : || true)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    STAGECOACH_COMMIT=$(cat "$folder/commit")
    export LD_LIBRARY_PATH STAGECOACH_COMMIT STAGECOACH_KERNEL_TESTS=$folder/kernel-tests
    "$folder/stagecoach-bench" gpu "$folder/workspace" "$results" "${@:3}"
}

"$@"
