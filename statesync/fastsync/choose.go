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
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

const (
	// hedgeAfter is how long one peer is waited for without anything coming before the next is asked the same as well, up to hedges at a time.
	hedgeAfter = 300 * time.Millisecond
	hedges     = 3
	// manifestStall is how long nothing of a manifest may come.
	manifestStall  = 5 * time.Second
	headersTimeout = 10 * time.Second
	chooseEvery    = 100 * time.Millisecond
	sayEvery       = 5 * time.Second
	// Heights are tried side by side, the next one when the one before takes long: a liar can claim any, and serve none.
	nextHeight  = 3 * time.Second
	heightTries = 4
	// settle is how long peers that are connected may take to say what they have before the first choice; patient how long a height that is
	// more than lateIntervals old is not good enough.
	settle        = 1500 * time.Millisecond
	patient       = 10 * time.Second
	lateIntervals = 4
)

// Headers are what is trusted: the chain's headers, proved by somebody else (package lightblocks). Where there is a method Conflict() error,
// its error ends the join.
type Headers interface {
	// Newest is the height of the newest header that was proved.
	Newest(ctx context.Context) (int64, error)
	// AppHash returns the app hash of the state after block height, which stands in the header after it.
	AppHash(ctx context.Context, height int64) ([]byte, error)
}

var (
	// ErrHopeless is an error of Headers that waiting does not mend.
	ErrHopeless = errors.New("the headers cannot be proved")
	// ErrNothing: for as long as Options.ChooseTimeout, no snapshot that is of use was found. Nothing was changed.
	ErrNothing = errors.New("no snapshot to join from")

	errNoPeers     = errors.New("no peer of the transport can be reached")
	errNoSnapshots = errors.New("no peer offers a snapshot that can be used yet")
)

// choice is a snapshot that is worth fetching: its manifest is proved, and somebody says that he has it.
type choice struct {
	height   int64
	manifest *avlstar.Manifest
}

// conflict is the error of headers that contradict each other.
func (j *joiner) conflict() error {
	if c, ok := j.o.Headers.(interface{ Conflict() error }); ok {
		return c.Conflict()
	}
	return nil
}

// choose waits until there is a snapshot to fetch. The higher avoid of a height, the later it is considered; nil: all are as good.
func (j *joiner) choose(ctx context.Context, avoid func(height int64) int) (*choice, error) {
	began, said := time.Now(), time.Now()
	heard := make(chan struct{}, 1) // of a peer: no need to wait for the next look
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
		if err := j.conflict(); err != nil {
			return nil, err
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			connected, _ := j.o.Peers.Count()
			j.log.Info("Joining: looking for a snapshot", "peers", connected, "waiting_for", why)
		}
		pause := chooseEvery
		if time.Since(began) > patient {
			pause = statusEvery // what peers say does not change faster
		}
		select {
		case <-ctx.Done():
		case <-heard:
		case <-time.After(pause):
		}
	}
}

// offer is a height, and who says that he has it.
type offer struct {
	height int64
	conns  []transport.Conn
}

// tryChoose returns a choice, or why there is none yet.
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

// ranked orders the heights that can be used: first those whose manifest was not failed to get before, then as avoid says, then the one
// that a restore is under way of already, then the newest. A node starts at H with the headers up to H+2.
func (j *joiner) ranked(by map[int64][]transport.Conn, least, newest int64, avoid func(int64) int) []offer {
	var offers []offer
	for h, conns := range by {
		if h >= least && h <= newest-2 && (j.o.Interval <= 0 || h%j.o.Interval == 0) {
			// Peers choose their IDs: an order by those would let them be first.
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

// firstOf returns the first choice that is proved, of several that are tried side by side.
func (j *joiner) firstOf(ctx context.Context, offers []offer) (*choice, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		height int64
		m      *avlstar.Manifest
		err    error
	}
	answers, asked, ended := make(chan answer, len(offers)), 0, 0
	next := time.NewTimer(0)
	defer next.Stop()
	why := errNoSnapshots
	for ended < len(offers) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-next.C:
			if asked < len(offers) && asked-ended < heightTries {
				o := offers[asked]
				asked++
				j.wg.Go(func() {
					m, err := j.provedManifest(ctx, o.height, o.conns)
					answers <- answer{o.height, m, err}
				})
			}
			next.Reset(nextHeight)
		case a := <-answers:
			if a.err == nil {
				return &choice{a.height, a.m}, nil
			}
			if errors.Is(a.err, ErrHopeless) {
				return nil, a.err
			}
			why = a.err
			ended++
			j.attempts.Lock()
			j.attempts.failed[a.height]++
			j.attempts.Unlock()
			next.Reset(0)
		}
	}
	return nil, why
}

