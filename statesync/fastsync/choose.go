package fastsync

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/hedge"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// How eagerly peers are asked. See hedge.Policy for the paces.
var (
	// A manifest: one peer after another, and the next one beside it when nothing arrives for a
	// moment.
	manifestPolicy = hedge.Policy{Pace: hedge.WhenQuiet, Start: 1, Most: 3, After: hedgeAfter}
	// Heights: the next one when the one before takes long, because a lying peer can claim any
	// height and serve none.
	heightsPolicy = hedge.Policy{Pace: hedge.WhenQuiet, Start: 1, Most: 4, After: 3 * time.Second}
)

const (
	hedgeAfter = 300 * time.Millisecond
	// manifestStall is how long a call may receive nothing before it is abandoned.
	manifestStall  = 5 * time.Second
	headersTimeout = 10 * time.Second
	chooseEvery    = 100 * time.Millisecond
	sayEvery       = 5 * time.Second
	// settle is how long the first choice waits for connected peers to report their snapshots.
	// patient is how long heights that are more than lateIntervals old are not accepted.
	settle        = 1500 * time.Millisecond
	patient       = 10 * time.Second
	lateIntervals = 4
)

// Headers gives what is trusted: the chain's headers, which package lightblocks proves. The methods
// are called concurrently.
type Headers interface {
	// Newest returns the height of the newest header that is proved.
	Newest(ctx context.Context) (int64, error)
	// AppHash returns the app hash of the state after block height, which the next header holds.
	AppHash(ctx context.Context, height int64) ([]byte, error)
	// Conflict returns an error if two headers of one height are both proved, which ends the join.
	Conflict() error
}

var (
	// ErrHopeless is an error of Headers that does not go away by waiting.
	ErrHopeless = errors.New("the headers cannot be proved")
	// ErrNothing means that no usable snapshot was found within Options.ChooseTimeout. Nothing was
	// changed.
	ErrNothing = errors.New("no snapshot to join from")

	errNoPeers     = errors.New("no peer of the transport can be reached")
	errNoSnapshots = errors.New("no peer offers a usable snapshot yet")
)

// choice is a snapshot to fetch: its manifest is proved, and a peer claims to have it.
type choice struct {
	height   int64
	manifest *avlstar.Manifest
}

// choose waits until there is a snapshot to fetch. Heights with a lower avoid are considered first;
// nil means that none is preferred.
func (j *joiner) choose(ctx context.Context, avoid func(height int64) int) (*choice, error) {
	began, said := time.Now(), time.Now()
	heard := make(chan struct{}, 1) // a peer reported its snapshots: look again at once
	stop := j.o.Peers.Watch(Watcher{
		Status: func(transport.ID, Status) {
			select {
			case heard <- struct{}{}:
			default:
			}
		},
	})
	defer stop()
	for {
		c, why := j.tryChoose(ctx, avoid, time.Since(began))
		switch {
		case c != nil:
			return c, nil
		case errors.Is(why, ErrHopeless):
			return nil, why
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), why)
		case j.o.ChooseTimeout > 0 && time.Since(began) > j.o.ChooseTimeout:
			return nil, fmt.Errorf("%w: %w", ErrNothing, why)
		}
		if err := j.o.Headers.Conflict(); err != nil {
			return nil, err
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			connected, _ := j.o.Peers.Count()
			j.log.Info("Joining: looking for a snapshot", "peers", connected, "waiting_for", why)
		}
		pause := chooseEvery
		if time.Since(began) > patient {
			pause = statusEvery // peers do not report more often
		}
		select {
		case <-ctx.Done():
		case <-heard:
		case <-time.After(pause):
		}
	}
}

// offer is a height, and the peers that claim to have its snapshot.
type offer struct {
	height int64
	conns  []transport.Conn
}

