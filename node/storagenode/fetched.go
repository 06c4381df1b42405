package storagenode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/rangestore"
)

// fetchedPrefix begins the names of folders with what was fetched of a range without a complete
// state. For the folder F of a range:
//
//	fetching-F ── complete ──► fetching-F renamed F-next ──► as in place.go
const fetchedPrefix = "fetching-"

// fetched is the folder with what takeovers of a range have fetched so far. It stays open between
// attempts, and a restarted node continues with it.
type fetched struct {
	*rangestore.Fill
	store *rangestore.Store
}

func (p *place) fetchedDir() string {
	return filepath.Join(filepath.Dir(p.dir), fetchedPrefix+filepath.Base(p.dir))
}

// openFetched opens p.fetched. Errors of the disk are finalErrors.
func (n *Process) openFetched(ctx context.Context, p *place) error {
	if p.fetched != nil {
		return nil
	}
	dir := p.fetchedDir()
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
	return errors.Join(p.closeFetched(), os.RemoveAll(p.fetchedDir()))
}

// install replaces a range's state by the one that was fetched, which is complete at a height.
func (n *Process) install(p *place, height int64, c avlstar.Commitment, boundary []byte) error {
	err := p.fetched.Commit(height, c, boundary)
	switch {
	case errors.Is(err, avlstar.ErrOtherState):
		return errors.Join(err, p.dropFetched())
	case isBad(err): // the next attempt finds and removes the damaged pieces
		return errors.Join(err, p.closeFetched())
	}
	next := p.dir + nextSuffix
	if err = errors.Join(err, p.closeFetched(), os.RemoveAll(next)); err != nil {
		return finalError{err}
	}
	if err := durable.Rename(p.fetchedDir(), next); err != nil {
		return finalError{err}
	}
	return n.useNext(p, height)
}

// removeOtherFetched removes what was fetched of ranges that the map no longer has.
func (n *Process) removeOtherFetched() error {
	dir := rangesDir(n.config)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasPrefix(e.Name(), fetchedPrefix) || slices.ContainsFunc(n.all(), func(p *place) bool { return p.fetchedDir() == path }) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
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
