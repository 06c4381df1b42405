#!/usr/bin/env bash
# Builds the image of a node: networks/build-image.sh [TAG]        (default: starling:latest)
#
# Go builds the programs on this machine, not in a container: the image is FROM scratch, so nothing has to be downloaded.
# PROGRAMS names further packages besides the node's: the networks in the subfolders also need the lying node and the relay.
# PREBUILT names static programs that are already built.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:-starling:latest}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo unknown)}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
install -d "$context/bin" "$context/root/home"
install -d -m 1777 "$context/root/tmp"
cp networks/Dockerfile "$context"
# shellcheck disable=SC2086 # lists
if [ -n "${PREBUILT:-}" ]; then
  cp $PREBUILT "$context/bin/"
else
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/starling-kv/starling/node/buildinfo.Version=$version" \
    -o "$context/bin/" ${PROGRAMS:-./cmd/starlingd}
fi
docker build --quiet --label "org.opencontainers.image.version=$version" --tag "$tag" "$context"
