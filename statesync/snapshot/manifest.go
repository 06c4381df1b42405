package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// fetchManifest fetches a manifest from the peers that have it.
func (f *Finder) fetchManifest(ctx context.Context, k *sketch, fresh *news) (*avlstar.Manifest, error) {
	var found *avlstar.Manifest
	var why error
	s := hedge.Search[transport.Conn, *avlstar.Manifest]{
		Policy: manifestPolicy,
		Go:     f.o.Go,
		More: unseen(fresh, func() []transport.Conn {
			by, _ := f.claimed()
			conns := by[k.height]
			// Peers choose their IDs, so sorting by ID would let them choose their rank.
			rand.Shuffle(len(conns), func(a, b int) { conns[a], conns[b] = conns[b], conns[a] })
			return conns
		}),
		Ask: func(ctx context.Context, conn transport.Conn) (*avlstar.Manifest, error) {
			return f.manifestFrom(ctx, k, conn)
		},
		Received: func(conn transport.Conn) int64 { return k.receivedFrom(conn.Remote().ID) },
		Failed: func(_ transport.Conn, err error) bool {
			why = err
			return false
		},
		Proved: func(_ transport.Conn, m *avlstar.Manifest) { found = m },
	}
	if err := s.Run(ctx); err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("the manifest of the snapshot at height %d: %w", k.height, why)
	}
	return found, nil
}

// manifestFrom asks one peer and continues what it sent before. It bans the peer if all bytes of an
// invalid manifest are the peer's own.
func (f *Finder) manifestFrom(ctx context.Context, k *sketch, conn transport.Conn) (*avlstar.Manifest, error) {
	lied := func(err error) error {
		k.forget(conn.Remote().ID)
		f.o.Peers.Ban(conn.Remote().ID, statesync.BanManifest, err.Error())
		return err
	}
	if err := f.commitmentFrom(ctx, k, conn); err != nil {
		if transport.IsViolation(err) || errors.Is(err, errCommitment) {
			return nil, lied(err)
		}
		return nil, err
	}
	d, err := k.draft(ctx, conn.Remote().ID)
	if err != nil {
		return nil, err
	}
	defer k.rest(d)
	for k.proved() == nil {
		if b := k.whole(d); b != nil {
			if err := k.prove(b); err != nil && k.refuted(d) {
				return nil, lied(err)
			}
			continue
		}
		r := k.next(d)
		if r.Length == 0 {
			if k.proved() != nil {
				continue // proved meanwhile: the drafts are no longer kept
			}
			return nil, lied(fmt.Errorf("%w: longer than its chunks allow", avlstar.ErrInvalidManifest))
		}
		b, err := moving(ctx, conn, transport.Call{Method: protocol.MethodManifest, Body: r.Encode(), Into: make([]byte, r.Length), Received: &d.received, Proved: true})
		k.took(d, r, b, err == nil)
		switch {
		case transport.IsViolation(err):
			return nil, lied(err)
		case err != nil:
			return nil, err
		}
	}
	m := k.proved()
	if f.o.Local != nil {
		if err := f.probe(ctx, k, m, conn, &d.received); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// commitmentFrom fetches the maximum length of the manifest, unless it is known. errCommitment
// proves that the peer is Byzantine.
func (f *Finder) commitmentFrom(ctx context.Context, k *sketch, conn transport.Conn) error {
	if k.bounded() {
		return nil
	}
	b, err := short(ctx, conn, transport.Call{Method: protocol.MethodCommitment, Body: protocol.HeightBody(k.height), Max: avlstar.CommitmentBytes})
	if err != nil {
		return err
	}
	c, err := avlstar.DecodeCommitment(b)
	if err != nil || c.AppHash() != k.appHash {
		return fmt.Errorf("%w %d", errCommitment, k.height)
	}
	k.bound(c)
	return nil
}

// short makes a call with a small answer.
func short(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return conn.Call(ctx, c)
}

// moving makes a call that may take long, as long as bytes keep arriving in c.Into, which
// c.Received counts. On an error it returns the bytes received so far.
func moving(ctx context.Context, conn transport.Conn, c transport.Call) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	before := c.Received.Load()
	done := make(chan struct{})
	defer close(done)
	go func() {
		ticker := time.NewTicker(hedgeAfter)
		defer ticker.Stop()
		seen, since := before, time.Now()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			if n := c.Received.Load(); n > seen {
				seen, since = n, time.Now()
			} else if time.Since(since) > manifestStall {
				cancel(errors.New("no bytes arrive"))
				return
			}
		}
	}()
	b, err := conn.Call(ctx, c)
	if err != nil {
		b = c.Into[:min(int(c.Received.Load()-before), len(c.Into))]
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}
	return b, err
}

// probe fetches one chunk, the smallest that the peer claims: a node gives up its own state only
// for one that some peer actually has.
func (f *Finder) probe(ctx context.Context, k *sketch, m *avlstar.Manifest, conn transport.Conn, received *atomic.Int64) error {
	if len(m.Entries) == 0 {
		return nil
	}
	p, all, ok := f.o.Peers.Status(conn.Remote().ID).Part(k.height)
	if !ok { // its claims have just changed
		return transport.ErrGone
	}
	least := -1
	for i, e := range m.Entries {
		if (all || p.Has(uint32(i))) && (least < 0 || e.Root.Bytes < m.Entries[least].Root.Bytes) {
			least = i
		}
	}
	if least < 0 {
		return transport.ErrGone
	}
	return f.chunkFrom(ctx, &Choice{k.height, m}, least, conn, received)
}

// chunkFrom fetches a chunk from one peer and verifies it.
func (f *Finder) chunkFrom(ctx context.Context, c *Choice, k int, conn transport.Conn, received *atomic.Int64) error {
	n := uint32(c.Manifest.Entries[k].Root.Bytes)
	data, err := moving(ctx, conn, transport.Call{
		Method: protocol.MethodChunk, Body: protocol.ChunkRequest{Height: c.Height, K: uint32(k), Length: n}.Encode(), Into: make([]byte, n), Received: received, Proved: true,
	})
	if err == nil {
		_, err = c.Manifest.VerifyChunk(uint32(k), data)
	}
	if transport.IsViolation(err) || errors.Is(err, avlstar.ErrInvalidChunk) {
		f.o.Peers.Ban(conn.Remote().ID, statesync.BanChunk, err.Error())
	}
	return err
}
