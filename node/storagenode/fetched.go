package storagenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/rangestore"
)

// fetchedPrefix begins the names of folders with what was fetched of a range without a complete
// state. For the folder F of a range:
//
//	fetching-F ── complete ──► fetching-F renamed F-next ──► as in place.go
//
// A start continues at any of these steps.
const fetchedPrefix = "fetching-"

// fetched is the folder with what takeovers of a range have fetched so far. It stays open between
// attempts, and a restarted node continues with it.
type fetched struct {
	*rangestore.Fill
	store *rangestore.Store
}

// fetchedDir returns the folder with what was fetched of the range with a folder.
func fetchedDir(dir string) string {
	return filepath.Join(filepath.Dir(dir), fetchedPrefix+filepath.Base(dir))
}

// openFetched opens p.fetched. Errors of the disk are finalErrors.
func (n *Process) openFetched(ctx context.Context, p *place) error {
	if p.fetched != nil {
		return nil
	}
	dir := fetchedDir(p.dir)
	store, err := n.openStore(p, dir)
	if isBad(err) || errors.Is(err, storage.ErrNewerFormat) {
		if err = os.RemoveAll(dir); err == nil {
			store, err = n.openStore(p, dir)
		}
	}
	if err != nil {
		return finalError{err}
	}
	fill, err := store.Fill(ctx)
	if err != nil {
		err = errors.Join(err, store.Close())
		if ctx.Err() == nil {
			err = finalError{err}
		}
		return err
	}
	p.fetched = &fetched{fill, store}
	return nil
}

// closeFetched closes p.fetched; the next takeover continues with it.
func (p *place) closeFetched() error {
	f := p.fetched
	p.fetched = nil
	if f == nil {
		return nil
	}
	return f.store.Close()
}

// dropFetched removes what takeovers have fetched.
func (p *place) dropFetched() error {
	return errors.Join(p.closeFetched(), removeFolder(fetchedDir(p.dir)))
}

// install replaces a range's state by the one that was fetched, which is complete at a height. Its
// pieces are read and verified before an old state is given up. Without one, they are read once,
// when the state is opened: if they are damaged, the folder is put aside, also after a kill.
func (n *Process) install(ctx context.Context, p *place, height int64, c avlstar.Commitment, boundary []byte) error {
	if p.replica != nil {
		if newest := p.replica.Claim().Newest; newest >= height {
			return errors.Join(fmt.Errorf("the range follows the chain again, and is at height %d", newest), p.dropFetched())
		}
	}
	commit := p.fetched.Commit
	if p.replica == nil {
		commit = p.fetched.CommitUnread
	}
	err := commit(ctx, height, c, boundary)
	switch {
	case err != nil && ctx.Err() != nil: // the next start continues with it
		return errors.Join(err, p.closeFetched())
	case errors.Is(err, avlstar.ErrOtherState):
		return errors.Join(err, p.dropFetched())
	case isBad(err): // the next attempt finds and removes the damaged pieces
		return errors.Join(err, p.closeFetched())
	}
	if err = errors.Join(err, p.closeFetched()); err != nil {
		return finalError{err}
	}
	if err := nextIs(p.dir, fetchedDir(p.dir)); err != nil {
		return finalError{err}
	}
	return n.useNext(p, height)
}

// filling is the progress of a takeover. Its methods may be called concurrently.
type filling struct {
	began    time.Time
	height   int64
	total    uint64        // bytes of the leaf records; set before other goroutines use it
	stored   atomic.Uint64 // part of total that is on disk
	reused   atomic.Uint64 // part of stored that was not fetched by this attempt
	received atomic.Uint64 // bytes of responses
}

// status returns the progress for the status page.
func (f *filling) status() *statuspage.Filling {
	s := &statuspage.Filling{Height: f.height, Bytes: f.stored.Load(), Total: f.total, Reused: f.reused.Load()}
	if since := time.Since(f.began).Seconds(); since > 0 && s.Bytes > s.Reused {
		rate := float64(s.Bytes-s.Reused) / since
		s.BytesPerSecond = uint64(rate)
		s.SecondsLeft = float64(f.total-min(s.Bytes, f.total)) / rate
	}
	return s
}

// keyvals returns log fields.
func (f *filling) keyvals() []any {
	s := f.status()
	return []any{
		"height", s.Height, "bytes", s.Bytes, "of", s.Total, "reused", s.Reused, "received", f.received.Load(),
		"rate", humanize.IBytes(s.BytesPerSecond) + "/s", "seconds_left", int64(s.SecondsLeft),
	}
}
