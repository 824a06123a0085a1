#!/usr/bin/env bash
# Builds a binary twice, from copies of the sources in two folders, and compares the builds:
# reproducible.sh [PACKAGE [BINARY]]
set -euo pipefail
cd "$(dirname "$0")/.."
package=${1:-stagecoach-operator}
binary=${2:-$package}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copies=(one another-one)
for copy in "${copies[@]}"; do
    mkdir "$scratch/$copy"
    git ls-files -z | xargs -0 cp --parents --target-directory="$scratch/$copy"
    [ ! -e .libtorch ] || ln -s "$PWD/.libtorch" "$scratch/$copy/.libtorch"
done
for copy in "${copies[@]}"; do "$scratch/$copy/scripts/build_release.sh" "$scratch/$copy/target" "$package"; done
sums=$(cd "$scratch" && sha256sum ./*/target/release/"$binary")
echo "$sums"
[ "$(cut -d' ' -f1 <<<"$sums" | sort -u | wc -l)" -eq 1 ] || { echo "two builds of $package differ" >&2; exit 1; }
