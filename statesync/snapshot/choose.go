package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/hedge"
	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// Pacing of requests. See hedge.Policy for the paces.
var (
	// For a manifest, one peer is asked, and another one in parallel while no peer sends at
	// modestRate. A slow peer yields its slot to another one and continues later.
	manifestPolicy = hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 5, After: hedgeAfter, Rate: modestRate, Turn: 3 * hedgeAfter}
	// For heights the pace is the same, because a Byzantine peer can claim any height and serve
	// none.
	heightsPolicy = hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 4, After: 3 * time.Second, Rate: modestRate, Turn: 3 * time.Second}
)

const (
	hedgeAfter = 300 * time.Millisecond
	// modestRate, in bytes per second: while a peer sends a manifest at this rate, no other peer is
	// asked in parallel, and the peer is not replaced. The bytes of slower peers are kept.
	modestRate = 256 << 10
	// manifestStall is how long a call may receive nothing before it is abandoned.
	manifestStall  = 5 * time.Second
	headersTimeout = 10 * time.Second
	askTimeout     = 5 * time.Second // for a small answer
	chooseEvery    = 100 * time.Millisecond
	reportEvery    = 5 * time.Second
	// settle is how long the first choice waits for connected peers to report their snapshots.
	// During patient, heights that are more than LateIntervals old are not accepted.
	settle  = 1500 * time.Millisecond
	patient = 10 * time.Second
	// firstTry is how long heights are tried before the peers and their snapshots are read again.
	// It doubles up to lastTry.
	firstTry = 30 * time.Second
	lastTry  = 5 * time.Minute
)

// LateIntervals is the maximum age of a snapshot, in intervals, at which it is chosen at once, or
// compared with the one being fetched.
const LateIntervals = 4

// Choose waits until there is a snapshot to fetch. Heights with a lower avoid are considered first,
// heights with a negative one never. If avoid is nil, no height is preferred.
func (f *Finder) Choose(ctx context.Context, avoid func(height int64) int) (*Choice, error) {
	began, said := time.Now(), time.Now()
	heard := make(chan struct{}, 1) // a peer reported its snapshots: check again at once
	fresh := newNews()
	stop := f.o.Peers.Watch(peers.Watcher{
		Status: func(id transport.ID, s protocol.Status) {
			fresh.heard(id, s)
			wake.Up(heard)
		},
	})
	defer stop()
	outer, cancel := ctx, func() {}
	if f.o.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.o.Timeout)
	}
	defer cancel()
	for limit := firstTry; ; {
		try, cancel := context.WithTimeout(ctx, limit)
		c, why := f.tryChoose(try, avoid, time.Since(began), fresh)
		cancel()
		switch {
		case c != nil:
			return c, nil
		case errors.Is(why, ErrHopeless):
			return nil, why
		case outer.Err() != nil:
			return nil, fmt.Errorf("%w (%w)", outer.Err(), why)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrNothing, why)
		case errors.Is(why, errSlow):
			limit = min(2*limit, lastTry)
		}
		if err := f.o.Headers.Conflict(); err != nil {
			return nil, err
		}
		if time.Since(said) > reportEvery {
			said = time.Now()
			connected, _ := f.o.Peers.Count()
			f.o.Logger.Info("Joining: looking for a snapshot", "peers", connected, "waiting_for", why)
		}
		pause := chooseEvery
		if time.Since(began) > patient {
			pause = peers.StatusEvery // peers do not report more often
		}
		select {
		case <-ctx.Done():
		case <-heard:
		case <-time.After(pause):
		}
	}
}

// news wakes running searches when a peer claims new snapshots.
type news struct {
	mu    sync.Mutex
	has   map[transport.ID]protocol.Status
	again chan struct{} // closed with the next news
}

func newNews() *news {
	return &news{has: map[transport.ID]protocol.Status{}, again: make(chan struct{})}
}

func (n *news) heard(id transport.ID, s protocol.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.has[id].SameSnapshots(s) {
		n.has[id] = s
		close(n.again)
		n.again = make(chan struct{})
	}
}

// next returns a channel that is closed with the next news.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.again
}

// claimed returns, by height, the connected peers that claim a snapshot or a part of it. unknown
// reports that some connected peer has not sent its status yet.
func (f *Finder) claimed() (by map[int64][]transport.Conn, unknown bool) {
	by = map[int64][]transport.Conn{}
	for _, p := range f.o.Peers.Connected() {
		unknown = unknown || !p.Known
		for _, h := range p.Status.Heights() {
			by[h] = append(by[h], p.Conn)
		}
	}
	return by, unknown
}