// tryChoose returns a choice, or the reason that there is none yet. waited is the time since choose
// began.
func (j *joiner) tryChoose(ctx context.Context, avoid func(int64) int, waited time.Duration) (*choice, error) {
	peers := j.o.Peers.conns()
	if len(peers) == 0 {
		return nil, errNoPeers
	}
	by := map[int64][]transport.Conn{}
	for _, p := range peers {
		if !p.known && waited < settle {
			return nil, errNoSnapshots
		}
		for _, h := range p.status.Snapshots {
			by[h] = append(by[h], p.Conn)
		}
	}
	if len(by) == 0 {
		return nil, errNoSnapshots
	}
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	newest, err := j.o.Headers.Newest(timed)
	if err != nil {
		return nil, err
	}
	least := max(j.o.LocalHeight+1, j.o.MinHeight)
	if avoid == nil && waited < patient && j.o.Interval > 0 {
		least = max(least, newest-lateIntervals*j.o.Interval)
	}
	return j.firstOf(ctx, j.ranked(by, least, newest, avoid))
}

// ranked returns the usable heights in order of preference: by failed attempts to get the manifest,
// then by avoid (without avoid, the height of an unfinished restore comes first), then the newest
// first. Heights are usable up to newest-2, because a node starts at H with the headers up to H+2.
func (j *joiner) ranked(by map[int64][]transport.Conn, least, newest int64, avoid func(int64) int) []offer {
	var offers []offer
	for h, conns := range by {
		if h >= least && h <= newest-2 && (j.o.Interval <= 0 || h%j.o.Interval == 0) {
			// Peers choose their IDs, so an order by ID would let them be first.
			rand.Shuffle(len(conns), func(a, b int) { conns[a], conns[b] = conns[b], conns[a] })
			offers = append(offers, offer{h, conns})
		}
	}
	j.attempts.Lock()
	defer j.attempts.Unlock()
	rank := func(h int64) int {
		switch {
		case avoid != nil:
			return avoid(h)
		case j.unfinished != nil && h == j.unfinished.height:
			return -1
		}
		return 0
	}
	slices.SortFunc(offers, func(a, b offer) int {
		return cmp.Or(cmp.Compare(j.attempts.failed[a.height], j.attempts.failed[b.height]), cmp.Compare(rank(a.height), rank(b.height)),
			cmp.Compare(b.height, a.height))
	})
	return offers
}

// firstOf returns the first choice that is proved, of offers that are tried side by side.
func (j *joiner) firstOf(ctx context.Context, offers []offer) (*choice, error) {
	var found *choice
	why := errNoSnapshots
	s := hedge.Search[offer, *avlstar.Manifest]{
		Policy: heightsPolicy,
		Go:     j.wg.Go,
		More:   func() ([]offer, <-chan struct{}) { return offers, nil },
		Ask: func(ctx context.Context, o offer) (*avlstar.Manifest, error) {
			return j.provedManifest(ctx, o.height, o.conns)
		},
		Failed: func(o offer, err error) bool {
			why = err
			if errors.Is(err, ErrHopeless) {
				return true
			}
			j.attempts.Lock()
			defer j.attempts.Unlock()
			j.attempts.failed[o.height]++
			return false
		},
		Proved: func(o offer, m *avlstar.Manifest) { found = &choice{o.height, m} },
	}
	if err := s.Run(ctx); err != nil {
		return nil, err
	}
	if found == nil {
		return nil, why
	}
	return found, nil
}

// provedManifest returns the manifest of the snapshot at height, proved by the header.
func (j *joiner) provedManifest(ctx context.Context, height int64, conns []transport.Conn) (*avlstar.Manifest, error) {
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	raw, err := j.o.Headers.AppHash(timed, height)
	if err != nil {
		return nil, err
	}
	var appHash avlstar.Hash
	if len(raw) != len(appHash) {
		return nil, fmt.Errorf("the app hash after block %d has %d bytes: this is not a Starling chain", height, len(raw))
	}
	copy(appHash[:], raw)
	if u := j.unfinished; u != nil && u.height == height {
		if c, err := u.manifest.Commitment(); err == nil && c.AppHash() == appHash {
			return u.manifest, nil
		}
	}
	return j.fetchManifest(ctx, height, appHash, conns)
}

