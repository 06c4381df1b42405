package liar

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/transport"
)

// slowest is the maximum delay of an answer in mode Slow; the minimum is half of it.
const slowest = 4 * time.Second

// maxOversize limits the bytes that Oversize adds: CometBFT drops a peer whose message exceeds 16
// MB, which would end the test of invalid chunks.
const maxOversize = 64 << 10

// Liar is an application that serves invalid snapshots. Safe for concurrent use if the wrapped
// application is.
type Liar struct {
	abci.Application // the honest one
	mode             Mode
	seed             uint64
	lies             atomic.Int64
	onLie            func(Lie)
}

// Lie describes an invalid response.
type Lie struct {
	How    Mode // the kind of damage; never Mix
	About  string
	Height uint64
	Chunk  uint32       // if it is about a chunk
	To     transport.ID // the receiver; "": CometBFT does not report it
}

// Wrap makes an honest application misbehave in a mode of Serving. The same seed gives the same
// responses. onLie, if not nil, is called for every invalid chunk; it may be called concurrently.
func Wrap(honest abci.Application, mode Mode, seed uint64, onLie func(Lie)) *Liar {
	if onLie == nil {
		onLie = func(Lie) {}
	}
	return &Liar{Application: honest, mode: mode, seed: seed, onLie: onLie}
}

// Lies counts the invalid chunks.
func (l *Liar) Lies() int64 { return l.lies.Load() }

// ListSnapshots returns the honest application's offers, changed by Alias, Manifest, Lone and
// Future.
func (l *Liar) ListSnapshots(ctx context.Context, req *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	honest, err := l.Application.ListSnapshots(ctx, req)
	if err != nil || honest == nil || len(honest.Snapshots) == 0 {
		return honest, err
	}
	offers := make([]*abci.Snapshot, 0, len(honest.Snapshots)+1)
	for _, snapshot := range honest.Snapshots {
		switch l.mode {
		case Alias:
			snapshot = alias(snapshot)
		case Manifest:
			snapshot = l.otherManifest(snapshot)
		}
		offers = append(offers, snapshot)
	}
	if l.mode == Lone || l.mode == Future {
		newest := slices.MaxFunc(honest.Snapshots, func(a, b *abci.Snapshot) int { return cmp.Compare(a.Height, b.Height) })
		more := *newest
		more.Height += ahead[l.mode] // CometBFT prefers the highest offer
		offers = append(offers, &more)
	}
	return &abci.ResponseListSnapshots{Snapshots: offers}, nil
}

// ahead is the distance of the additional offer's height above the newest: for Lone, one above a
// multiple of the interval.
var ahead = map[Mode]uint64{Lone: 1, Future: 1_000_000_000}

// otherManifest damages the metadata of an offer, which is a manifest.
func (l *Liar) otherManifest(snapshot *abci.Snapshot) *abci.Snapshot {
	if len(snapshot.Metadata) == 0 {
		return snapshot
	}
	random := rand.New(rand.NewPCG(l.seed, snapshot.Height))
	how := []Mode{Corrupt, Truncate, Oversize, Junk}[random.IntN(4)]
	damaged := *snapshot
	damaged.Metadata = damage(how, snapshot.Metadata, random)
	l.onLie(Lie{How: how, About: "manifest", Height: snapshot.Height})
	return &damaged
}

// alias moves a byte over the border between hash and metadata. CometBFT's key of a snapshot does
// not change by that (statesync/snapshots.go, snapshot.Key), so the altered offer counts as the
// same snapshot.
func alias(snapshot *abci.Snapshot) *abci.Snapshot {
	if len(snapshot.Metadata) == 0 {
		return snapshot
	}
	moved := *snapshot
	moved.Hash = append(bytes.Clone(snapshot.Hash), snapshot.Metadata[0])
	moved.Metadata = snapshot.Metadata[1:]
	return &moved
}

