package serve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// FuzzServer sends arbitrary requests: an answer is refused, gone, or at most as long as a joiner
// expects.
func FuzzServer(f *testing.F) {
	for _, body := range [][]byte{
		nil, protocol.HeightBody(10), protocol.HeightBody(-1), protocol.ChunkRequest{Height: 10, K: 0, Offset: 0, Length: 1}.Encode(), protocol.ChunkRequest{Height: 10, K: 1, Offset: 1, Length: 1<<32 - 1}.Encode(),
		protocol.ManifestRequest{Height: 10, Offset: 1, Length: 5}.Encode(), protocol.ManifestRequest{Height: 10, Offset: 1 << 63, Length: 1 << 31}.Encode(), protocol.SubManifestRequest{Height: 10, K: 0, Limit: 4096}.Encode(), protocol.SubManifestRequest{Height: 10, K: 1, Limit: 1 << 31}.Encode(),
	} {
		for method := range uint8(protocol.MethodParts + 1) {
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
	New(Options{Snapshots: m, Genesis: []byte("{}")}).Register(mux)
	f.Fuzz(func(t *testing.T, method uint8, body []byte) {
		answer, err := mux.Serve(t.Context(), transport.Request{Peer: "peer", Method: transport.Method(method), Body: body})
		if err != nil {
			require.True(t, errors.Is(err, transport.ErrRefused) || errors.Is(err, transport.ErrGone), "%v", err)
			return
		}
		switch transport.Method(method) {
		case protocol.MethodStatus:
			require.LessOrEqual(t, len(answer), protocol.MaxStatusBytes)
		case protocol.MethodPeers:
			require.LessOrEqual(t, len(answer), protocol.MaxPeersBytes)
		case protocol.MethodChunk:
			require.Len(t, answer, int(binary.BigEndian.Uint32(body[16:])))
		case protocol.MethodManifest:
			if len(body) > 8 { // a range, which may lie beyond the end
				require.LessOrEqual(t, len(answer), int(binary.BigEndian.Uint32(body[16:])))
				return
			}
			require.NotEmpty(t, answer)
		case protocol.MethodSubManifest, protocol.MethodCommitment:
			require.NotEmpty(t, answer)
		case protocol.MethodGenesis:
			require.Equal(t, "{}", string(answer))
		default:
			t.Fatalf("an answer to method %d", method)
		}
	})
}