// fetchable returns the heights for which the connected peers together claim all chunks. missing
// names the chunks missing from the newest other height; nil if there is no other.
func (f *Finder) fetchable() (heights []int64, missing error) {
	whole, parts := map[int64]bool{}, map[int64][]statesync.Part{}
	for _, p := range f.o.Peers.Connected() {
		for _, h := range p.Status.Snapshots {
			whole[h] = true
		}
		for _, part := range p.Status.Parts {
			parts[part.Height] = append(parts[part.Height], part)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(parts)) {
		if whole[h] {
			continue
		}
		if err := incomplete(h, parts[h]); err != nil {
			missing = err
		} else {
			whole[h] = true
		}
	}
	return slices.Collect(maps.Keys(whole)), missing
}

// tryChoose returns a choice, or the reason why there is none yet. waited is the time since Choose
// was called.
func (f *Finder) tryChoose(ctx context.Context, avoid func(int64) int, waited time.Duration, fresh *news) (*Choice, error) {
	by, unknown := f.claimed()
	switch {
	case len(by) == 0 && !unknown:
		if connected, _ := f.o.Peers.Count(); connected == 0 {
			return nil, ErrNoPeers
		}
		return nil, ErrNoSnapshots
	case len(by) == 0, unknown && waited < settle:
		return nil, ErrNoSnapshots
	}
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	newest, err := f.o.Headers.Newest(timed)
	if err != nil {
		return nil, err
	}
	least := max(f.o.LocalHeight+1, f.o.MinHeight)
	if avoid == nil && waited < patient && f.o.Interval > 0 {
		least = max(least, newest-LateIntervals*f.o.Interval)
	}
	// A partial snapshot is fetched only if no local state would be given up for it.
	partly := avoid == nil && waited >= patient && f.o.Local == nil
	c, err := f.firstOf(ctx, fresh, func() []int64 {
		heights, _ := f.fetchable()
		if partly && len(f.ranked(slices.Clone(heights), least, newest, avoid)) == 0 {
			by, _ := f.claimed()
			heights = slices.Collect(maps.Keys(by))
		}
		return f.ranked(heights, least, newest, avoid)
	})
	if errors.Is(err, ErrNoSnapshots) {
		if _, missing := f.fetchable(); missing != nil {
			err = missing
		}
	}
	return c, err
}

// ranked returns the usable heights in order of preference: by failed attempts to get the manifest,
// then by avoid (without avoid, the height of an unfinished restore comes first), then the newest
// first. Heights up to newest-2 are usable, because a node starts at H with the headers up to H+2.
func (f *Finder) ranked(heights []int64, least, newest int64, avoid func(int64) int) []int64 {
	heights = slices.DeleteFunc(heights, func(h int64) bool {
		return h < least || h > newest-2 || f.o.Interval > 0 && h%f.o.Interval != 0 || avoid != nil && avoid(h) < 0
	})
	f.attempts.Lock()
	defer f.attempts.Unlock()
	rank := func(h int64) int {
		switch {
		case avoid != nil:
			return avoid(h)
		case f.o.Unfinished != nil && h == f.o.Unfinished.Height:
			return -1
		}
		return 0
	}
	slices.SortFunc(heights, func(a, b int64) int {
		return cmp.Or(cmp.Compare(f.attempts.failed[a], f.attempts.failed[b]), cmp.Compare(rank(a), rank(b)), cmp.Compare(b, a))
	})
	return heights
}

// firstOf tries heights in parallel and returns the first proved choice.
func (f *Finder) firstOf(ctx context.Context, fresh *news, heights func() []int64) (*Choice, error) {
	var found *Choice
	why := ErrNoSnapshots
	asked := map[int64]bool{} // guarded by f.attempts
	s := hedge.Search[int64, *avlstar.Manifest]{
		Policy: heightsPolicy,
		Go:     f.o.Go,
		More:   unseen(fresh, heights),
		Ask: func(ctx context.Context, height int64) (*avlstar.Manifest, error) {
			f.attempts.Lock()
			asked[height] = true
			f.attempts.Unlock()
			return f.provedManifest(ctx, height, fresh)
		},
		Received: f.sketches.received,
		Failed: func(height int64, err error) bool {
			why = err
			if errors.Is(err, ErrHopeless) {
				return true
			}
			f.attempts.Lock()
			defer f.attempts.Unlock()
			f.attempts.failed[height]++
			return false
		},
		Proved: func(height int64, m *avlstar.Manifest) { found = &Choice{height, m} },
	}
	if err := s.Run(ctx); err != nil {
		f.attempts.Lock()
		defer f.attempts.Unlock()
		for height := range asked { // next time the others come first
			f.attempts.failed[height]++
		}
		return nil, fmt.Errorf("%w (%w)", errSlow, err)
	}
	if found == nil {
		return nil, why
	}
	return found, nil
}

// unseen turns a function that lists candidates into a hedge.Search's More: it returns each
// candidate once, and lists again when there is news.
func unseen[C comparable](fresh *news, list func() []C) func() ([]C, <-chan struct{}) {
	seen := map[C]bool{}
	return func() ([]C, <-chan struct{}) {
		again := fresh.next() // before the list, so that news in between is not missed
		more := slices.DeleteFunc(list(), func(c C) bool { return seen[c] })
		for _, c := range more {
			seen[c] = true
		}
		return more, again
	}
}

// provedManifest returns the manifest of the snapshot at height, proved by a header.
func (f *Finder) provedManifest(ctx context.Context, height int64, fresh *news) (*avlstar.Manifest, error) {
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	raw, err := f.o.Headers.AppHash(timed, height)
	if err != nil {
		return nil, err
	}
	var appHash avlstar.Hash
	if len(raw) != len(appHash) {
		return nil, fmt.Errorf("the app hash after block %d has %d bytes: this is not a Starling chain", height, len(raw))
	}
	copy(appHash[:], raw)
	if u := f.o.Unfinished; u != nil && u.Height == height {
		if c, err := u.Manifest.Commitment(); err == nil && c.AppHash() == appHash {
			return u.Manifest, nil
		}
	}
	return f.fetchManifest(ctx, f.sketches.at(height, appHash), fresh)
}
