package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/statesync/fetch"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

var (
	// ErrNothing reports that no peer had a state that could be verified.
	ErrNothing = errors.New("no peer has a state that can be verified")
	// ErrStale reports that no peer has the state of an unfinished join anymore. Remove the join's
	// database before fetching another state.
	ErrStale = errors.New("no peer has the state of the unfinished join")
	// ErrStalled reports that nothing has arrived for Options.Stall.
	ErrStalled = errors.New("no peer has sent data within the time limit")
	// ErrNoPeers reports that each peer is banned, or is not the node that Options.Addresses names.
	ErrNoPeers = errors.New("no peer is left")
)

// Headers provides the app hashes of the chain.
type Headers interface {
	// AppHash returns the verified app hash of the state after the block of a height. The next
	// header contains it.
	AppHash(ctx context.Context, height int64) ([]byte, error)
}

// Options configure Join. Those without a default are required.
type Options struct {
	Target    Target
	Headers   Headers
	Dialer    transport.Dialer
	Addresses []transport.Address // addresses of peers, dialled until they respond
	// Height is the height of the state; 0: the newest offered height that can be verified.
	Height int64
	// ChooseTimeout is the time limit for finding a state; 0: 1 minute.
	ChooseTimeout time.Duration
	// Stall is the time without received data after which the join fails; 0: 2 minutes.
	Stall time.Duration
	// MemoryBytes limits the bytes of responses in flight or being verified; 0:
	// scheduler.DefaultMemory. A compressed response takes up to twice its share while it is
	// verified.
	MemoryBytes int64
	// Accept may reject a state with a verified manifest before anything is written; nil: all
	// states are accepted.
	Accept func(m *iavlsync.Manifest) error
	// Final, if not nil, is called when all chunks have arrived and no peer is connected anymore,
	// before the state becomes visible. If it returns an error, the join stays unfinished.
	Final func() error
	// Up and Down, if not nil, are called when a peer has connected or disconnected. They must not
	// block.
	Up   func(transport.Conn)
	Down func(transport.ID)
	// Report is the interval between two progress lines; 0: 5 seconds.
	Report time.Duration
	// Log, if not nil, receives log lines. It is not called concurrently.
	Log func(text string)
}

// Result is the outcome of Join.
type Result struct {
	Height  int64
	AppHash iavlsync.Hash
	Chunks  int   // chunks of the state
	Fetched int   // chunks fetched by this Join
	Bytes   int64 // bytes of valid responses, which may be compressed
	// ChunkBytes is the length of the chunks in them.
	ChunkBytes int64
	Banned     int // banned peers
}

// Time limits of a peer for one part of a manifest, and for a whole manifest.
const (
	partTimeout     = 30 * time.Second
	manifestTimeout = 5 * time.Minute
)

// Peers that have wasted less time are preferred, in units of lateAfter. After ChooseTimeout, a
// peer that has wasted patience gets no more requests.
const (
	lateAfter = 5 * time.Second
	patience  = 2 * partTimeout
)

// retryEvery is the interval at which the search for a state is repeated if nothing else happens.
const retryEvery = 5 * time.Second

// joiner is a join in progress: the Work of a fetch.Loop. Other goroutines dial peers.
type joiner struct {
	o    Options
	ctx  context.Context // ends the join
	loop *fetch.Loop[int, struct{}]

	// Used only by the loop's goroutine.
	peers    map[scheduler.PeerID]*peer // connected
	banned   map[transport.ID]bool
	wasted   map[transport.ID]time.Duration // time spent on a peer's offers without a result
	known    []Peer                         // at n: the last answer of o.Addresses[n]
	state    *state
	moved    time.Time // when data last arrived
	waited   time.Time // when the join last logged that it waits
	began    time.Time // when fetching chunks began
	reported time.Time // time of the last progress line
	logged   int64     // bytes in the last progress line
	missing  int       // number of chunks when fetching began
	result   Result
}

// peer is a connection and what its node offers.
type peer struct {
	conn   transport.Conn
	offers iavlsync.Offers
	// Heights whose manifest this peer did not send, until the next attempt; nil: none.
	lacks map[int64]bool
}

// state is the state that is being fetched.
type state struct {
	m         *iavlsync.Manifest
	first     []int64 // at k: number of the first leaf of chunk k
	installer Installer
	unpacker  *packed.Unpacker
	// old has the scheduler.PeerID of each server that refuses requests for compressed answers, as
	// those before they were defined do.
	old        sync.Map
	chunkBytes atomic.Int64 // Result.ChunkBytes
}

