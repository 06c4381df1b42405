#!/bin/sh
# generate-proto.sh NAME, run in the folder of package NAME, makes NAME.pb.go of NAME.proto. It needs protoc (3.21 or newer) on the
# PATH; the Go plugin and gogo.proto come from the gogoproto version that go.mod names. The plugin insists on a file path that
# follows the protobuf package (starling.NAME.v1), so protoc sees NAME.proto under that path.
set -eu
name=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/protoc-gen-gocosmos" github.com/cosmos/gogoproto/protoc-gen-gocosmos
gogo=$(go list -m -f '{{.Dir}}' github.com/cosmos/gogoproto)
mkdir -p "$tmp/starling/$name/v1"
cp "$name.proto" "$tmp/starling/$name/v1/"
PATH="$tmp:$PATH" protoc -I "$tmp" -I "$gogo" -I "$gogo/protobuf" \
	--gocosmos_out=paths=source_relative:"$tmp" "starling/$name/v1/$name.proto"
gofmt "$tmp/starling/$name/v1/$name.pb.go" >"$name.pb.go"
