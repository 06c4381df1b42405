#!/bin/sh
# Regenerates app.pb.go from app.proto. Needs protoc (3.21 or newer) on the PATH; the Go plugin and gogo.proto come from the
# gogoproto version that go.mod names. The plugin insists on a file path that follows the protobuf package (starling.app.v1),
# so protoc sees app.proto under that path.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/protoc-gen-gocosmos" github.com/cosmos/gogoproto/protoc-gen-gocosmos
gogo=$(go list -m -f '{{.Dir}}' github.com/cosmos/gogoproto)
mkdir -p "$tmp/starling/app/v1"
cp app.proto "$tmp/starling/app/v1/"
PATH="$tmp:$PATH" protoc -I "$tmp" -I "$gogo" -I "$gogo/protobuf" \
	--gocosmos_out=paths=source_relative:"$tmp" starling/app/v1/app.proto
gofmt "$tmp/starling/app/v1/app.pb.go" >app.pb.go
