package fastsync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/hedge"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// fetchManifest gets a manifest from the peers that have it.
func (j *joiner) fetchManifest(ctx context.Context, k *sketch, fresh *news) (*avlstar.Manifest, error) {
	var found *avlstar.Manifest
	var why error
	s := hedge.Search[transport.Conn, *avlstar.Manifest]{
		Policy: manifestPolicy,
		Go:     j.wg.Go,
		More: unseen(fresh, func() []transport.Conn {
			by, _ := j.claimed()
			conns := by[k.height]
			// Peers choose their IDs, so an order by ID would let them be first.
			rand.Shuffle(len(conns), func(a, b int) { conns[a], conns[b] = conns[b], conns[a] })
			return conns
		}),
		Ask: func(ctx context.Context, conn transport.Conn) (*avlstar.Manifest, error) {
			return j.manifestFrom(ctx, k, conn)
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

// manifestFrom asks one peer, and continues from what it gave before. Bytes of its own that do not
// lead to the app hash prove that it lied.
func (j *joiner) manifestFrom(ctx context.Context, k *sketch, conn transport.Conn) (*avlstar.Manifest, error) {
	lied := func(err error) error {
		k.forget(conn.Remote().ID)
		j.o.Peers.Ban(conn.Remote().ID, statesync.BanManifest, err.Error())
		return err
	}
	if err := j.commitmentFrom(ctx, k, conn); err != nil {
		if isLie(err) || errors.Is(err, errCommitment) {
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
		if r.length == 0 {
			if k.proved() != nil {
				continue // meanwhile: nothing of it is kept
			}
			return nil, lied(fmt.Errorf("%w: it is longer than its chunks allow", avlstar.ErrInvalidManifest))
		}
		b, err := moving(ctx, conn, transport.Call{Method: MethodManifest, Body: k.body(d, r), Into: make([]byte, r.length), Received: &d.received, Proved: true})
		k.took(d, r, b, err == nil)
		switch {
		case errors.Is(err, transport.ErrRefused) && k.refused(d):
		case err != nil && isLie(err):
			return nil, lied(err)
		case err != nil:
			return nil, err
		}
	}
	m := k.proved()
	if j.o.Local != nil {
		if err := j.probe(ctx, k, m, conn, &d.received); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// commitmentFrom learns how long the manifest can be, unless that is known. An error that is
// errCommitment proves a lie.
func (j *joiner) commitmentFrom(ctx context.Context, k *sketch, conn transport.Conn) error {
	if k.bounded() {
		return nil
	}
	b, err := call(ctx, conn, transport.Call{Method: MethodCommitment, Body: heightBody(k.height), Max: avlstar.CommitmentBytes})
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

// moving makes a call that may take long, provided that bytes keep arriving in c.Into, which
// c.Received counts. With an error it returns what arrived until then.
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

// probe fetches one chunk, the smallest that the peer says it has. A node gives up its own state
// only for one that some peer really has.
func (j *joiner) probe(ctx context.Context, k *sketch, m *avlstar.Manifest, conn transport.Conn, received *atomic.Int64) error {
	if len(m.Entries) == 0 {
		return nil
	}
	p, all, ok := j.o.Peers.statusOf(conn.Remote().ID).part(k.height)
	if !ok { // it has just told something else
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
	return j.chunkFrom(ctx, &choice{k.height, m}, least, conn, received)
}

// chunkFrom asks one peer for a chunk and verifies it.
func (j *joiner) chunkFrom(ctx context.Context, c *choice, k int, conn transport.Conn, received *atomic.Int64) error {
	n := uint32(c.manifest.Entries[k].Root.Bytes)
	data, err := moving(ctx, conn, transport.Call{
		Method: MethodChunk, Body: chunkRequest{c.height, uint32(k), 0, n}.encode(), Into: make([]byte, n), Received: received, Proved: true,
	})
	if err == nil {
		_, err = c.manifest.VerifyChunk(uint32(k), data)
	}
	if isLie(err) || errors.Is(err, avlstar.ErrInvalidChunk) {
		j.o.Peers.Ban(conn.Remote().ID, statesync.BanChunk, err.Error())
	}
	return err
}

// isLie reports whether an error of a call proves that the peer lies.
func isLie(err error) bool {
	return errors.Is(err, transport.ErrTooLong) || errors.Is(err, transport.ErrProtocol)
}
