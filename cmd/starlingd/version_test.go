package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cmd/starlingd/cli"
)

// TestVersion is in this package because Go records dependencies in the test binaries of commands
// only.
func TestVersion(t *testing.T) {
	var out, stderr bytes.Buffer
	require.Zero(t, cli.Run([]string{"version"}, &out, &stderr), stderr.String())
	require.Regexp(t, `(?m)^cometbft  v0\.`, out.String())
	out.Reset()
	require.Zero(t, cli.Run([]string{"version", "--output", "json"}, &out, &stderr), stderr.String())
	require.Regexp(t, `"cometbft": "v0\.`, out.String())
}