// Join fetches a state, verifies it and installs it durably in the database. Errors: ctx's,
// PeersError, nodedb.ErrNotEmpty, failures of the database.
func Join(ctx context.Context, o Options) (*Result, error) {
	if o.ChooseTimeout <= 0 {
		o.ChooseTimeout = time.Minute
	}
	if o.Stall <= 0 {
		o.Stall = 2 * time.Minute
	}
	if o.Report <= 0 {
		o.Report = 5 * time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &joiner{
		o: o, ctx: ctx,
		peers: map[scheduler.PeerID]*peer{}, banned: map[transport.ID]bool{}, wasted: map[transport.ID]time.Duration{},
	}
	j.loop = fetch.New(ctx, o.MemoryBytes, weighed, j)
	defer j.loop.Stop()
	defer cancel()
	for _, a := range o.Addresses {
		j.known = append(j.known, Peer{Address: a, Answer: "no answer yet"})
	}
	for n, a := range o.Addresses {
		j.loop.Go(func() { j.connect(n, a) })
	}
	err := j.choose()
	if err == nil {
		err = j.fetch()
	}
	for _, end := range []error{ErrNothing, ErrStale, ErrStalled, ErrNoPeers} {
		if errors.Is(err, end) {
			return nil, &PeersError{err, j.known}
		}
	}
	if err != nil {
		return nil, err
	}
	// Stop all writers first: a duplicate of a chunk whose request was cancelled late would
	// otherwise write its mark next to a finished state.
	cancel()
	j.loop.Stop()
	j.result.ChunkBytes = j.state.chunkBytes.Load()
	if o.Final != nil {
		if err := o.Final(); err != nil {
			return nil, err
		}
	}
	if err := j.state.installer.Finish(); err != nil {
		return nil, err
	}
	return &j.result, nil
}

func (j *joiner) say(format string, args ...any) {
	if j.o.Log != nil {
		j.o.Log(fmt.Sprintf(format, args...))
	}
}

// Ban implements fetch.Work. It disconnects a Byzantine peer permanently.
func (j *joiner) Ban(id scheduler.PeerID, why string) {
	p := j.peers[id]
	j.say("peer %s is banned: %s", id, why)
	for i := range j.known {
		if k := &j.known[i]; k.ID == transport.ID(id) {
			k.Answer, k.Err, k.Final = "banned: "+reason(errors.New(why)), ErrNoPeers, true
		}
	}
	if !j.banned[transport.ID(id)] {
		j.banned[transport.ID(id)] = true
		j.result.Banned++
	}
	if p != nil {
		_ = p.conn.Close() // the connection is no longer needed
	}
}

// choose finds a state that can be verified, or that of the unfinished join, and opens the
// installer.
func (j *joiner) choose() error {
	format, unfinished, err := j.o.Target.Unfinished()
	if err != nil {
		return err
	}
	height := j.o.Height
	var resumed *iavlsync.Manifest
	if unfinished != nil {
		if resumed, err = iavlsync.DecodeManifest(format, unfinished); err != nil {
			return fmt.Errorf("unfinished join: %w", err)
		}
		if height != 0 && height != resumed.Height {
			return fmt.Errorf("%w: it is at height %d, not %d", nodedb.ErrOtherJoin, resumed.Height, height)
		}
		height = resumed.Height
		j.say("resuming the join at height %d", height)
	}
	deadline := time.Now().Add(j.o.ChooseTimeout)
	timeout := time.NewTimer(j.o.ChooseTimeout)
	defer timeout.Stop()
	last := ErrNothing
	if resumed != nil {
		last = ErrStale
	}
	tried := map[int64]bool{} // heights without a known app hash, until the next attempt
	again := time.NewTicker(retryEvery)
	defer again.Stop()
	for over := false; j.ctx.Err() == nil; {
		// Handle posted events before trying each height, because a new offer may be better than
		// the remaining ones. After the deadline, existing offers are tried but new ones are
		// ignored.
		if !over {
			over = !time.Now().Before(deadline)
			j.loop.Handle()
		}
		if err := j.useless(); err != nil {
			return err
		}
		if h, ok := j.next(height, tried, over); ok {
			from := time.Now()
			hash, err := j.appHash(h)
			if err == nil && len(hash) != len(iavlsync.Hash{}) {
				err = fmt.Errorf("got an app hash of %d bytes", len(hash))
			}
			if err != nil {
				j.say("height %d cannot be proved: %v", h, err)
				last, tried[h] = fmt.Errorf("%w: height %d: %w", ErrNothing, h, err), true
				for id, p := range j.peers {
					if slices.Contains(p.offers, h) {
						j.wasted[transport.ID(id)] += time.Since(from)
					}
				}
				continue
			}
			m := resumed
			if m == nil {
				m = j.manifest(h, iavlsync.Hash(hash))
			} else if _, err := iavlsync.VerifyManifest(format, unfinished, h, iavlsync.Hash(hash)); err != nil {
				return fmt.Errorf("unfinished join: %w", err)
			}
			if m != nil {
				return j.begin(m, iavlsync.Hash(hash))
			}
			continue
		}
		if over {
			for id, p := range j.peers {
				if height != 0 && !slices.Contains(p.offers, height) {
					j.absent(id, height)
				}
			}
			return last
		}
		select {
		case <-j.ctx.Done():
		case <-timeout.C:
		case <-again.C:
			clear(tried)
			for _, p := range j.peers {
				p.lacks = nil
			}
		case <-j.loop.Posted():
		}
	}
	return j.ctx.Err()
}

// late returns the time that a peer has wasted, in units of lateAfter.
func (j *joiner) late(id scheduler.PeerID) int { return int(j.wasted[transport.ID(id)] / lateAfter) }

// next returns the height to try: the newest offer of the peers that have wasted the least time, so
// that slow peers cannot block the heights of others. If height is not 0, next returns only this
// height.
func (j *joiner) next(height int64, tried map[int64]bool, over bool) (newest int64, ok bool) {
	least := 0
	for id, p := range j.peers {
		if j.banned[transport.ID(id)] || over && j.wasted[transport.ID(id)] >= patience {
			continue
		}
		late := j.late(id)
		for _, h := range p.offers {
			if height != 0 && h != height || tried[h] || p.lacks[h] {
				continue
			}
			if !ok || late < least || late == least && h > newest {
				newest, least, ok = h, late, true
			}
		}
	}
	return newest, ok
}

// appHash requests an app hash, with a time limit.
func (j *joiner) appHash(height int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(j.ctx, partTimeout)
	defer cancel()
	return j.o.Headers.AppHash(ctx, height)
}

// manifest fetches and verifies the manifest of a height from one peer after another, starting with
// those that have wasted the least time. It returns nil if none had it, or if one was so late that
// other heights may be better.
func (j *joiner) manifest(height int64, appHash iavlsync.Hash) *iavlsync.Manifest {
	ids := slices.SortedFunc(maps.Keys(j.peers), func(a, b scheduler.PeerID) int {
		return cmp.Compare(j.late(a), j.late(b))
	})
	for _, id := range ids {
		p := j.peers[id]
		if j.banned[transport.ID(id)] || p.lacks[height] || !slices.Contains(p.offers, height) {
			continue
		}
		from := time.Now()
		b, err := fetchManifest(j.ctx, p.conn, height, iavlsync.Format8192)
		if err == nil {
			var m *iavlsync.Manifest
			if m, err = iavlsync.VerifyManifest(iavlsync.Format8192, b, height, appHash); err == nil {
				return m
			}
		}
		if p.lacks == nil {
			p.lacks = map[int64]bool{}
		}
		p.lacks[height] = true
		if isLie(err) {
			j.Ban(id, err.Error())
			continue
		}
		j.say("peer %s sent no manifest of height %d: %v", id, height, err)
		j.failed(transport.ID(id), fmt.Sprintf("no manifest of height %d", height), err)
		took := time.Since(from)
		if j.wasted[transport.ID(id)] += took; took >= lateAfter {
			return nil
		}
	}
	return nil
}

func fetchManifest(ctx context.Context, conn transport.Conn, height int64, f iavlsync.Format) (b []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, manifestTimeout)
	defer cancel()
	for {
		q := iavlsync.ManifestRequest{Height: height, Format: f, Offset: int64(len(b))}
		part, err := call(ctx, conn, iavlsync.MethodManifest, q.Encode(), iavlsync.ManifestPartBytes)
		if err != nil {
			return nil, err
		}
		b = append(b, part...)
		if len(part) < iavlsync.ManifestPartBytes || len(b) > iavlsync.MaxManifestBytes {
			return b, nil
		}
	}
}

