package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/internal/mailbox"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/transport"
)

var (
	// ErrNothing reports that no peer had a state that could be proved.
	ErrNothing = errors.New("no peer has a state that can be proved")
	// ErrStale reports that no peer has the state of an unfinished join any more. Its database has
	// to be removed before another state can be fetched.
	ErrStale = errors.New("no peer has the state of the unfinished join")
	// ErrStalled reports that nothing has arrived for Options.Stall.
	ErrStalled = errors.New("no peer sends anything")
)

// Headers knows the app hashes of the chain.
type Headers interface {
	// AppHash returns the proved app hash of the state after the block of a height, which the next
	// header holds.
	AppHash(ctx context.Context, height int64) ([]byte, error)
}

// Options of a Join. Those without a default are needed.
type Options struct {
	Target    Target
	Headers   Headers
	Dialer    transport.Dialer
	Addresses []transport.Address // of peers; they are dialled until they answer
	// Height of the state; 0: the newest that is offered and proved.
	Height int64
	// ChooseTimeout is how long to look for a state; 0: 1 minute.
	ChooseTimeout time.Duration
	// Stall is how long nothing may arrive before the join fails; 0: 10 minutes.
	Stall time.Duration
	// MemoryBytes limits the bytes of answers that are under way or being verified; 0:
	// scheduler.DefaultMemory.
	MemoryBytes int64
	// Accept may refuse a state, whose manifest is proved, before anything is written; nil: all are
	// accepted.
	Accept func(m *iavlsync.Manifest) error
	// Final is asked when all has come and no peer is connected any more, before the state becomes
	// visible: with an error the join stays unfinished; nil: it is not asked.
	Final func() error
	// Up and Down are called when a peer is connected, and when it no longer is; nil: they are not
	// called. They must not block.
	Up   func(transport.Conn)
	Down func(transport.ID)
	// Report is the time between two lines about what has arrived; 0: 5 seconds.
	Report time.Duration
	// Log is called with what happens, never concurrently with itself; nil: it is not called.
	Log func(text string)
}

// Result is what a Join has done.
type Result struct {
	Height  int64
	AppHash iavlsync.Hash
	Chunks  int   // of the state
	Fetched int   // of these, by this Join
	Bytes   int64 // of answers that were right
	Banned  int   // peers that have lied
}

// How long a peer may take for one part of a manifest, and for all of one.
const (
	partTimeout     = 30 * time.Second
	manifestTimeout = 5 * time.Minute
)

// Peers are asked in the order of how much time they have wasted, in units of lateAfter. Once the
// time to choose is over, who has wasted patience is not asked any more.
const (
	lateAfter = 5 * time.Second
	patience  = 2 * partTimeout
)

// retryEvery is how often it is tried again to find a state, where nothing else happens.
const retryEvery = 5 * time.Second

// progressEvery is how often the scheduler hears what has arrived of answers under way.
const progressEvery = 100 * time.Millisecond

// joiner is a join under way. One goroutine, the loop, decides; others dial, call, verify and
// install, and report to it through the mailbox.
type joiner struct {
	o       Options
	started time.Time
	ctx     context.Context // ends the join

	wg      sync.WaitGroup
	workers chan struct{} // one element for each answer being verified
	mail    *mailbox.Mailbox[event]

	// Used by the loop only.
	peers    map[scheduler.PeerID]*peer // connected
	banned   map[transport.ID]bool
	wasted   map[transport.ID]time.Duration // time that their offers took, and nothing came of it
	sched    *scheduler.Scheduler
	state    *state
	requests map[scheduler.RequestID]*request
	moved    time.Time // when something has arrived last
	result   Result
	done     bool
	failed   error // of our own, such as a full disk
}

// peer is a connection with what its node offers.
type peer struct {
	conn   transport.Conn
	offers iavlsync.Offers
	// lacks are heights whose manifest it has not given, until the next attempt; nil: none.
	lacks map[int64]bool
}

// state is what is being fetched.
type state struct {
	m         *iavlsync.Manifest
	first     []int64 // of chunk k: the number of its first leaf
	installer Installer
}

