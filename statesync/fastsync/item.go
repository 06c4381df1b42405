package fastsync

import (
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

// kind of an item.
type kind int

const (
	wholeChunk kind = iota
	subManifest
	pieceRange
)

// item is what one request asks for. It does not change, except for id, which add sets, and
// answered.
type item struct {
	id    scheduler.ItemID // 0 until it is added
	kind  kind
	r     *round
	k     uint32 // the chunk's number
	bytes uint64 // of the answer; of a sub-manifest, at most

	// Of a pieceRange only:
	delta    *delta
	from, to int    // the pieces [from, to) of the delta's cut
	offset   uint64 // where the answer begins in the chunk

	answered bool // of a subManifest: the loop has seen an answer
}

// exact reports whether an honest answer has exactly it.bytes: that length was proved.
func (it *item) exact() bool { return it.kind != subManifest }

// call is the request without the buffer.
func (it *item) call() transport.Call {
	height := it.r.height
	if it.kind == subManifest {
		return transport.Call{Method: MethodSubManifest, Body: subManifestRequest{height, it.k, pieceBytes}.encode(), Max: int(it.bytes)}
	}
	return transport.Call{Method: MethodChunk, Body: chunkRequest{height, it.k, uint32(it.offset), uint32(it.bytes)}.encode()}
}

// verify checks an answer and writes the chunk that it completes. fresh reports that it is the
// first right answer. An error that is avlstar.ErrInvalidChunk or avlstar.ErrInvalidManifest proves
// a lie. It is called by workers.
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

// verifyPieces checks that data is the pieces [from, to) of the cut that sub describes. It changes
// data during the call: the first byte of a piece is its height inside the chunk, but 0 where the
// piece is verified alone (docs/spec/transport.md#methods).
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
