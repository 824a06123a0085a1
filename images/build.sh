#!/usr/bin/env bash
# Builds the images without a Docker engine, as OCI archives OUT/{operator,trainer,pause,probe,busybox}.tar. Needs root
# on Debian.
#   build.sh OUT [TARGET...]   builds trainer-cuda only if it is named, because that downloads 2 GB of wheels
# The script strips the binaries of `make build`, or those in the folder $BINARIES. $TAG is the images' tag, e2e by
# default. The script does not rebuild an image whose inputs have not changed.
set -euo pipefail
export LC_ALL=C
umask 022
fail() { echo "images: $*" >&2; exit 1; }
[ $# -gt 0 ] || fail "usage: build.sh OUT [operator|trainer|trainer-cuda|pause|probe|busybox...]"
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- operator trainer pause probe busybox
cd "$(dirname "$0")/.."

binaries=${BINARIES:-target/debug}
tag=${TAG:-e2e}

exec 9>"$out/.lock"
flock 9
# a killed run leaves these folders behind
rm -rf "$out"/.building-*
scratch=$(mktemp -d "$out/.building-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# vfs and chroot need neither mounts nor a daemon. The trap deletes the storage when this script ends
buildah=(buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs)

quietly() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "this failed: $*"; }; }

# Runs a command and prints its duration.
step() {
    local what=$1 start=${EPOCHREALTIME/./} tenths
    shift
    "$@"
    tenths=$(((${EPOCHREALTIME/./} - start) / 100000))
    printf '  %-34s %3d.%d s\n' "$what" $((tenths / 10)) $((tenths % 10))
}

name_of() {
    case $1 in
        pause) echo localhost/pause:1 ;;
        # the name that the documentation's commands use
        busybox) echo docker.io/library/busybox:1.37 ;;
        *) echo "localhost/stagecoach-$1:$tag" ;;
    esac
}

# The upper bound of the size of an image's archive in bytes. The archive is compressed.
bound_of() {
    case $1 in
        operator) echo 30000000 ;;
        trainer) echo 200000000 ;;
    esac
}

