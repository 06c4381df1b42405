#!/bin/sh
# generate-grpc.sh, run in the folder of package api, makes starling.pb.go and starling_grpc.pb.go of starling.proto. It needs protoc
# (3.21 or newer) on the PATH. The plugins are the official ones, in the versions below: gogoproto's messages have no reflection that
# gRPC's server could offer.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
GOBIN="$tmp" go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
GOBIN="$tmp" go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1
PATH="$tmp:$PATH" protoc --go_out=paths=source_relative:. --go-grpc_out=paths=source_relative:. starling.proto
# protoc's own version is the machine's: it is left out, so that another protoc generates the same files.
sed -i '/^\/\/ \(- \)\?[[:space:]]*protoc  */d' starling.pb.go starling_grpc.pb.go
