package lightblocks

import (
	"errors"
	"testing"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// FuzzServer sends any request: an answer that is not an error is what was requested.
func FuzzServer(f *testing.F) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	evidence, err := encodeEvidence(testEvidence(f))
	require.NoError(f, err)
	for _, method := range []transport.Method{MethodLightBlock, MethodConsensusParams, MethodEvidence, MethodHeaders} {
		for _, body := range [][]byte{nil, encodeHeight(0), encodeHeight(5), encodeHeight(13), encodeHeight(-1), evidence, encodeRange(9, 3)} {
			f.Add(uint8(method), body)
		}
	}
	mux := new(transport.Mux)
	s := NewServer(ServerOptions{ChainID: testChain})
	s.Register(mux)
	reported := 0
	s.SetStores(c, c, func(types.Evidence) error {
		reported++
		return errors.New("no such evidence")
	})
	f.Fuzz(func(t *testing.T, method uint8, body []byte) {
		before := reported
		answer, err := mux.Serve(t.Context(), transport.Request{Peer: "peer", Method: transport.Method(method), Body: body})
		if err != nil {
			require.True(t, errors.Is(err, transport.ErrRefused) || errors.Is(err, transport.ErrGone) || reported > before, "%v", err)
			return
		}
		switch transport.Method(method) {
		case MethodLightBlock:
			height, err := decodeHeight(body)
			require.NoError(t, err)
			_, err = decodeLightBlock(answer, testChain, height)
			require.NoError(t, err)
		case MethodHeaders:
			from, count, err := decodeRange(body)
			require.NoError(t, err)
			_, err = decodeHeaders(answer, testChain, from, count)
			require.NoError(t, err)
		case MethodConsensusParams:
			_, err := decodeParams(answer)
			require.NoError(t, err)
		case MethodEvidence:
			require.Empty(t, answer)
		default:
			t.Fatalf("an answer to method %d", method)
		}
	})
}
