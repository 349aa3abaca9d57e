# shellcheck shell=bash
# What every script of the test cluster agrees on: where things are and how to give up. Sourced, never run.
# shellcheck disable=SC2034 # used where it is sourced

cluster_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$cluster_dir/../.." && pwd)
name=${CLUSTER_NAME:-sluice}
cluster_home=${CLUSTER_HOME:-/var/tmp/cluster}
home=$cluster_home/$name # of this cluster alone; the binaries beside it serve all
bin=${CLUSTER_BIN:-$cluster_home/bin}
namespace=cluster-$name

helm_version=v4.3.1
kubernetes_version=$(sed -n 's/^\tk8s.io\/kubernetes v//p' "$cluster_dir/go.mod")
node_ip=10.99.0.2 pods=10.244.0.0/24 services=10.96.0.0/16 # inside the network namespace, so the same for each cluster

# Daemons live in sbin, which is not on everybody's path; nor is where Go and Rust unpack themselves.
PATH=$bin:$PATH:/usr/sbin:/sbin:/usr/local/go/bin:${HOME:-/root}/.cargo/bin
export PATH

fail() { # MESSAGE...: one line each, then the end
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}
step() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
need_root() {
  ((EUID == 0)) || fail "$1 needs root, for network namespaces, mounts and cgroups" \
    "run it again as root (sudo -E keeps your settings), or use a cluster that you have: CLUSTER=current"
}

[[ $name =~ ^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$ && $name != bin ]] ||
  fail "CLUSTER_NAME '$name' must be 1 to 32 lower-case letters, digits and '-', and not 'bin'"
# A socket's path has room for 107 bytes, and the longest one in there is some 45 longer than its folder.
((${#home} <= 60)) || fail "'$home' is too long for the sockets in it: set CLUSTER_HOME to a shorter path"
