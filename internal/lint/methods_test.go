package lint

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/catchup"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/tcp"
)

// TestMethodNumbers: each package numbers its own messages, so only a test of all of them shows
// that numbers are unique and that docs/spec/transport.md lists them all.
func TestMethodNumbers(t *testing.T) {
	named := map[string]transport.Method{
		"status": protocol.MethodStatus, "commitment": protocol.MethodCommitment, "manifest": protocol.MethodManifest,
		"chunk": protocol.MethodChunk, "sub-manifest": protocol.MethodSubManifest, "peers": protocol.MethodPeers, "genesis": protocol.MethodGenesis,
		"light block": lightblocks.MethodLightBlock, "consensus parameters": lightblocks.MethodConsensusParams,
		"evidence": lightblocks.MethodEvidence, "headers": lightblocks.MethodHeaders,
		"ranges": dsm.MethodRanges, "witness": dsm.MethodWitness,
		"upper": dsm.MethodUpper, "update": dsm.MethodUpdate,
		"blocks": catchup.MethodBlocks, "exchange": rdma.Method, "relay": relay.Method, "parts": protocol.MethodParts, "outline": dsm.MethodOutline, "map": dsm.MethodMap,
		"loads": dsm.MethodLoads,
	}
	spec, err := os.ReadFile("docs/spec/transport.md")
	require.NoError(t, err)
	listed := map[string]transport.Method{}
	_, methods, _ := bytes.Cut(spec, []byte("\n## Methods\n"))
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) ([a-z -]+) \|`).FindAllSubmatch(methods, -1) {
		n, err := strconv.ParseUint(string(row[1]), 10, 8)
		require.NoError(t, err)
		listed[string(row[2])] = transport.Method(n)
	}
	require.Equal(t, named, listed, "docs/spec/transport.md#methods")

	mux := new(transport.Mux)
	serve.New(serve.Options{}).Register(mux)
	// panics if a number is used twice
	lightblocks.NewServer(lightblocks.ServerOptions{}).Register(mux)
	catchup.NewServer(nil).Register(mux)
	storage, err := server.NewServer(server.ServerOptions{})
	require.NoError(t, err)
	storage.Register(mux)
	relay.New(relay.Options{Dialer: tcp.NewDialer(tcp.Options{})}).Register(mux)
	new(rangemap.Maps).Register(mux)
	handled := map[transport.Method]bool{rdma.Method: true} // by package tcp, before any handler
	require.Nil(t, mux[rdma.Method])
	for n, h := range mux {
		if h != nil {
			handled[transport.Method(n)] = true
		}
	}
	for name, n := range named {
		require.True(t, handled[n], "method %d, %s, has no handler", n, name)
		delete(handled, n)
	}
	require.Empty(t, handled, "methods that docs/spec/transport.md#methods does not list")

	for name, n := range map[string]transport.Method{
		"status": liar.MethodStatus, "commitment": liar.MethodCommitment, "manifest": liar.MethodManifest, "chunk": liar.MethodChunk,
		"sub-manifest": liar.MethodSubManifest, "light block": liar.MethodLightBlock, "peers": liar.MethodPeers, "genesis": liar.MethodGenesis,
		"witness": liar.MethodWitness, "upper": liar.MethodUpper, "outline": liar.MethodOutline,
	} {
		require.Equal(t, listed[name], n, "%s of the Byzantine peer", name)
	}
}