func call(ctx context.Context, conn transport.Conn, method transport.Method, body []byte, most int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	return conn.Call(ctx, transport.Call{Method: method, Body: body, Max: most})
}

// isLie reports whether an error proves that the peer is Byzantine.
func isLie(err error) bool {
	return errors.Is(err, iavlsync.ErrInvalidManifest) || errors.Is(err, iavlsync.ErrInvalidChunk) ||
		errors.Is(err, iavlsync.ErrInvalidMessage) || transport.IsViolation(err)
}

// begin opens the installer.
func (j *joiner) begin(m *iavlsync.Manifest, appHash iavlsync.Hash) error {
	s := &state{m: m, unpacker: packed.NewUnpacker()}
	for i := range m.Stores {
		u, err := m.Upper(i)
		if err != nil {
			return err
		}
		s.first = append(s.first, u.First...)
	}
	var err error
	if j.o.Accept != nil {
		if err = j.o.Accept(m); err != nil {
			return err
		}
	}
	if s.installer, err = j.o.Target.Begin(m); err != nil {
		return err
	}
	j.state = s
	j.result.Height, j.result.AppHash, j.result.Chunks = m.Height, appHash, m.Chunks()
	j.say("joining at height %d: %d of %d chunks are missing", m.Height, len(s.installer.Missing()), m.Chunks())
	return nil
}
