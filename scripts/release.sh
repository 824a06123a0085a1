#!/usr/bin/env bash
# Makes the files of a release in a folder that appears when it is complete: release.sh CACHE OUT
#   the images as OCI archives, kubectl's plugin, the chart's package, the CRD, SBOMs (CycloneDX) of the images and the
#   plugin, and SHA256SUMS
# The script has the prerequisites of images/build.sh. With $BINARIES, it compiles nothing, and takes the binaries in
# that folder.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$1 out=$2
version=$(sed -nE '/^\[workspace.package\]/,/^\[/ s/^version = "(.*)"/\1/p' Cargo.toml)
target=target/release-build
made=$out.new
rm -rf "$made"
mkdir -p "$made" "$target/images"

binaries=${BINARIES:-$target/release}
if [ -z "${BINARIES:-}" ]; then
    echo "building the binaries: minutes the first time"
    scripts/build_release.sh "$target" stagecoach-operator stagecoach stagecoach-kubectl
fi
BINARIES=$binaries TAG=$version images/build.sh "$target/images" operator trainer
for image in operator trainer; do cp "$target/images/$image.tar" "$made/stagecoach-$image-$version.oci.tar"; done
scripts/sbom.py stagecoach-operator "$made/stagecoach-operator-$version.cdx.json"
scripts/sbom.py stagecoach "$made/stagecoach-trainer-$version.cdx.json" scripts/libtorch.txt
scripts/sbom.py stagecoach-kubectl "$made/kubectl-stagecoach-$version.cdx.json"
cp "$binaries/kubectl-stagecoach" "$made/kubectl-stagecoach-$version-linux-amd64"
cp manifests/crd/pipelinejobs.yaml "$made/pipelinejobs-$version.yaml"
helm=$(tests/cluster/tools.sh "$cache" helm)/helm
"$helm" package charts/stagecoach --version "$version" --app-version "$version" --destination "$made" >/dev/null

(cd "$made" && sha256sum -- * >SHA256SUMS)
rm -rf "$out"
mv "$made" "$out"
cat "$out/SHA256SUMS"