// Join fetches a state, proves it and makes it that of the database, durably. Errors: ctx's,
// ErrNothing, ErrStale, ErrStalled, nodedb.ErrNotEmpty, failures of the database.
func Join(ctx context.Context, o Options) (*Result, error) {
	if o.ChooseTimeout <= 0 {
		o.ChooseTimeout = time.Minute
	}
	if o.Stall <= 0 {
		o.Stall = 10 * time.Minute
	}
	if o.Report <= 0 {
		o.Report = 5 * time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &joiner{
		o: o, started: time.Now(), ctx: ctx, workers: make(chan struct{}, runtime.GOMAXPROCS(0)), mail: mailbox.New[event](),
		peers: map[scheduler.PeerID]*peer{}, banned: map[transport.ID]bool{}, wasted: map[transport.ID]time.Duration{}, requests: map[scheduler.RequestID]*request{},
		sched: scheduler.New(o.MemoryBytes, runtime.GOMAXPROCS(0)),
	}
	defer j.wg.Wait()
	defer cancel()
	for _, a := range o.Addresses {
		j.wg.Go(func() { j.connect(a) })
	}
	if err := j.choose(); err != nil {
		return nil, err
	}
	if err := j.fetch(); err != nil {
		return nil, err
	}
	// Nobody may write any more: a copy of a chunk that was cancelled late would leave its mark
	// beside a state that is finished.
	cancel()
	j.wg.Wait()
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

// ban ends the connection to a peer that has lied, for good.
func (j *joiner) ban(id scheduler.PeerID, why string) {
	p := j.peers[id]
	j.say("peer %s is banned: %s", id, why)
	if !j.banned[transport.ID(id)] {
		j.banned[transport.ID(id)] = true
		j.result.Banned++
	}
	if p != nil {
		_ = p.conn.Close() // it is to end
	}
}

// choose finds a state that can be proved, or that of the unfinished join, and opens the installer.
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
			return fmt.Errorf("%w: it is of height %d, not %d", nodedb.ErrOtherJoin, resumed.Height, height)
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
	tried := map[int64]bool{} // heights whose app hash is not known, until the next attempt
	again := time.NewTicker(retryEvery)
	defer again.Stop()
	for over := false; j.ctx.Err() == nil; {
		// The mail comes before each height: what somebody offers meanwhile may be better than what
		// is left of the others. Once the time is over, what is there is tried, but no more comes.
		if !over {
			over = !time.Now().Before(deadline)
			for _, e := range j.mail.Take() {
				e.handle(j)
			}
		}
		if h, ok := j.next(height, tried, over); ok {
			from := time.Now()
			hash, err := j.appHash(h)
			if err == nil && len(hash) != len(iavlsync.Hash{}) {
				err = fmt.Errorf("an app hash of %d bytes", len(hash))
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
		case <-j.mail.Wake():
		}
	}
	return j.ctx.Err()
}

// late returns how much time a peer has wasted, in units.
func (j *joiner) late(id scheduler.PeerID) int { return int(j.wasted[transport.ID(id)] / lateAfter) }

// next returns the height to try: the newest of the peers that are the least late, so that those
// that dawdle cannot keep the others' heights from being tried. If height is not 0, it is that one
// or none.
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

// appHash asks for an app hash, but not for ever.
func (j *joiner) appHash(height int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(j.ctx, partTimeout)
	defer cancel()
	return j.o.Headers.AppHash(ctx, height)
}

// manifest fetches and proves the manifest of a height from one peer after another, those first
// that are the least late; nil: none had it, or one was late, and others may be asked next.
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
			j.ban(id, err.Error())
			continue
		}
		j.say("peer %s has no manifest of height %d: %v", id, height, err)
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

// isLie reports whether an error proves that the peer lied.
func isLie(err error) bool {
	return errors.Is(err, iavlsync.ErrInvalidManifest) || errors.Is(err, iavlsync.ErrInvalidChunk) ||
		errors.Is(err, iavlsync.ErrInvalidMessage) || errors.Is(err, transport.ErrTooLong) || errors.Is(err, transport.ErrProtocol)
}

// begin opens the installer.
func (j *joiner) begin(m *iavlsync.Manifest, appHash iavlsync.Hash) error {
	s := &state{m: m}
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
