package fastsync

import (
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/transport"
)

type kind int

const (
	wholeChunk kind = iota
	subManifest
	pieceRange
)

// item is what one request asks for.
type item struct {
	kind  kind
	r     *round
	k     uint32 // chunk
	bytes uint64 // of the answer; of a sub-manifest at most
	// of a pieceRange: which pieces of the delta
	delta    *delta
	from, to int
	offset   uint64 // where the answer begins in the chunk
	answered bool   // a subManifest whose answer the loop has seen
}

// exact: the length of an honest answer was proved.
func (it *item) exact() bool { return it.kind != subManifest }

// call is the request, but for the buffer.
func (it *item) call(height int64) transport.Call {
	if it.kind == subManifest {
		return transport.Call{Method: transport.MethodSubManifest, Body: subManifestRequest{height, it.k, pieceBytes}.encode(), Max: int(it.bytes)}
	}
	return transport.Call{Method: transport.MethodChunk, Body: chunkRequest{height, it.k, uint32(it.offset), uint32(it.bytes)}.encode()}
}

// verify checks an answer, and writes the chunk that it completes. Errors that are avlstar.ErrInvalidChunk or ErrInvalidManifest prove a lie.
// It runs in a worker. fresh says that no other answer was before it.
func (it *item) verify(data []byte) (fresh bool, _ *deltaAnswer, _ error) {
	switch it.kind {
	case subManifest:
		sub, err := avlstar.VerifySubManifest(data, it.r.manifest.Entries[it.k].Root, pieceBytes)
		if err != nil {
			return false, nil, err
		}
		a, err := it.r.deltas.begin(it, sub)
		return true, a, err
	case pieceRange:
		a, err := it.delta.accept(it, data)
		return a != nil, a, err
	}
	fresh, err := it.r.restorer.Accept(it.k, data)
	return fresh, nil, err
}

// verifyPieces checks the pieces [from, to) of a sub-manifest that data, bytes of a chunk, is to be.
func verifyPieces(sub *avlstar.Manifest, from, to int, data []byte) error {
	for k := from; k < to; k++ {
		e := &sub.Entries[k]
		if e.Root.Bytes > uint64(len(data)) {
			return fmt.Errorf("%w: piece %d is cut short", avlstar.ErrInvalidChunk, k)
		}
		piece := data[:e.Root.Bytes]
		data = data[e.Root.Bytes:]
		if piece[0] != e.BoundaryHeight {
			return fmt.Errorf("%w: piece %d begins with height %d, not %d", avlstar.ErrInvalidChunk, k, piece[0], e.BoundaryHeight)
		}
		piece[0] = 0
		_, err := sub.VerifyChunk(uint32(k), piece)
		piece[0] = e.BoundaryHeight
		if err != nil {
			return err
		}
	}
	if len(data) > 0 {
		return fmt.Errorf("%w: %d bytes after the last piece", avlstar.ErrInvalidChunk, len(data))
	}
	return nil
}
