#!/usr/bin/env bash
# Installs the Debian packages that a real node needs, if they are missing. Needs root on Linux.
set -euo pipefail
if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
    echo "the tests on a real node need root on Linux: run them with sudo on a Debian or Ubuntu machine" >&2
    exit 1
fi
PATH=$PATH:/usr/sbin:/sbin

# each line has a package, and the file of this package that a node needs
missing=()
while read -r package file; do
    command -v "$file" >/dev/null || missing+=("$package")
done <<'END'
runc runc
containernetworking-plugins /usr/lib/cni/ptp
iptables iptables-save
iproute2 ip
e2fsprogs mkfs.ext4
mount mount
END
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { echo "install ${missing[*]} for the tests on a real node" >&2; exit 1; }
echo "installing ${missing[*]}" >&2
quietly() { output=$("$@" 2>&1) || { echo "$output" >&2; exit 1; }; }
export DEBIAN_FRONTEND=noninteractive
quietly apt-get update -o DPkg::Lock::Timeout=300
quietly apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"
