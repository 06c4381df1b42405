package storage

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failure is the first thing that went wrong for good: after it nothing is written any more.
type failure struct {
	once sync.Once
	err  error
	done chan struct{} // closed when it failed
	dead atomic.Bool   // Pebble ended in Fatalf, and may hold its locks for ever
}

func (f *failure) fail(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

// get returns nil if nothing went wrong.
func (f *failure) get() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

// gatePause is between two attempts of Pebble, which makes none itself.
const gatePause = 100 * time.Millisecond

var errGate = errors.New("the zone has failed, it writes nothing any more")

// gate is a file system on which no table can be begun after a failure: Pebble repeats a flush that failed until it succeeds. So
// the disk stays at the safe height. And Pebble removes the names under which tables were handed to it: a restore's stay.
type gate struct {
	vfs.FS
	failure *failure
	closing chan struct{}
	dir     string      // of the zone
	keep    atomic.Bool // the database must not remove the tables of a restore, to which it has made links
}

func (g *gate) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") && g.failure.get() != nil {
		select {
		case <-g.closing:
		case <-time.After(gatePause):
		}
		return nil, errGate
	}
	return g.FS.Create(name, category)
}

func (g *gate) Remove(name string) error {
	if dir := g.PathDir(name); g.keep.Load() && g.PathBase(dir) == restoreName && g.PathDir(dir) == g.dir {
		return nil
	}
	return g.FS.Remove(name)
}

func (g *gate) Unwrap() vfs.FS { return g.FS }

// users counts who uses the database, so that Close waits for them.
type users struct {
	mu struct {
		sync.Mutex
		n      int
		closed bool
		idle   chan struct{}
	}
}

// enter returns false once close was called. Else the caller must leave.
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

// close lets nobody in any more, and waits until all have left.
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
