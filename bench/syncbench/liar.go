package syncbench

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// Lies are the kinds of invalid responses of a Byzantine peer, by name. All other responses are
// valid, so that the peer is trusted for as long as possible.
var Lies = []string{"damaged", "truncated", "longer", "swapped", "silent", "manifest"}

// liar is a Byzantine peer that wraps an honest handler.
type liar struct {
	transport.Handler
	lie     string
	version *avlstar.Version // source of chunks that were not requested
}

// Serve implements transport.Handler.
func (l liar) Serve(ctx context.Context, r transport.Request) ([]byte, error) {
	answer, err := l.Handler.Serve(ctx, r)
	if err != nil || len(answer) == 0 {
		return answer, err
	}
	about := r.Method == protocol.MethodCommitment || r.Method == protocol.MethodManifest
	if chunk := r.Method == protocol.MethodChunk; chunk && l.lie != "manifest" {
		return l.chunk(ctx, r, slices.Clone(answer))
	} else if chunk || about && l.lie == "manifest" {
		return flip(slices.Clone(answer)), nil
	}
	return answer, nil
}

func (l liar) chunk(ctx context.Context, r transport.Request, answer []byte) ([]byte, error) {
	switch l.lie {
	case "truncated":
		return answer[:len(answer)-1], nil
	case "longer":
		return append(answer, 0), nil
	case "swapped":
		return l.another(r, len(answer))
	case "silent":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return flip(answer), nil
}

// flip flips one bit.
func flip(b []byte) []byte {
	b[len(b)/2] ^= 1
	return b
}

// another returns n bytes of the next chunk.
func (l liar) another(r transport.Request, n int) ([]byte, error) {
	k := binary.BigEndian.Uint32(r.Body[8:])
	b, err := l.version.Chunk((k + 1) % l.version.NumChunks())
	if err != nil {
		return nil, err
	}
	return append(b, make([]byte, n)...)[:n], nil
}
