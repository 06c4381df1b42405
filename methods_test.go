package starling

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/catchup"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/relay"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/rdma"
)

// TestMethodNumbers: each package numbers its own messages, so that only their sum shows that no
// number is taken twice, and that docs/spec/transport.md lists them all.
func TestMethodNumbers(t *testing.T) {
	named := map[string]transport.Method{
		"status": fastsync.MethodStatus, "commitment": fastsync.MethodCommitment, "manifest": fastsync.MethodManifest,
		"chunk": fastsync.MethodChunk, "sub-manifest": fastsync.MethodSubManifest, "peers": fastsync.MethodPeers, "genesis": fastsync.MethodGenesis,
		"light block": lightblocks.MethodLightBlock, "consensus parameters": lightblocks.MethodConsensusParams,
		"evidence": lightblocks.MethodEvidence, "headers": lightblocks.MethodHeaders,
		"ranges": transport.Method(dsm.MethodRanges), "witness": transport.Method(dsm.MethodWitness),
		"upper": transport.Method(dsm.MethodUpper), "update": transport.Method(dsm.MethodUpdate),
		"blocks": catchup.MethodBlocks, "exchange": rdma.Method, "relay": relay.Method, "parts": fastsync.MethodParts, "outline": transport.Method(dsm.MethodOutline),
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
	fastsync.NewServer(fastsync.ServerOptions{}).Register(mux)
	// panics where a number is taken
	lightblocks.NewServer(lightblocks.ServerOptions{}).Register(mux)
	catchup.NewServer(nil).Register(mux)
	storage, err := storagenode.NewNode(storagenode.NodeOptions{})
	require.NoError(t, err)
	storage.Register(mux)
	relay.New(relay.Options{}).Register(mux)
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
	} {
		require.Equal(t, listed[name], n, "the liar's %s", name)
	}
}
