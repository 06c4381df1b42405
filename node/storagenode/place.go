package storagenode

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
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/node/config"
)

// place is a range of this node and its folder.
type place struct {
	number int // number in the storage nodes file
	shard  dsm.Placement
	keys   avlstar.KeyRange
	dir    string
	// replica is nil while the range has no local state. New and the follower set it, under
	// Process.mu; other goroutines read it under Process.mu.
	replica *server.Replica
	broken  error // why replica must be put aside; nil: it need not. Guarded by Process.mu

	// taken is set while a goroutine takes the range over; it owns the fields below.
	taken atomic.Bool
	// Owned by the follower, or by the takeover: since when the replica has been at a height.
	height  int64
	since   time.Time
	tryFrom time.Time // next attempt of a takeover
	warned  time.Time
	left    *avlstar.Partial // data fetched by an earlier takeover attempt; nil: none
}

// leave keeps a tree for the next takeover attempt; nil: none. It takes over the caller's
// reference.
func (p *place) leave(partial *avlstar.Partial) {
	if p.left != nil {
		p.left.Release()
	}
	p.left = partial
}

func (p *place) String() string { return p.shard.Range.String() }

// placesOf returns the ranges of a node.
func placesOf(ranges *dsm.Ranges, node dsm.NodeID, dir string) (places []*place) {
	for _, i := range ranges.Of(node) {
		shard := ranges.Shard(i)
		places = append(places, &place{
			number: i, shard: shard, keys: shard.Range,
			dir: filepath.Join(dir, fmt.Sprintf("%03d", i)),
		})
	}
	return places
}

// Names next to a range's folder while its state is replaced.
//
//	fetched:   NNN-next ── complete ──► NNN renamed NNN-old ──► NNN-next renamed NNN ──► NNN-old removed
//	put aside: an older NNN-damaged removed ──► NNN renamed NNN-damaged
const (
	nextSuffix    = "-next"
	oldSuffix     = "-old"
	damagedSuffix = "-damaged"
)

// isBad reports whether an error says that the data of a range cannot be used. Errors of the disk,
// such as a full one, do not: the data may be whole.
func isBad(err error) bool {
	return errors.Is(err, server.ErrDamaged) || errors.Is(err, server.ErrGap) || errors.Is(err, server.ErrOther) ||
		errors.As(err, new(*avlstar.MissingNodeError))
}

// putAside renames the folder of a range without a replica, for the reason why. The range is then
// fetched again. The folder stays, because it may have the last copy of the range: an older one is
// removed only if the range was damaged again, since its newer data came from other nodes.
func (n *Process) putAside(p *place, why error) error {
	aside := p.dir + damagedSuffix
	if p.damaged() != "" && errors.Is(why, server.ErrOther) {
		return config.Invalid(fmt.Errorf("range %s in %q: %w: %q has the data of an earlier range: move it away", p, p.dir, why, aside))
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := durable.Rename(p.dir, aside); err != nil {
		return err
	}
	n.log.Error("The data of a range cannot be used: putting its folder aside, and fetching the range from another node", "range", p.String(),
		"folder", aside, "err", why)
	return nil
}

// damaged returns the folder of unusable data that were put aside; "": none.
func (p *place) damaged() string {
	aside := p.dir + damagedSuffix
	if _, err := os.Lstat(aside); err != nil {
		return ""
	}
	return aside
}

// replicaOptions returns the options of a range whose files are in dir, which it creates.
func (n *Process) replicaOptions(p *place, dir string) (o server.Options, err error) {
	if err := onvfs.MakeDir(vfs.Default, dir); err != nil {
		return o, err
	}
	label := fmt.Appendf(nil, "%s, keys %x to %x", n.genesis.ChainID, p.keys.First, p.keys.After)
	files, err := server.OpenFiles(vfs.Default, filepath.Join(dir, "states"), label)
	if err != nil {
		return o, err
	}
	c := n.config.App.StorageNode
	return server.Options{
		Range: p.keys, Disk: files, Headers: &n.headers,
		Log:          server.LogOptions{FS: vfs.Default, Dir: filepath.Join(dir, "log"), Label: label},
		ServeHeights: c.ServeHeights, ServeBytes: uint64(c.ServeBytes), Interval: c.Interval, Keep: c.Keep,
		Verdict: n.verdict,
	}, nil
}

// openPlace opens a range, if it has a state, after completing an interrupted replacement of its
// folder. A range that cannot be used is put aside.
func (n *Process) openPlace(p *place) error {
	if err := settle(p.dir); err != nil {
		return err
	}
	err := n.openReplica(p)
	switch {
	case errors.Is(err, server.ErrNoState):
		return nil
	case isBad(err):
		return n.putAside(p, err)
	}
	return err
}

// openReplica opens a range. The error wraps server.ErrNoState if it has no state.
func (n *Process) openReplica(p *place) error {
	o, err := n.replicaOptions(p, p.dir)
	if err != nil {
		return err
	}
	began := time.Now()
	replica, err := server.Open(o)
	if err != nil {
		return fmt.Errorf("range %s in %q: %w", p, p.dir, errors.Join(err, o.Disk.Close()))
	}
	n.mu.Lock()
	p.replica = replica
	n.mu.Unlock()
	recovered, claim := replica.Recovered(), replica.Claim()
	for _, why := range recovered.Damaged {
		n.log.Error("Dropped a damaged stored state: recovered from an older one and the log", "range", p.String(), "err", why)
	}
	if recovered.Torn.Bytes > 0 {
		n.log.Info("Truncated an incomplete write of the previous process", "range", p.String(), "file", recovered.Torn.File, "bytes", recovered.Torn.Bytes)
	}
	n.log.Info("Opened a range", "range", p.String(), "height", claim.Newest, "oldest", claim.Oldest, "stored", recovered.State,
		"replayed", recovered.Replayed, "seconds", time.Since(began).Seconds())
	return nil
}

// settle completes an interrupted replacement of a range's folder after a kill.
func settle(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		if err := durable.Rename(dir+nextSuffix, dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return errors.Join(os.RemoveAll(dir+nextSuffix), os.RemoveAll(dir+oldSuffix))
}

// replace replaces the folder of a range by that of its new state.
func replace(dir string) error {
	if err := os.Rename(dir, dir+oldSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := durable.Rename(dir+nextSuffix, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir + oldSuffix)
}
