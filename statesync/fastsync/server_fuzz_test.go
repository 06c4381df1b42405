package fastsync

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// FuzzServer has anything asked: what is not refused or gone is an answer of at most the length
// that a joiner expects.
func FuzzServer(f *testing.F) {
	for _, body := range [][]byte{
		nil, heightBody(10), heightBody(-1), chunkRequest{10, 0, 0, 1}.encode(), chunkRequest{10, 1, 1, 1<<32 - 1}.encode(),
		manifestRequest{10, 1, 5}.encode(), manifestRequest{10, 1 << 63, 1 << 31}.encode(), subManifestRequest{10, 0, 4096}.encode(), subManifestRequest{10, 1, 1 << 31}.encode(),
	} {
		for method := range uint8(MethodParts + 1) {
			f.Add(method, body)
		}
	}
	m := statesync.NewManager(statesync.Options{Interval: 10, Keep: 1})
	f.Cleanup(func() { m.Close() })
	v, err := avlstar.Empty(20_000)
	require.NoError(f, err)
	var changes []avlstar.Change
	for i := range 500 {
		changes = append(changes, avlstar.Change{Key: fmt.Appendf(nil, "key-%04d", i), Value: make([]byte, 100)})
	}
	v, err = v.Apply(changes)
	require.NoError(f, err)
	m.Committed(10, v)
	mux := new(transport.Mux)
	NewServer(ServerOptions{Snapshots: m, Genesis: []byte("{}")}).Register(mux)
	f.Fuzz(func(t *testing.T, method uint8, body []byte) {
		answer, err := mux.Serve(t.Context(), transport.Request{Peer: "peer", Method: transport.Method(method), Body: body})
		if err != nil {
			require.True(t, errors.Is(err, transport.ErrRefused) || errors.Is(err, transport.ErrGone), "%v", err)
			return
		}
		switch transport.Method(method) {
		case MethodStatus:
			require.LessOrEqual(t, len(answer), maxStatusBytes)
		case MethodPeers:
			require.LessOrEqual(t, len(answer), maxPeersBytes)
		case MethodChunk:
			require.Len(t, answer, int(binary.BigEndian.Uint32(body[16:])))
		case MethodManifest:
			if len(body) > 8 { // a range, which may lie beyond the end
				require.LessOrEqual(t, len(answer), int(binary.BigEndian.Uint32(body[16:])))
				return
			}
			require.NotEmpty(t, answer)
		case MethodSubManifest, MethodCommitment:
			require.NotEmpty(t, answer)
		case MethodGenesis:
			require.Equal(t, "{}", string(answer))
		default:
			t.Fatalf("an answer to method %d", method)
		}
	})
}
