package fastsync

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
	"github.com/starling-kv/starling/hedge"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/transport"
)

// How eagerly peers are asked. See hedge.Policy for the paces.
var (
	// A manifest: one peer after another, and the next one beside it while nobody sends at a modest
	// rate. Who is slow gives its place up to another, and continues later.
	manifestPolicy = hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 5, After: hedgeAfter, Rate: modestRate, Turn: 3 * hedgeAfter}
	// Heights: the same, because a lying peer can claim any height and serve none.
	heightsPolicy = hedge.Policy{Pace: hedge.ByRate, Start: 1, Most: 4, After: 3 * time.Second, Rate: modestRate, Turn: 3 * time.Second}
)

const (
	hedgeAfter = 300 * time.Millisecond
	// modestRate, in bytes a second, is what a peer may send a manifest at without another being
	// asked beside it. So 70·m bytes take one peer 70·m / modestRate seconds, and nobody who is
	// faster is ever replaced; slower ones are, and what they sent is kept.
	modestRate = 256 << 10
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
	// firstTry is how long heights are tried before it is looked who is there by now, and what they
	// have. It doubles up to lastTry.
	firstTry = 30 * time.Second
	lastTry  = 5 * time.Minute
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
	errCommitment  = errors.New("its commitment does not have the app hash after block")
	errSlow        = errors.New("no peer sends a manifest fast enough")
)

// choice is a snapshot to fetch: its manifest is proved, and a peer claims to have it.
type choice struct {
	height   int64
	manifest *avlstar.Manifest
}

