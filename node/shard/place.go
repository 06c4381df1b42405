package shard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/node/config"
)

// place is a range of this node, and its folder.
type place struct {
	number int // in the file of ranges
	shard  dsm.Shard
	keys   avlstar.KeyRange
	dir    string
	// replica is nil while the range has no state here. It is set by New and the follower; others
	// hold Node.mu.
	replica *storagenode.Replica

	// taken is set while the range is taken over, by a goroutine that has the fields below.
	taken atomic.Bool
	// For the follower alone, or who takes the range over: since when the replica has been at a
	// height.
	height  int64
	since   time.Time
	tryFrom time.Time // the next attempt to take the range over
	warned  time.Time
	left    *avlstar.Partial // what an attempt to take the range over has fetched; nil: nothing
}

// leave keeps a tree for the next attempt to take the range over; nil: none. It takes the caller's
// reference.
func (p *place) leave(partial *avlstar.Partial) {
	if p.left != nil {
		p.left.Release()
	}
	p.left = partial
}

func (p *place) String() string { return p.shard.Range.String() }

// placesOf returns the ranges of a node.
func placesOf(ranges *dsm.Ranges, node dsm.Node, dir string) (places []*place) {
	for _, i := range ranges.Of(node) {
		shard := ranges.Shard(i)
		places = append(places, &place{
			number: i, shard: shard, keys: avlstar.KeyRange{First: shard.Range.First, After: shard.Range.After},
			dir: filepath.Join(dir, fmt.Sprintf("%03d", i)),
		})
	}
	return places
}

// Names beside a range's folder while another state takes its place.
//
//	fetched:   NNN-next ── complete ──► NNN renamed NNN-old ──► NNN-next renamed NNN ──► NNN-old removed
const (
	nextSuffix = "-next"
	oldSuffix  = "-old"
)

// replicaOptions are those of a range whose files are in dir, which is made.
func (n *Node) replicaOptions(p *place, dir string) (o storagenode.Options, err error) {
	if err := makeDirs(vfs.Default, dir); err != nil {
		return o, err
	}
	label := fmt.Appendf(nil, "%s, keys %x to %x", n.genesis.ChainID, p.keys.First, p.keys.After)
	files, err := storagenode.OpenFiles(vfs.Default, filepath.Join(dir, "states"), label)
	if err != nil {
		return o, err
	}
	c := n.config.App.StorageNode
	return storagenode.Options{
		Range: p.keys, Disk: files, Headers: &n.headers,
		Log:          storagenode.LogOptions{FS: vfs.Default, Dir: filepath.Join(dir, "log"), Label: label},
		ServeHeights: c.ServeHeights, ServeBytes: uint64(c.ServeBytes), Interval: c.Interval, Keep: c.Keep,
		Verdict: n.verdict,
	}, nil
}

// openPlace opens a range, if it has a state, and finishes a change of its folder that was
// interrupted.
func (n *Node) openPlace(p *place) error {
	if err := settle(p.dir); err != nil {
		return err
	}
	o, err := n.replicaOptions(p, p.dir)
	if err != nil {
		return err
	}
	began := time.Now()
	replica, err := storagenode.Open(o)
	switch {
	case errors.Is(err, storagenode.ErrNoState):
		return nil
	case errors.Is(err, storagenode.ErrOther):
		return config.Invalid(fmt.Errorf("range %s in %q: %w: if the ranges were divided anew, move the folder away, and the range is fetched", p, p.dir, err))
	case err != nil:
		return fmt.Errorf("range %s in %q: %w", p, p.dir, err)
	}
	n.mu.Lock()
	p.replica = replica
	n.mu.Unlock()
	recovered, claim := replica.Recovered(), replica.Claim()
	for _, why := range recovered.Damaged {
		n.log.Error("A stored state was damaged and is dropped; an older one and the log have taken its place", "range", p.String(), "err", why)
	}
	if recovered.Torn.Bytes > 0 {
		n.log.Info("Cut off what was being written when the process ended", "range", p.String(), "file", recovered.Torn.File, "bytes", recovered.Torn.Bytes)
	}
	n.log.Info("Opened a range", "range", p.String(), "height", claim.Newest, "oldest", claim.Oldest, "stored", recovered.State,
		"replayed", recovered.Replayed, "seconds", time.Since(began).Seconds())
	return nil
}

// settle brings the folders of a range into order after a kill.
func settle(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		err := os.Rename(dir+nextSuffix, dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err == nil {
			if err := syncDir(vfs.Default, filepath.Dir(dir)); err != nil {
				return err
			}
		}
	}
	return errors.Join(os.RemoveAll(dir+nextSuffix), os.RemoveAll(dir+oldSuffix))
}

// replace puts the folder of a range's new state into the place of the old one.
func replace(dir string) error {
	if err := os.Rename(dir, dir+oldSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(dir+nextSuffix, dir); err != nil {
		return err
	}
	if err := syncDir(vfs.Default, filepath.Dir(dir)); err != nil {
		return err
	}
	return os.RemoveAll(dir + oldSuffix)
}

// makeDirs makes a folder and those above it, all of whose names are durable then.
func makeDirs(fsys vfs.FS, path string) error {
	if _, err := fsys.Stat(path); err == nil {
		return nil
	}
	parent := fsys.PathDir(path)
	if parent != path {
		if err := makeDirs(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return syncDir(fsys, parent)
}

func syncDir(fsys vfs.FS, path string) error {
	dir, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
