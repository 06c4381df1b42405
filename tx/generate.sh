#!/bin/sh
# Regenerates tx.pb.go from tx.proto. Needs protoc (3.21 or newer) on the PATH; the Go plugin and gogo.proto come from the
# gogoproto version that go.mod names. The plugin insists on a file path that follows the protobuf package (starling.tx.v1),
# so protoc sees tx.proto under that path.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/protoc-gen-gocosmos" github.com/cosmos/gogoproto/protoc-gen-gocosmos
gogo=$(go list -m -f '{{.Dir}}' github.com/cosmos/gogoproto)
mkdir -p "$tmp/starling/tx/v1"
cp tx.proto "$tmp/starling/tx/v1/"
PATH="$tmp:$PATH" protoc -I "$tmp" -I "$gogo" -I "$gogo/protobuf" \
	--gocosmos_out=paths=source_relative:"$tmp" starling/tx/v1/tx.proto
gofmt "$tmp/starling/tx/v1/tx.pb.go" >tx.pb.go