// provedManifest returns the manifest of the snapshot at height, proved against the header.
func (j *joiner) provedManifest(ctx context.Context, height int64, conns []transport.Conn) (*avlstar.Manifest, error) {
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	raw, err := j.o.Headers.AppHash(timed, height)
	if err != nil {
		return nil, err
	}
	var appHash avlstar.Hash
	if len(raw) != len(appHash) {
		return nil, fmt.Errorf("the app hash after block %d has %d bytes: this is no chain of Starling", height, len(raw))
	}
	copy(appHash[:], raw)
	if u := j.unfinished; u != nil && u.height == height {
		if c, err := u.manifest.Commitment(); err == nil && c.AppHash() == appHash {
			return u.manifest, nil
		}
	}
	return j.fetchManifest(ctx, height, appHash, conns)
}

// fetchManifest asks one peer after another, the next when nothing comes for a moment.
func (j *joiner) fetchManifest(ctx context.Context, height int64, appHash avlstar.Hash, conns []transport.Conn) (*avlstar.Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		m   *avlstar.Manifest
		err error
	}
	var received atomic.Int64 // of all attempts
	answers, asked, failed, seen := make(chan answer, len(conns)), 0, 0, int64(0)
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-next.C:
			if n := received.Load(); n > seen && asked > failed {
				seen = n
			} else if asked < len(conns) && asked-failed < hedges {
				conn := conns[asked]
				asked++
				j.wg.Go(func() {
					m, err := j.manifestFrom(ctx, height, appHash, conn, &received)
					answers <- answer{m, err}
				})
			}
			next.Reset(hedgeAfter)
		case a := <-answers:
			if a.err == nil {
				return a.m, nil
			}
			if failed++; failed == len(conns) {
				return nil, fmt.Errorf("the manifest of the snapshot at height %d: %w", height, a.err)
			}
			seen = received.Load()
			next.Reset(0)
		}
	}
}

// manifestFrom asks one peer. What does not lead to the app hash is a proof that it lied.
func (j *joiner) manifestFrom(ctx context.Context, height int64, appHash avlstar.Hash, conn transport.Conn, received *atomic.Int64) (*avlstar.Manifest, error) {
	lied := func(err error) error {
		j.o.Peers.Ban(conn.Remote().ID, statesync.BanManifest, err.Error())
		return err
	}
	b, err := call(ctx, conn, transport.Call{Method: transport.MethodCommitment, Body: heightBody(height), Max: commitmentBytes})
	if err != nil {
		if isLie(err) {
			return nil, lied(err)
		}
		return nil, err
	}
	c, err := avlstar.DecodeCommitment(b)
	if err != nil || c.AppHash() != appHash {
		return nil, lied(fmt.Errorf("what the app hash after block %d commits to is not what it says", height))
	}
	limit := max(entryBytes*int(c.Chunks), 16)
	b, err = moving(ctx, conn, transport.Call{Method: transport.MethodManifest, Body: heightBody(height), Max: limit}, received)
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

// moving makes a call that may take long, as long as something comes.
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
				cancel(errors.New("nothing comes"))
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

// probe fetches one chunk: a node gives its own state up only for one that somebody has, not for one that is only known to exist.
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
		Method: transport.MethodChunk, Body: chunkRequest{height, uint32(least), 0, n}.encode(), Into: make([]byte, n),
	}, new(atomic.Int64))
	if err == nil {
		_, err = m.VerifyChunk(uint32(least), data)
	}
	if isLie(err) || errors.Is(err, avlstar.ErrInvalidChunk) {
		j.o.Peers.Ban(conn.Remote().ID, statesync.BanChunk, err.Error())
	}
	return err
}

// isLie says whether an error of a call proves that the peer is not honest.
func isLie(err error) bool {
	return errors.Is(err, transport.ErrTooLong) || errors.Is(err, transport.ErrProtocol)
}
