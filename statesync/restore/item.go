package restore

import (
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/statesync/view"
	"github.com/starling-kv/starling/transport"
)

// kind is the kind of an item.
type kind int

const (
	wholeChunk kind = iota
	subManifest
	pieceRange
)

// item is what one request asks for. It is immutable, except for answered.
type item struct {
	kind  kind
	r     *round
	k     uint32 // chunk number
	bytes uint64 // length of the answer; for a sub-manifest, its maximum

	// Only for a pieceRange:
	delta    *delta
	from, to int    // the pieces [from, to) of the delta's cut
	offset   uint64 // position of the answer in the chunk

	answered bool // for a subManifest: the loop has seen an answer
}

// chunk identifies the item's chunk.
func (it *item) chunk() view.Chunk { return view.Chunk{Group: it.r.group, K: it.k} }

// exact reports whether an honest answer has exactly it.bytes, which is a proved length.
func (it *item) exact() bool { return it.kind != subManifest }

// call returns the request without its buffer.
func (it *item) call() transport.Call {
	height := it.r.Height
	if it.kind == subManifest {
		return transport.Call{Method: protocol.MethodSubManifest, Body: protocol.SubManifestRequest{Height: height, K: it.k, Limit: pieceBytes}.Encode(), Max: int(it.bytes)}
	}
	return transport.Call{Method: protocol.MethodChunk, Body: protocol.ChunkRequest{Height: height, K: it.k, Offset: uint32(it.offset), Length: uint32(it.bytes)}.Encode()}
}

// verify checks an answer and writes the chunk that it completes. fresh reports that this is the
// first right answer. avlstar.ErrInvalidChunk and avlstar.ErrInvalidManifest prove that the answer
// is wrong. Workers call it.
func (it *item) verify(data []byte) (fresh bool, _ *deltaAnswer, _ error) {
	switch it.kind {
	case subManifest:
		sub, err := avlstar.VerifySubManifest(data, it.r.Manifest.Entries[it.k].Root, pieceBytes)
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

// verifyPieces checks that data consists of the pieces [from, to) of the cut that sub describes. It
// modifies data during the call: the first byte of a piece is its height inside the chunk, but 0
// when the piece is verified alone (docs/spec/transport.md#methods).
func verifyPieces(sub *avlstar.Manifest, from, to int, data []byte) error {
	for k := from; k < to; k++ {
		e := &sub.Entries[k]
		if e.Root.Bytes > uint64(len(data)) {
			return fmt.Errorf("%w: piece %d is too short", avlstar.ErrInvalidChunk, k)
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
