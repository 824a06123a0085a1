#!/usr/bin/env bash
# Builds the tools of a test cluster from Go modules, each once, and prints the folder that holds them.
#   tools.sh CACHE [TOOL...]      by default a control plane, kubectl, helm, Argo CD's Lua, the CRDs of other schedulers,
#                                 and Kueue; `node` adds the tools of a node; `otelcol` is an OpenTelemetry collector
set -euo pipefail
cd "$(dirname "$0")"
cache=$1; shift
plane=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm glua controller-gen kueue)
case "$*" in
    "") set -- "${plane[@]}" ;;
    node) set -- "${plane[@]}" kubelet kube-proxy containerd containerd-shim-runc-v2 ctr coredns ;;
esac

# module_of prints the module that pins a tool's version, and package_of prints the tool's package. The tools that
# contain Kubernetes' libraries are in one module, so that Go compiles these libraries once.
module_of() {
    case $1 in
        etcd | kube* | helm | kueue | containerd* | ctr | coredns) echo tools ;;
        controller-gen) echo podgroups ;;
        *) echo "$1" ;;
    esac
}
package_of() {
    case $1 in
        etcd) echo go.etcd.io/etcd/server/v3 ;;
        helm) echo helm.sh/helm/v4/cmd/helm ;;
        # a program of this repository, from the parts that the collector's authors publish
        otelcol) echo . ;;
        glua) echo github.com/yuin/gopher-lua/cmd/glua ;;
        kwok) echo sigs.k8s.io/kwok/cmd/kwok ;;
        jobset) echo sigs.k8s.io/jobset ;;
        kueue*) echo sigs.k8s.io/kueue/cmd/kueue ;;
        controller-gen) echo sigs.k8s.io/controller-tools/cmd/controller-gen ;;
        coredns) echo ./coredns ;;
        containerd* | ctr) echo "github.com/containerd/containerd/v2/cmd/$1" ;;
        *) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}
# Prints a hash of the pins and the programs in folders.
hash() { find "$@" -name go.mod -o -name go.sum -o -name '*.go' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12; }
# Downloads the module $2, which the module in folder $1 pins, and prints the folder with its source.
source_of() { (cd "$1" && go mod download "$2" && go list -m -f '{{.Dir}}' "$2"); }

# The name of a folder has a hash of its pins, so that builds of different pins never mix. The tools of a module are in
# the folder of the module's pins, so that a changed pin rebuilds only the tools of its module. The folder of all pins
# has links to the requested tools.
folder=$cache/cluster-$(hash ./*/)
mkdir -p "$folder"
# one build at a time, also across checkouts
exec 9>"$cache/.cluster-lock"
flock 9

# The linker sets the version that Kubernetes reports. Without it, charts that require a version refuse the server.
version=$(sed -nE 's/^\tk8s.io\/kubernetes (v[0-9.]+).*/\1/p' tools/go.mod)
IFS=. read -r major minor _ <<<"${version#v}"
stamp=k8s.io/component-base/version
flags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor"

count=0
for tool in "$@"; do
    count=$((count + 1))
    module=$(module_of "$tool")
    built=tools/$module-$(hash "$module")
    if [ ! -x "$cache/$built/$tool" ]; then
        command -v go >/dev/null || { echo "go is missing: install Go 1.26 or newer from https://go.dev/dl" >&2; exit 1; }
        echo "building $tool ($count of $#, once, into $cache/$built)" >&2
        mkdir -p "$cache/$built"
        (cd "$module" && CGO_ENABLED=0 nice go build -p 2 -trimpath -gcflags=all=-dwarf=false -ldflags="$flags" \
            -o "$cache/$built/.building-$tool" "$(package_of "$tool")")
        # JobSet's source contains its CRD
        [ "$tool" != jobset ] || install -m 644 "$(source_of jobset sigs.k8s.io/jobset)"/config/components/crd/bases/*.yaml \
            "$cache/$built/jobset.crd.yaml"
        # Kueue's source contains its CRDs, and its webhooks as they are inside a cluster
        if [[ $tool == kueue* ]]; then
            components=$(source_of "$module" sigs.k8s.io/kueue)/config/components
            cat "$components"/crd/bases/*.yaml >"$cache/$built/$tool.crds.yaml"
            cat "$components"/webhook/manifests.yaml >"$cache/$built/$tool.webhooks.yaml"
        fi
        # controller-gen makes Volcano's CRDs from its types, and the source of scheduler-plugins contains its CRDs
        if [ "$tool" = controller-gen ]; then
            (cd podgroups && nice "$cache/$built/.building-$tool" crd output:crd:dir="$cache/$built" \
                paths=volcano.sh/apis/pkg/apis/scheduling/v1beta1)
            install -m 644 "$(source_of podgroups sigs.k8s.io/scheduler-plugins)"/config/crd/bases/scheduling.x-k8s.io_podgroups.yaml \
                "$cache/$built"
        fi
        mv "$cache/$built/.building-$tool" "$cache/$built/$tool"
    fi
    [ -e "$folder/$tool" ] || ln -sfn "../$built/$tool" "$folder/$tool"
done
echo "$folder"