// choose waits until there is a snapshot to fetch. Heights with a lower avoid are considered first,
// those with a negative one never; nil means that none is preferred.
func (j *joiner) choose(ctx context.Context, avoid func(height int64) int) (*choice, error) {
	began, said := time.Now(), time.Now()
	heard := make(chan struct{}, 1) // a peer reported its snapshots: look again at once
	fresh := newNews()
	stop := j.o.Peers.Watch(Watcher{
		Status: func(id transport.ID, s Status) {
			fresh.heard(id, s)
			select {
			case heard <- struct{}{}:
			default:
			}
		},
	})
	defer stop()
	outer, cancel := ctx, func() {}
	if j.o.ChooseTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, j.o.ChooseTimeout)
	}
	defer cancel()
	for limit := firstTry; ; {
		try, cancel := context.WithTimeout(ctx, limit)
		c, why := j.tryChoose(try, avoid, time.Since(began), fresh)
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

// news tells searches that are under way of snapshots that a peer has not claimed before.
type news struct {
	mu    sync.Mutex
	has   map[transport.ID]Status
	again chan struct{} // closed with the next news
}

func newNews() *news { return &news{has: map[transport.ID]Status{}, again: make(chan struct{})} }

func (n *news) heard(id transport.ID, s Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.has[id].sameSnapshots(s) {
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

// claimed returns, by height, the connected peers that claim to have its snapshot or a part of it.
// unknown reports that a peer is connected of which nothing is known yet.
func (j *joiner) claimed() (by map[int64][]transport.Conn, unknown bool) {
	by = map[int64][]transport.Conn{}
	for _, p := range j.o.Peers.conns() {
		unknown = unknown || !p.known
		for _, h := range p.status.heights() {
			by[h] = append(by[h], p.Conn)
		}
	}
	return by, unknown
}

// fetchable returns the heights of which the connected peers together claim all chunks, and if
// there are others what the newest of these lacks.
func (j *joiner) fetchable() (heights []int64, lacks error) {
	whole, parts := map[int64]bool{}, map[int64][]statesync.Part{}
	for _, p := range j.o.Peers.conns() {
		for _, h := range p.status.Snapshots {
			whole[h] = true
		}
		for _, part := range p.status.Parts {
			parts[part.Height] = append(parts[part.Height], part)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(parts)) {
		if whole[h] {
			continue
		}
		if err := incomplete(h, parts[h]); err != nil {
			lacks = err
		} else {
			whole[h] = true
		}
	}
	return slices.Collect(maps.Keys(whole)), lacks
}

// tryChoose returns a choice, or the reason that there is none yet. waited is the time since choose
// began.
func (j *joiner) tryChoose(ctx context.Context, avoid func(int64) int, waited time.Duration, fresh *news) (*choice, error) {
	by, unknown := j.claimed()
	switch {
	case len(by) == 0 && !unknown:
		if connected, _ := j.o.Peers.Count(); connected == 0 {
			return nil, errNoPeers
		}
		return nil, errNoSnapshots
	case len(by) == 0, unknown && waited < settle:
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
	// A part of a snapshot is a beginning where nothing is there that would be given up for it.
	partly := avoid == nil && waited >= patient && j.o.Local == nil
	c, err := j.firstOf(ctx, fresh, func() []int64 {
		heights, _ := j.fetchable()
		if partly && len(j.ranked(slices.Clone(heights), least, newest, avoid)) == 0 {
			by, _ := j.claimed()
			heights = slices.Collect(maps.Keys(by))
		}
		return j.ranked(heights, least, newest, avoid)
	})
	if errors.Is(err, errNoSnapshots) {
		if _, lacks := j.fetchable(); lacks != nil {
			err = lacks
		}
	}
	return c, err
}

// ranked returns the usable heights in order of preference: by attempts to get the manifest, then
// by avoid (without avoid, the height of an unfinished restore comes first), then the newest
// first. Heights are usable up to newest-2, because a node starts at H with the headers up to H+2.
func (j *joiner) ranked(heights []int64, least, newest int64, avoid func(int64) int) []int64 {
	heights = slices.DeleteFunc(heights, func(h int64) bool {
		return h < least || h > newest-2 || j.o.Interval > 0 && h%j.o.Interval != 0 || avoid != nil && avoid(h) < 0
	})
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
	slices.SortFunc(heights, func(a, b int64) int {
		return cmp.Or(cmp.Compare(j.attempts.failed[a], j.attempts.failed[b]), cmp.Compare(rank(a), rank(b)), cmp.Compare(b, a))
	})
	return heights
}

// firstOf returns the first choice that is proved, of heights that are tried side by side.
func (j *joiner) firstOf(ctx context.Context, fresh *news, heights func() []int64) (*choice, error) {
	var found *choice
	why := errNoSnapshots
	asked := map[int64]bool{} // guarded by j.attempts
	s := hedge.Search[int64, *avlstar.Manifest]{
		Policy: heightsPolicy,
		Go:     j.wg.Go,
		More:   unseen(fresh, heights),
		Ask: func(ctx context.Context, height int64) (*avlstar.Manifest, error) {
			j.attempts.Lock()
			asked[height] = true
			j.attempts.Unlock()
			return j.provedManifest(ctx, height, fresh)
		},
		Received: j.sketches.received,
		Failed: func(height int64, err error) bool {
			why = err
			if errors.Is(err, ErrHopeless) {
				return true
			}
			j.attempts.Lock()
			defer j.attempts.Unlock()
			j.attempts.failed[height]++
			return false
		},
		Proved: func(height int64, m *avlstar.Manifest) { found = &choice{height, m} },
	}
	if err := s.Run(ctx); err != nil {
		j.attempts.Lock()
		defer j.attempts.Unlock()
		for height := range asked { // the others come first next time
			j.attempts.failed[height]++
		}
		return nil, fmt.Errorf("%w (%w)", errSlow, err)
	}
	if found == nil {
		return nil, why
	}
	return found, nil
}

// unseen makes a hedge.Search's More of a function that lists candidates: it returns each once, and
// looks again with the news.
func unseen[C comparable](fresh *news, list func() []C) func() ([]C, <-chan struct{}) {
	seen := map[C]bool{}
	return func() ([]C, <-chan struct{}) {
		again := fresh.next() // before the list: what comes between is listed twice, not missed
		more := slices.DeleteFunc(list(), func(c C) bool { return seen[c] })
		for _, c := range more {
			seen[c] = true
		}
		return more, again
	}
}

// provedManifest returns the manifest of the snapshot at height, proved by the header.
func (j *joiner) provedManifest(ctx context.Context, height int64, fresh *news) (*avlstar.Manifest, error) {
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
	return j.fetchManifest(ctx, j.sketches.at(height, appHash), fresh)
}
