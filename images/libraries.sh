#!/usr/bin/env bash
# Copies and checks the shared libraries of an image. All are in one flat folder, so that each library finds the others.
#   libraries.sh gather LIST FOLDER ROOT...   copies each file of LIST to FOLDER, from the first ROOT that has it
#   libraries.sh check FOLDER...              checks that the base image, the driver or a FOLDER has each library that
#                                             the files need
set -euo pipefail

gather() {
    local list=$1 folder=$2 path root
    shift 2
    mkdir -p "$folder"
    while read -r path; do
        for root; do [ ! -e "$root/$path" ] || break; done
        # a link takes no space, but works only inside one file system
        ln -fL "$root/$path" "$folder/" 2>/dev/null || cp -L "$root/$path" "$folder/"
    done < <(grep -v '^#' "$list")
}

check() {
    local base="ld-linux-x86-64.so.2 libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libpthread.so.0 librt.so.1 libstdc++.so.6 libutil.so.1"
    local driver="libcuda.so.1" file name missing=0
    local there=" $base $driver $(find "$@" -type f -printf '%f ')"
    while read -r file; do
        while read -r name; do
            [[ $there != *" $name "* ]] || continue
            echo "$file needs $name, which is neither in $* nor in the base image: add it to the list" >&2
            missing=1
        done < <(readelf --dynamic "$file" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p')
    done < <(find "$@" -type f)
    return $missing
}

"$@"
