package statesync

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
)

// Format is the ABCI snapshot format of this package.
const Format = 1

// Options configure a Manager.
type Options struct {
	Logger log.Logger // default: silent
	// Target receives the state of a joining node; nil: offers are answered with ABORT.
	Target Target
	// Interval is the snapshot interval in blocks: snapshots are taken at its multiples only. 0:
	// not yet known, see SetInterval.
	Interval int64
	Keep     int      // number of snapshots to offer, the newest ones; 0: none
	Workers  int      // chunks verified in parallel; default: one per CPU
	Metrics  *Metrics // nil: none
	// OpenPin opens a stored snapshot, see AddStored; nil: none is stored.
	OpenPin func(height int64) (Pin, error)
	// BlocksFrom is the first block that CometBFT has at startup; 0: unknown, see AddStored.
	BlocksFrom int64
	// Hold is how long an older snapshot is kept after it was last offered or one of its chunks was
	// requested: a joiner that chose it must be able to finish. Default: DefaultHold.
	Hold time.Duration
	// MaxBytes limits what only snapshots keep: so much memory, and so much disk space. 0: as much
	// as the state has, at least MinKept of each. The oldest snapshots go first, even if they are
	// among the newest Keep or a peer is fetching them; the newest one always stays.
	MaxBytes int64
	// OnDisk returns what stored snapshots and parts keep on disk, by height; nil: nothing. It must
	// return at once.
	OnDisk func() map[int64]uint64

	progressEvery time.Duration    // between two log lines of a sync; default: 5 s
	now           func() time.Time // default: time.Now
	beforeVerify  func()           // lets tests delay the pool
}

// DefaultHold is the default of Options.Hold: CometBFT waits 2 minutes for a chunk.
const DefaultHold = 3 * time.Minute

// maxHeld limits the snapshots that are kept because of requests, and longestHold how long each of
// them is kept: any peer can request them.
const (
	maxHeld     = 32
	longestHold = time.Hour
	// MinKept is the least default of Options.MaxBytes.
	MinKept = 256 << 20
	// MaxManifestBytes limits the memory of the manifests of all snapshots, except the newest one.
	MaxManifestBytes = 256 << 20
)

// Manager answers ABCI's snapshot calls. All methods may be called concurrently. Methods that serve
// never wait for methods that restore.
type Manager struct {
	opts Options
	log  log.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	serving struct {
		sync.Mutex
		interval int64
		told     int64  // last height passed to Committed
		state    uint64 // size of the state then
		// ascending heights: the held ones, followed by the newest opts.Keep; each holds a
		// reference
		pins     []*pin
		closed   bool // pins have no source any more; their heights still decide what stays on disk
		tooLarge bool // sayTooLarge has logged
	}
	receiving struct {
		sync.Mutex          // held during a whole call: CometBFT makes one call at a time
		session    *session // the sync in progress, or nil
	}
}

// NewManager returns a Manager. The caller must call Close.
func NewManager(opts Options) *Manager {
	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}
	if opts.Workers <= 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	if opts.progressEvery <= 0 {
		opts.progressEvery = 5 * time.Second
	}
	if opts.Hold <= 0 {
		opts.Hold = DefaultHold
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	m := &Manager{opts: opts, log: opts.Logger}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.serving.interval = opts.Interval
	return m
}

// SetInterval sets the snapshot interval if it was unknown at NewManager: it comes from the chain's
// genesis or from a restored state.
func (m *Manager) SetInterval(n int64) {
	m.serving.Lock()
	defer m.serving.Unlock()
	m.serving.interval = n
}

func (m *Manager) interval() int64 {
	m.serving.Lock()
	defer m.serving.Unlock()
	return m.serving.interval
}

// Close aborts a sync in progress, which leaves the target empty, and releases the pins: snapshots
// are no longer served. Held and OldestServed continue to work, and Committed continues to update
// them.
func (m *Manager) Close() error {
	m.cancel() // wakes an answer that waits for the pool
	m.serving.Lock()
	if !m.serving.closed {
		release(m.serving.pins)
		for i, p := range m.serving.pins { // replaced, not modified: pins may still be in use
			m.serving.pins[i] = &pin{height: p.height, noBlocks: p.noBlocks}
		}
	}
	m.serving.closed = true
	m.serving.Unlock()
	m.receiving.Lock()
	defer m.receiving.Unlock()
	return m.endSession()
}

// endSession ends the sync in progress, if any. The caller holds m.receiving.
func (m *Manager) endSession() error {
	s := m.receiving.session
	m.receiving.session = nil
	if s == nil {
		return nil
	}
	s.stop()
	return s.restorer.Abort()
}
