package syncbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// askAgain is the interval at which a downloader without a snapshot polls for one, or reconnects.
const askAgain = 100 * time.Millisecond

// downloadAll fetches the newest snapshot over and over until ctx ends. It abandons a snapshot that
// is pruned meanwhile.
func downloadAll(ctx context.Context, conn transport.Conn, bytes *atomic.Int64) error {
	for {
		height, err := newestSnapshot(ctx, conn)
		if err == nil && height > 0 {
			err = downloadOne(ctx, conn, height, bytes)
		} else if err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(askAgain):
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, transport.ErrGone) {
			return err
		}
	}
}

// newestSnapshot requests a peer's status (docs/spec/transport.md#methods), and returns the height
// of its newest snapshot, or 0 if it has none.
func newestSnapshot(ctx context.Context, conn transport.Conn) (int64, error) {
	const fixed = 1 + 8 + 8 + 2 // version, first and last block, number of snapshots
	b, err := conn.Call(ctx, transport.Call{Method: protocol.MethodStatus, Max: 1 << 16})
	if err != nil {
		return 0, err
	}
	if len(b) < fixed || len(b) != fixed+8*int(binary.BigEndian.Uint16(b[fixed-2:])) {
		return 0, fmt.Errorf("got a status of %d bytes", len(b))
	}
	if len(b) == fixed {
		return 0, nil
	}
	return int64(binary.BigEndian.Uint64(b[len(b)-8:])), nil
}

// downloadOne fetches the chunks listed in the manifest. It verifies nothing.
func downloadOne(ctx context.Context, conn transport.Conn, height int64, bytes *atomic.Int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at, m, err := manifestOf(ctx, conn, height)
	if err != nil {
		return err
	}
	var (
		next    atomic.Int64
		callers sync.WaitGroup
	)
	for range inFlight {
		callers.Go(func() {
			var into []byte
			for k := next.Add(1) - 1; k < int64(len(m.Entries)); k = next.Add(1) - 1 {
				n := int(m.Entries[k].Root.Bytes)
				if n > len(into) {
					into = make([]byte, n)
				}
				data, err := conn.Call(ctx, transport.Call{Method: protocol.MethodChunk, Body: chunkBody(at, uint32(k), uint32(n)), Into: into[:n]})
				if err != nil {
					cancel(err)
					return
				}
				bytes.Add(int64(len(data)))
			}
		})
	}
	callers.Wait()
	return context.Cause(ctx)
}

// manifestOf fetches the manifest of a snapshot. at is the encoded height for requests.
func manifestOf(ctx context.Context, conn transport.Conn, height int64) (at []byte, m *avlstar.Manifest, err error) {
	at = binary.BigEndian.AppendUint64(nil, uint64(height))
	b, err := conn.Call(ctx, transport.Call{Method: protocol.MethodCommitment, Body: at, Max: avlstar.CommitmentBytes})
	if err != nil {
		return nil, nil, err
	}
	c, err := avlstar.DecodeCommitment(b)
	if err != nil {
		return nil, nil, err
	}
	if b, err = conn.Call(ctx, transport.Call{Method: protocol.MethodManifest, Body: at, Max: 16 + 70*int(c.Chunks)}); err != nil {
		return nil, nil, err
	}
	m, err = avlstar.VerifyManifest(b, c.AppHash())
	return at, m, err
}

// chunkBody returns the request for a whole chunk: height ‖ k ‖ offset ‖ length.
func chunkBody(height []byte, k, length uint32) []byte {
	b := binary.BigEndian.AppendUint32(append([]byte(nil), height...), k)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 0), length)
}
