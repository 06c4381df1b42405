#!/usr/bin/env bash
# Builds the image of a node: networks/build-image.sh [--rdma] [TAG]        (default: starling:latest, or starling-rdma:latest)
#
# Go builds the programs on this machine, not in a container: the image is FROM scratch, so nothing has to be downloaded.
# PROGRAMS names further packages besides the node's: the networks in the subfolders also need the lying node and the relay.
# PREBUILT names static programs that are already built.
# --rdma builds one on Debian, with libibverbs, around starlingd-rdma: this machine needs a C compiler, libibverbs-dev and a glibc no
# newer than that of Debian 12.
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
# shellcheck disable=SC2086 # lists
if [ $name = starling-rdma ]; then
  make build-rdma VERSION="$version"
  cp build/starlingd-rdma "$context/bin/"
elif [ -n "${PREBUILT:-}" ]; then
  cp $PREBUILT "$context/bin/"
else
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/starling-kv/starling/node/buildinfo.Version=$version" \
    -o "$context/bin/" ${PROGRAMS:-./cmd/starlingd}
fi
docker build --quiet --label "org.opencontainers.image.version=$version" --tag "$tag" "$context"
