package statesync

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
)

// Format is the ABCI snapshot format that this package speaks.
const Format = 1

// Options of a Manager.
type Options struct {
	Logger log.Logger // default: silent
	// Target is where a joining node's state goes; nil: offers are answered with ABORT.
	Target Target
	// Interval is the snapshot interval in blocks: snapshots are taken at its multiples and nowhere
	// else. 0: not known yet, see SetInterval.
	Interval int64
	Keep     int      // number of snapshots that are offered, the newest; 0: none
	Workers  int      // chunks verified at a time; default: one per CPU
	Metrics  *Metrics // nil: none
	// OpenPin opens a stored snapshot, see AddStored; nil: none is stored.
	OpenPin func(height int64) (Pin, error)
	// BlocksFrom is the first block that CometBFT has at the start; 0: not known, see AddStored.
	BlocksFrom int64
	// Hold is how long a snapshot that is no longer among the newest is kept after it was last
	// offered, or a chunk of it was asked for: a joiner that chose it must be able to finish.
	// Default: 3 minutes, since CometBFT waits 2 minutes for a chunk.
	Hold time.Duration

	progressEvery time.Duration    // between two log lines of a sync; default: 5 s
	now           func() time.Time // default: time.Now
	beforeVerify  func()           // lets tests hold the pool back
}

// maxHeld bounds the snapshots that stay because they were asked for, and longestHold how long each
// may: anybody can ask.
const (
	maxHeld     = 32
	longestHold = time.Hour
)

// Manager answers the snapshot calls of ABCI. All methods may be called concurrently; those that
// serve never wait for those that receive.
type Manager struct {
	opts Options
	log  log.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	serving struct {
		sync.Mutex
		interval int64
		told     int64 // height that Committed was told of last
		// ascending heights: the newest opts.Keep, and before them those that are held; each holds
		// a reference
		pins     []*pin
		closed   bool // pins have no source any more; they only say what is to stay on disk
		tooLarge bool // said once that snapshots are too large
	}
	receiving struct {
		sync.Mutex          // held during a whole call: CometBFT makes one at a time
		session    *session // the sync under way, or nil
	}
}

// NewManager returns a Manager. Close stops what it started.
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
		opts.Hold = 3 * time.Minute
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	m := &Manager{opts: opts, log: opts.Logger}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.serving.interval = opts.Interval
	return m
}

// SetInterval makes the snapshot interval known, where it was not when the Manager was made: the
// chain's genesis or a restored state says it.
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

// Close ends a sync that is under way, which leaves the target empty, and lets go of the pins: no
// snapshot is served any more. Which ones are to stay on disk, and from where on blocks are needed
// for them, is still answered, also for blocks that come yet.
func (m *Manager) Close() error {
	m.cancel() // an answer that waits for the pool waits no longer
	m.serving.Lock()
	if !m.serving.closed {
		release(m.serving.pins)
		for i, p := range m.serving.pins { // not changed: somebody may still serve from it
			m.serving.pins[i] = &pin{height: p.height, noBlocks: p.noBlocks}
		}
	}
	m.serving.closed = true
	m.serving.Unlock()
	m.receiving.Lock()
	defer m.receiving.Unlock()
	return m.endSession()
}

// endSession ends the sync under way, if any. The caller holds m.receiving.
func (m *Manager) endSession() error {
	s := m.receiving.session
	m.receiving.session = nil
	if s == nil {
		return nil
	}
	s.stop()
	return s.restorer.Abort()
}
