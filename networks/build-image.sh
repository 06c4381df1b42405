#!/usr/bin/env bash
# Builds the image of a node: networks/build-image.sh [--rdma] [TAG]        (default: starling:latest, or starling-rdma:latest)
#
# Go builds the programs on this machine, not in a container: the image is FROM scratch, so nothing has to be downloaded.
# PROGRAMS names packages in addition to the node's: the networks in the subfolders also need the Byzantine node and the relay.
# PREBUILT names static programs that are already built.
# --rdma builds an image of starlingd-rdma, with this machine's C library, libibverbs and its device libraries: it needs a C
# compiler and libibverbs-dev, which installs all of them. PREBUILT then names a starlingd-rdma.
set -euo pipefail
cd "$(dirname "$0")/.."
file=networks/Dockerfile name=starling
if [ "${1:-}" = --rdma ]; then
  file=networks/Dockerfile.rdma name=starling-rdma
  shift
fi
tag=${1:-$name:latest}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo unknown)}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
install -d "$context/bin" "$context/root/home"
install -d -m 1777 "$context/root/tmp"
cp $file "$context/Dockerfile"

# put_libraries PROGRAM: copies the libraries of a program with RDMA to the same paths below the context's root.
put_libraries() {
  local ibverbs file
  ibverbs=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -1)
  [ -n "$ibverbs" ] || { echo "build-image: libibverbs.so.1 is missing: apt-get install libibverbs-dev" >&2; exit 1; }
  set -- "$1" "$ibverbs" "$(dirname "$(realpath "$ibverbs")")"/libibverbs/*.so
  [ -e "${!#}" ] || { echo "build-image: libibverbs has no device libraries: apt-get install ibverbs-providers" >&2; exit 1; }
  { printf '%s\n' "${@:2}"; ldd "$@" | sed -nE 's/^[^/]*(\/[^ ]+) \(0x.*/\1/p'; } | sort -u | while read -r file; do
    install -D "$file" "$context/root/$file" # what a link points to
  done
  install -d "$context"/root/{etc,lib,lib64,usr}
  cp -RL /etc/libibverbs.d "$context/root/etc/"
  echo 'hosts: files dns' >"$context/root/etc/nsswitch.conf"
}

# shellcheck disable=SC2086 # lists
if [ $name = starling-rdma ]; then
  program=${PREBUILT:-build/starlingd-rdma}
  [ -n "${PREBUILT:-}" ] || make build-rdma VERSION="$version"
  cp "$program" "$context/bin/starlingd-rdma"
  put_libraries "$program"
elif [ -n "${PREBUILT:-}" ]; then
  cp $PREBUILT "$context/bin/"
else
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/starling-kv/starling/node/buildinfo.Version=$version" \
    -o "$context/bin/" ${PROGRAMS:-./cmd/starlingd}
fi
docker build --quiet --label "org.opencontainers.image.version=$version" --tag "$tag" "$context"
