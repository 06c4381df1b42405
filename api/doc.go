// Package api is the gRPC service of a node (docs/spec/grpc.md): the messages, a client's stub and
// a server's interface, all generated from starling.proto. Go programs use package client instead,
// which verifies what a node says.
package api

//go:generate ../scripts/generate-grpc.sh
