package storage

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failure is the first unrecoverable error. Nothing is written after it.
type failure struct {
	once sync.Once
	err  error         // set once, before done is closed
	done chan struct{} // closed by fail, after err is set
	dead atomic.Bool   // Pebble called Fatalf, and may hold its locks forever
}

func (f *failure) fail(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

// get returns the error; nil if there is none.
func (f *failure) get() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

// guardPause is the pause before a refusal, because Pebble retries without a pause.
const guardPause = 100 * time.Millisecond

var errGuard = errors.New("the zone has failed and accepts no writes")

// guard is the file system of the zone. After a failure it refuses to create tables. Otherwise
// Pebble would repeat a failed flush until it succeeds, but the disk must stay at the durable
// height.
type guard struct {
	vfs.FS
	failure *failure
	closing chan struct{}
}

func (g *guard) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") && g.failure.get() != nil {
		select {
		case <-g.closing:
		case <-time.After(guardPause):
		}
		return nil, errGuard
	}
	return g.FS.Create(name, category)
}

func (g *guard) Unwrap() vfs.FS { return g.FS }

// users counts the calls that use the database, so that Close can wait for them.
type users struct {
	mu struct {
		sync.Mutex
		n      int
		closed bool
		idle   chan struct{}
	}
}

// enter returns false after close was called. Otherwise the caller must call leave.
func (u *users) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.closed {
		return false
	}
	u.mu.n++
	return true
}

func (u *users) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.n--; u.mu.n == 0 && u.mu.closed {
		close(u.mu.idle)
	}
}

// close rejects further calls and waits until all have left. It is called once.
func (u *users) close() {
	u.mu.Lock()
	u.mu.closed, u.mu.idle = true, make(chan struct{})
	if u.mu.n == 0 {
		close(u.mu.idle)
	}
	idle := u.mu.idle
	u.mu.Unlock()
	<-idle
}