// fetchManifest gets a manifest from the first peer that has one with that app hash.
func (j *joiner) fetchManifest(ctx context.Context, height int64, appHash avlstar.Hash, conns []transport.Conn) (*avlstar.Manifest, error) {
	var received atomic.Int64 // bytes, of all attempts
	var found *avlstar.Manifest
	var why error
	s := hedge.Search[transport.Conn, *avlstar.Manifest]{
		Policy: manifestPolicy,
		Go:     j.wg.Go,
		More:   func() ([]transport.Conn, <-chan struct{}) { return conns, nil },
		Ask: func(ctx context.Context, conn transport.Conn) (*avlstar.Manifest, error) {
			return j.manifestFrom(ctx, height, appHash, conn, &received)
		},
		Received: received.Load,
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
		return nil, fmt.Errorf("the manifest of the snapshot at height %d: %w", height, why)
	}
	return found, nil
}

// manifestFrom asks one peer. An answer that does not lead to the app hash proves that it lied.
func (j *joiner) manifestFrom(ctx context.Context, height int64, appHash avlstar.Hash, conn transport.Conn, received *atomic.Int64) (*avlstar.Manifest, error) {
	lied := func(err error) error {
		j.o.Peers.Ban(conn.Remote().ID, statesync.BanManifest, err.Error())
		return err
	}
	b, err := call(ctx, conn, transport.Call{Method: MethodCommitment, Body: heightBody(height), Max: avlstar.CommitmentBytes})
	if err != nil {
		if isLie(err) {
			return nil, lied(err)
		}
		return nil, err
	}
	c, err := avlstar.DecodeCommitment(b)
	if err != nil || c.AppHash() != appHash {
		return nil, lied(fmt.Errorf("its commitment does not have the app hash after block %d", height))
	}
	limit := max(entryBytes*int(c.Chunks), 16)
	b, err = moving(ctx, conn, transport.Call{Method: MethodManifest, Body: heightBody(height), Max: limit}, received)
	if err != nil {
		if isLie(err) {
			return nil, lied(err)
		}
		return nil, err
	}
	m, err := avlstar.VerifyManifest(b, appHash)
	if err != nil {
		return nil, lied(err)
	}
	if !bytes.Equal(m.Encode(), b) {
		return nil, lied(avlstar.ErrInvalidManifest)
	}
	if j.o.Local != nil {
		if err := j.probe(ctx, height, m, conn); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// moving makes a call that may take long, provided that bytes keep arriving. It adds them to all.
func moving(ctx context.Context, conn transport.Conn, c transport.Call, all *atomic.Int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var received atomic.Int64
	c.Received = &received
	done := make(chan struct{})
	defer close(done)
	go func() {
		ticker := time.NewTicker(hedgeAfter)
		defer ticker.Stop()
		seen, since := int64(0), time.Now()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			if n := received.Load(); n > seen {
				all.Add(n - seen)
				seen, since = n, time.Now()
			} else if time.Since(since) > manifestStall {
				cancel(errors.New("no bytes arrive"))
				return
			}
		}
	}()
	b, err := conn.Call(ctx, c)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return b, err
}

// probe fetches one chunk, the smallest. A node gives up its own state only for one that some peer
// really has.
func (j *joiner) probe(ctx context.Context, height int64, m *avlstar.Manifest, conn transport.Conn) error {
	least := 0
	for k := range m.Entries {
		if m.Entries[k].Root.Bytes < m.Entries[least].Root.Bytes {
			least = k
		}
	}
	if len(m.Entries) == 0 {
		return nil
	}
	n := uint32(m.Entries[least].Root.Bytes)
	data, err := moving(ctx, conn, transport.Call{
		Method: MethodChunk, Body: chunkRequest{height, uint32(least), 0, n}.encode(), Into: make([]byte, n),
	}, new(atomic.Int64))
	if err == nil {
		_, err = m.VerifyChunk(uint32(least), data)
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