// LoadSnapshotChunk answers with other bytes than the requested chunk.
func (l *Liar) LoadSnapshotChunk(ctx context.Context, req *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	honest, err := l.Application.LoadSnapshotChunk(ctx, req)
	if err != nil || honest == nil || len(honest.Chunk) == 0 {
		return honest, err // the node has no such chunk: there is nothing to damage
	}
	mode := l.mode
	switch mode {
	case Corrupt, Truncate, Swap, Oversize, Junk, Empty, Withhold, Stale, Slow:
	case Gone:
		mode = Withhold
	default:
		mode = mixed[(l.seed+uint64(req.Chunk))%uint64(len(mixed))]
	}
	l.lies.Add(1)
	l.onLie(Lie{How: mode, About: "chunk", Height: req.Height, Chunk: req.Chunk})
	switch mode {
	case Withhold:
		return &abci.ResponseLoadSnapshotChunk{}, nil
	case Empty:
		return &abci.ResponseLoadSnapshotChunk{Chunk: []byte{}}, nil
	case Slow:
		return honest, wait(ctx, rand.New(rand.NewPCG(l.seed, uint64(req.Chunk))))
	case Stale:
		if other := l.stale(ctx, req, honest.Chunk); other != nil {
			return &abci.ResponseLoadSnapshotChunk{Chunk: other}, nil
		}
		mode = Corrupt // no other snapshot has another chunk with this number
	case Swap:
		if other := l.other(ctx, req, honest.Chunk); other != nil {
			return &abci.ResponseLoadSnapshotChunk{Chunk: other}, nil
		}
		mode = Corrupt // the snapshot has only one chunk
	}
	random := rand.New(rand.NewPCG(l.seed, req.Height<<32|uint64(req.Chunk)))
	return &abci.ResponseLoadSnapshotChunk{Chunk: damage(mode, honest.Chunk, random)}, nil
}

// other returns the bytes of a neighbouring chunk, nil if there is none.
func (l *Liar) other(ctx context.Context, req *abci.RequestLoadSnapshotChunk, chunk []byte) []byte {
	// numbers past the end, and -1 wrapped around, do not exist
	for _, number := range []uint32{req.Chunk + 1, req.Chunk - 1} {
		resp, err := l.Application.LoadSnapshotChunk(ctx, &abci.RequestLoadSnapshotChunk{
			Height: req.Height, Format: req.Format, Chunk: number,
		})
		if err == nil && resp != nil && len(resp.Chunk) > 0 && !bytes.Equal(resp.Chunk, chunk) {
			return resp.Chunk
		}
	}
	return nil
}

// stale returns the bytes of the chunk with the same number in another snapshot, nil if no other
// snapshot has different bytes.
func (l *Liar) stale(ctx context.Context, req *abci.RequestLoadSnapshotChunk, chunk []byte) []byte {
	offered, err := l.Application.ListSnapshots(ctx, &abci.RequestListSnapshots{})
	if err != nil || offered == nil {
		return nil
	}
	for _, snapshot := range offered.Snapshots {
		resp, err := l.Application.LoadSnapshotChunk(ctx, &abci.RequestLoadSnapshotChunk{
			Height: snapshot.Height, Format: req.Format, Chunk: req.Chunk,
		})
		if err == nil && resp != nil && len(resp.Chunk) > 0 && !bytes.Equal(resp.Chunk, chunk) {
			return resp.Chunk
		}
	}
	return nil
}

// wait waits for the delay of an answer in mode Slow.
func wait(ctx context.Context, random *rand.Rand) error {
	timer := time.NewTimer(slowest/2 + time.Duration(random.Int64N(int64(slowest/2))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// damage returns bytes that differ from chunk. The chunk must not be empty, and is not modified.
func damage(mode Mode, chunk []byte, random *rand.Rand) []byte {
	switch mode {
	case Truncate:
		// a half to all but the last byte
		return bytes.Clone(chunk[:random.IntN(len(chunk))/2+len(chunk)/2])
	case Oversize:
		more := make([]byte, min(len(chunk), maxOversize))
		fill(more, random)
		return append(bytes.Clone(chunk), more...)
	case Junk:
		junk := make([]byte, len(chunk))
		fill(junk, random)
		junk[0] = chunk[0] ^ 1 // so that it differs even if the chunk is short
		return junk
	default: // Corrupt
		damaged := bytes.Clone(chunk)
		damaged[random.IntN(len(damaged))] ^= byte(1 + random.IntN(255))
		return damaged
	}
}

func fill(b []byte, random *rand.Rand) {
	for i := range b {
		b[i] = byte(random.Uint32())
	}
}