inputs_of() {
    echo images/build.sh
    case $1 in
        operator) echo Dockerfile Cargo.lock scripts/sbom.py images/base/Dockerfile "$binaries/stagecoach-operator" ;;
        trainer) echo Dockerfile Cargo.lock scripts/sbom.py images/base/Dockerfile "$binaries"/stagecoach{,-entrypoint} .libtorch/.fetched images/{libraries.sh,cpu-libraries.txt} ;;
        trainer-cuda) inputs_of trainer; echo images/cuda-{libraries,wheels}.txt ;;
        pause | probe | busybox) echo "images/$1"/* ;;
        *) fail "there is no image $1: operator, trainer, trainer-cuda, pause, probe or busybox" ;;
    esac
}

# These functions make the files that the Dockerfile's stages would compile or download.
binary() {
    mkdir -p "$scratch/$1/out/bin"
    strip -o "$scratch/$1/out/bin/$2" "$binaries/$2"
}
sbom() {
    mkdir -p "$scratch/$1/out/sbom"
    quietly scripts/sbom.py "$2" "$scratch/$1/out/sbom/$2.cdx.json" "${@:3}"
}
libraries() {
    images/libraries.sh gather images/cpu-libraries.txt "$scratch/$1/out/lib" .libtorch
    images/libraries.sh check "$scratch/$1"/out/{bin,lib}
}
cuda() {
    local wheels=$out/cuda-wheels
    if ! cmp -s images/cuda-wheels.txt "$wheels/fetched.txt"; then
        rm -rf "$wheels"
        quietly python3 -m pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: \
            --root-user-action=ignore --target "$wheels" --requirement images/cuda-wheels.txt
        cp images/cuda-wheels.txt "$wheels/fetched.txt"
    fi
    images/libraries.sh gather images/cuda-libraries.txt "$scratch/$1/out/cuda" .libtorch "$wheels" /
    images/libraries.sh check "$scratch/$1"/out/{bin,lib,cuda}
    mkdir "$scratch/$1/out/sbom-cuda"
    quietly scripts/sbom.py stagecoach "$scratch/$1/out/sbom-cuda/stagecoach.cdx.json" scripts/libtorch.txt images/cuda-wheels.txt
}
pause() {
    mkdir "$scratch/pause"
    cc -static -Os -s -Wall -Wextra -Werror -o "$scratch/pause/pause" images/pause/pause.c
}
probe() {
    command -v go >/dev/null || fail "go is missing: install Go 1.26 or newer from https://go.dev/dl"
    # Go compiles its standard library once for this program and for the tools of a test cluster if the flags are equal
    local -x CGO_ENABLED=0 GOFLAGS='-trimpath -gcflags=all=-dwarf=false'
    mkdir "$scratch/probe"
    cd images/probe
    quietly go vet .
    quietly go test .
    go build -ldflags='-s -w' -o "$scratch/probe/probe" .
    cd "$OLDPWD"
}

# The image of the pods in which users copy their files to a volume. It has Debian's busybox.
busybox() {
    mkdir -p "$scratch/busybox/root/bin" "$scratch/busybox/root/tmp"
    debian_packages busybox-static
    dpkg-deb --fsys-tarfile "$scratch"/debs/busybox-static_*.deb | tar --extract --to-stdout ./bin/busybox >"$scratch/busybox/root/bin/busybox"
    chmod 755 "$scratch/busybox/root/bin/busybox"
    local name
    for name in $("$scratch/busybox/root/bin/busybox" --list); do
        [ "$name" = busybox ] || ln -s busybox "$scratch/busybox/root/bin/$name"
    done
}

debian_packages() {
    mkdir -p "$scratch/debs"
    cd "$scratch/debs"
    local get=(apt-get --quiet --option APT::Sandbox::User=root download "$@")
    "${get[@]}" >/dev/null 2>&1 || { quietly apt-get --quiet --option DPkg::Lock::Timeout=300 update; quietly "${get[@]}"; }
    cd "$OLDPWD"
}

# Replaces distroless/cc by the same Debian packages. They come from this machine's apt, because the binaries were built
# on this machine.
unpack_base() {
    local root=$scratch/root package
    mkdir -p "$root/etc"
    rm -rf "$scratch/debs"
    debian_packages libc6 libstdc++6 libgcc-s1 libgomp1 ca-certificates
    for package in "$scratch"/debs/*.deb; do dpkg -x "$package" "$root"; done
    find "$root/usr/share/doc" -type f ! -name copyright -delete
    rm -rf "$root"/usr/share/{lintian,man}
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin >"$root/etc/passwd"
    printf '%s\n' root:x:0: nonroot:x:65532: >"$root/etc/group"
    install -d -m 1777 "$root/tmp"
    install -d -m 0700 -o 65532 -g 65532 "$root/home/nonroot"
    # an archive keeps the owners of its files, and a copied folder does not
    tar --create --sort=name --directory "$root" --file "$scratch/root.tar" .
    mv "$scratch/root.tar" "$out/.base.tar"
}
base() {
    [ "$out/.base.tar" -nt images/build.sh ] || unpack_base
    mkdir "$scratch/base"
    ln "$out/.base.tar" "$scratch/base/root.tar"
    bud --tag localhost/base --file images/base/Dockerfile "$scratch/base"
}

# Without timestamps, images with equal contents have equal digests.
bud() { quietly "${buildah[@]}" bud --isolation chroot --pull-never --timestamp 0 "$@"; }

assemble() {
    local file=Dockerfile stages=(--target "$1" --build-arg BASE=localhost/base --build-arg "VERSION=$version") stage
    for stage in operator-binary trainer-binary cuda-libraries; do stages+=(--build-context "$stage=$scratch/$1"); done
    case $1 in pause | probe | busybox) file=images/$1/Dockerfile stages=() ;; esac
    bud --tag "$(name_of "$1")" --file "$file" "${stages[@]}" "$scratch/$1"
}

archive() { quietly "${buildah[@]}" push "$(name_of "$1")" "oci-archive:$scratch/$1.tar:$(name_of "$1")"; }

build() {
    [ "$(id -u)" = 0 ] || fail "buildah needs root here: run as root, or use docker build (see Dockerfile)"
    command -v buildah >/dev/null || step "installing buildah" install_buildah
    case $1 in
        pause | probe) step "compiling $1" "$1" ;;
        busybox) step "fetching $1" "$1" ;;
        *) [ -e "$scratch/base" ] || step "base image" base ;;
    esac
    case $1 in
        operator)
            step "stripping" binary "$1" stagecoach-operator
            step "listing what it is made of" sbom "$1" stagecoach-operator ;;
        trainer*)
            step "stripping" binary "$1" stagecoach
            step "stripping its entry point" binary "$1" stagecoach-entrypoint
            step "listing what it is made of" sbom "$1" stagecoach scripts/libtorch.txt
            step "gathering libtorch" libraries "$1"
            [ "$1" = trainer ] || step "gathering CUDA" cuda "$1" ;;
    esac
    step "assembling $1" assemble "$1"
    step "compressing $1" archive "$1"
    # if the run is killed between these two commands, the next run builds the image again
    rm -f "$out/$1.inputs"
    mv "$scratch/$1.tar" "$out/"
    rm -rf "${scratch:?}/$1"
}

install_buildah() {
    quietly apt-get --quiet --option DPkg::Lock::Timeout=300 update
    quietly apt-get --option DPkg::Lock::Timeout=300 install --yes --quiet --no-install-recommends buildah
}

version=$(sed -nE '/^\[workspace.package\]/,/^\[/ s/^version = "(.*)"/\1/p' Cargo.toml)
for target in "$@"; do
    list=$(inputs_of "$target")
    read -ra inputs <<<"${list//$'\n'/ }"
    for file in "${inputs[@]}"; do [ -e "$file" ] || fail "$file is missing: run \`make build\` first"; done
    fingerprint=$( (echo "$version $tag" && sha256sum "${inputs[@]}") | sha256sum)
    state=unchanged
    if [ ! -e "$out/$target.tar" ] || [ "$(cat "$out/$target.inputs" 2>/dev/null)" != "$fingerprint" ]; then
        build "$target"
        echo "$fingerprint" >"$out/$target.inputs"
        state=built
    fi
    size=$(stat -c %s "$out/$target.tar")
    bound=$(bound_of "$target")
    printf '%-9s %-36s %6d.%d MB compressed%s\n' "$state" "$(name_of "$target")" $((size / 1000000)) $((size / 100000 % 10)) \
        "${bound:+ (at most $((bound / 1000000)))}"
    [ -z "$bound" ] || [ "$size" -lt "$bound" ] || fail "$(name_of "$target") is too large"
done
