package storagenode

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/internal/durable/onvfs"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/rangestore"
)

// place is a range of this node and its folder.
type place struct {
	keys avlstar.KeyRange
	dir  string
	role role // guarded by Process.mu
	// retiredAt is when role became retired; used by the follower.
	retiredAt time.Time
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
	fetched *fetched // open between attempts of a takeover; nil: not open
	// partial is the number of attempts since the last complete one that ended with parts because a
	// source had failed: see takeover.anyFailed.
	partial int

	filling atomic.Pointer[filling] // progress of the takeover; nil: none
}

func (p *place) String() string { return p.keys.String() }

// placesOf returns the ranges of a node.
func placesOf(nodes *config.StorageNodes, node dsm.NodeID, dir string) (places []*place) {
	for s, isNext := range nodes.Ranges.All(nodes.Next) {
		if !slices.Contains(s.Replicas, node) {
			continue
		}
		p := &place{keys: s.Range, role: current, dir: filepath.Join(dir, folderOf(s.Range))}
		if isNext {
			p.role = next
		}
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b *place) int { return dsm.CompareRanges(a.keys, b.keys) })
	return places
}

// maxFolderKey is the number of bytes of a key in the name of a folder: file systems limit names to
// 255 bytes.
const maxFolderKey = 64

// folderOf returns the name of a range's folder, which contains its first key, or the beginning of
// it, and a hash of the range: an old and a new range can begin with the same key.
func folderOf(r avlstar.KeyRange) string {
	id := server.RangeIDOf(r)
	return fmt.Sprintf("from-%x-%x", r.First[:min(len(r.First), maxFolderKey)], id[:8])
}

// earlierFolderOf returns the name that earlier versions gave to the folder of a range.
func earlierFolderOf(r avlstar.KeyRange) string {
	if len(r.First) <= maxFolderKey {
		return fmt.Sprintf("from-%x", r.First)
	}
	sum := sha256.Sum256(r.First)
	return fmt.Sprintf("from-%x-%x", r.First[:maxFolderKey], sum[:8])
}

// Names next to a range's folder F while its state is replaced.
//
//	fetched:   F-next ── complete ──► F renamed F-old ──► F-next renamed F ──► F-old removed
//	put aside: an older F-damaged removed ──► F renamed F-damaged
//	removed:   F renamed F-gone ──► F-gone removed
const (
	nextSuffix    = "-next"
	oldSuffix     = "-old"
	damagedSuffix = "-damaged"
	goneSuffix    = "-gone"
)

// removeAll is replaced by tests.
var removeAll = os.RemoveAll

// removeFolder removes a folder, if there is one. A part of it that a kill leaves has another name,
// so that it is not taken for damaged data; the next start removes it.
func removeFolder(dir string) error {
	if err := removeAll(dir + goneSuffix); err != nil {
		return err
	}
	if err := durable.Rename(dir, dir+goneSuffix); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return removeAll(dir + goneSuffix)
}

// isBad reports whether an error says that the data of a range cannot be used. Errors of the disk,
// such as a full one, do not: the data may be whole.
func isBad(err error) bool {
	return errors.Is(err, server.ErrDamaged) || errors.Is(err, server.ErrGap) || errors.Is(err, storage.ErrCorrupt) ||
		errors.Is(err, rangestore.ErrOther) || errors.As(err, new(*avlstar.MissingNodeError))
}

// putAside renames the folder of a range without a replica, for the reason why. The range is then
// fetched again. The folder stays, because it may have the last copy of the range: an older one is
// removed only if the range was damaged again, since its newer data came from other nodes.
func (n *Process) putAside(p *place, why error) error {
	aside := p.dir + damagedSuffix
	if p.damaged() != "" && errors.Is(why, rangestore.ErrOther) {
		return config.Invalid(fmt.Errorf("range %s in %q: %w: %q has the data of an earlier range: move it away", p, p.dir, why, aside))
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := n.keepUpdates(p); err != nil {
		return err
	}
	if err := durable.Rename(p.dir, aside); err != nil {
		return err
	}
	if err := n.redo.Forget(server.RangeIDOf(p.keys)); err != nil {
		return err
	}
	n.log.Error("The data of a range cannot be used: putting its folder aside, and fetching the range from another node", "range", p.String(),
		"folder", aside, "err", why)
	return nil
}

// keepUpdates copies the updates of a range that is put aside from the log of all ranges into a log
// in its folder: they lead from its state on disk to the last height that it acknowledged.
func (n *Process) keepUpdates(p *place) error {
	id := server.RangeIDOf(p.keys)
	oldest, _, logged := n.redo.Heights(id)
	if !logged {
		return nil
	}
	dir := filepath.Join(p.dir, "log")
	if err := os.RemoveAll(dir); err != nil { // of an interrupted attempt
		return err
	}
	kept, err := server.OpenRedoLog(server.RedoOptions{FS: vfs.Default, Dir: dir, Label: []byte(n.genesis.ChainID)})
	if err != nil {
		return err
	}
	for e, err := range n.redo.Since(id, oldest-1) {
		if errors.Is(err, server.ErrDamaged) {
			n.log.Error("Updates of a range that is put aside cannot be read", "range", p.String(), "err", err)
			break
		}
		if err == nil {
			err = kept.Append(id, e.Height, e.Update)
		}
		if err != nil {
			return errors.Join(err, kept.Close())
		}
	}
	return kept.Close()
}

// damaged returns the folder of unusable data that were put aside; "": none.
func (p *place) damaged() string {
	aside := p.dir + damagedSuffix
	if _, err := os.Lstat(aside); err != nil {
		return ""
	}
	return aside
}

// openStore opens the store of a range in a folder, which it creates.
func (n *Process) openStore(p *place, dir string) (*rangestore.Store, error) {
	if err := onvfs.MakeDir(vfs.Default, dir); err != nil {
		return nil, err
	}
	return rangestore.Open(rangestore.Options{
		Dir: filepath.Join(dir, "state"), FS: vfs.Default, Keys: p.keys, ChainID: n.genesis.ChainID, Memory: n.memory,
		Logger: n.log.With("module", "state", "range", p.String()), Failed: n.storeFailed, Fatal: disk.EndProcess,
	})
}

// storeFailed ends the node if a disk fails. A damaged range is put aside when it is next used.
func (n *Process) storeFailed(err error) {
	if !isBad(err) {
		n.fail(err)
	}
}

// replicaOptions returns the options of a range. The settings of the node are divided by its
// ranges.
func (n *Process) replicaOptions(p *place, store *rangestore.Store) server.Options {
	c, ranges := n.config.App, max(1, len(n.all()))
	return server.Options{
		Range: p.keys, Store: store, Log: n.redo, Headers: &n.headers, Verdict: n.verdict, Known: n.isNamed,
		Named: n.namedUpdates, Strangers: n.strangers,
		ServeHeights: c.StorageNode.ServeHeights, ServeBytes: max(1, uint64(c.StorageNode.ServeBytes)/uint64(ranges)),
		ScrubRate: scrubRate(c.Disk.ScrubRate, ranges), SnapshotInterval: n.chunks.interval, Loading: n.loading(p),
	}
}

// scrubRate returns the part of a rate for each range; 0 stays 0, no scrub.
func scrubRate(all int64, ranges int) int64 {
	if all == 0 {
		return 0
	}
	return max(1, all/int64(ranges))
}

// loading returns a function that logs the progress of a start.
func (n *Process) loading(p *place) func(leaves uint64) {
	logged := time.Now()
	return func(leaves uint64) {
		if time.Since(logged) >= progressEvery {
			logged = time.Now()
			n.log.Info("Reading a range", "range", p.String(), "leaves", leaves)
		}
	}
}

// openRedo opens the log of updates of all ranges. A damaged log is put aside: each range then
// continues from its state on disk, and what is missing is fetched again.
func (n *Process) openRedo() error {
	dir := filepath.Join(rangesDir(n.config), "log")
	o := server.RedoOptions{FS: vfs.Default, Dir: dir, Label: []byte(n.genesis.ChainID)}
	log, err := server.OpenRedoLog(o)
	if errors.Is(err, server.ErrDamaged) {
		aside := dir + damagedSuffix
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
		if err := durable.Rename(dir, aside); err != nil {
			return err
		}
		n.log.Error("The log of updates is damaged: putting it aside; each range continues from its state on disk", "folder", aside, "err", err)
		log, err = server.OpenRedoLog(o)
	}
	if err != nil {
		return err
	}
	// It may have ranges that this node no longer has: Server forgets them if they take much space.
	n.redo = log
	if torn := log.Torn(); torn.Bytes > 0 {
		n.log.Info("Truncated an incomplete write of the previous process", "file", torn.File, "bytes", torn.Bytes)
	}
	return nil
}

// openPlace opens a range, if it has a state, after completing an interrupted replacement of its
// folder. A range that cannot be used is put aside.
func (n *Process) openPlace(ctx context.Context, p *place) error {
	for _, suffix := range []string{"", nextSuffix, oldSuffix, damagedSuffix} {
		earlier := filepath.Join(filepath.Dir(p.dir), earlierFolderOf(p.keys)) + suffix
		if _, err := os.Lstat(p.dir + suffix); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := durable.Rename(earlier, p.dir+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := n.settle(p.dir); err != nil {
		return err
	}
	err := server.ErrNoState
	// An empty folder that is damaged later would replace the one that was put aside.
	if _, failed := os.Lstat(p.dir); !errors.Is(failed, os.ErrNotExist) {
		err = n.openReplica(ctx, p)
	}
	switch {
	case errors.Is(err, server.ErrNoState):
		return n.redo.Forget(server.RangeIDOf(p.keys))
	case isBad(err):
		return n.putAside(p, err)
	}
	return err
}

// openOthers opens the ranges whose folders are on disk, but which are not in the map, as retired
// ones: they serve, and are removed once other nodes have all their keys. A folder without a state
// is removed at once, and so is what was fetched of a range that is not in the map, and the rest of
// a removed folder. Folders that were put aside, or that cannot be read, stay.
func (n *Process) openOthers(ctx context.Context) error {
	dir := rangesDir(n.config)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names, stay []string
	for _, e := range entries {
		name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), nextSuffix), oldSuffix)
		path := filepath.Join(dir, name)
		known := slices.ContainsFunc(n.all(), func(p *place) bool {
			return path == p.dir || path == p.dir+damagedSuffix || path == fetchedDir(p.dir)
		})
		isFetched := strings.HasPrefix(name, fetchedPrefix)
		switch {
		case !e.IsDir() || !isFetched && !strings.HasPrefix(name, "from-") || known:
		case strings.HasSuffix(name, goneSuffix):
			if err := removeAll(path); err != nil {
				return err
			}
		case isFetched:
			if err := removeFolder(path); err != nil {
				return err
			}
		case strings.HasSuffix(name, damagedSuffix):
			stay = append(stay, path)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) { // F, F-next and F-old have one name
		p, err := n.otherPlace(ctx, filepath.Join(dir, name))
		switch {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil:
			n.log.Error("Cannot open a range that is not in the map: its folder stays", "folder", filepath.Join(dir, name), "err", err)
			stay = append(stay, filepath.Join(dir, name))
		case p != nil:
			n.mu.Lock()
			n.mu.places = append(slices.Clone(n.mu.places), p)
			slices.SortFunc(n.mu.places, func(a, b *place) int { return dsm.CompareRanges(a.keys, b.keys) })
			n.mu.Unlock()
			n.log.Info("A range on disk is not in the map: it is removed once other nodes have its keys", "range", p.String(), "folder", p.dir)
		}
	}
	if len(stay) > 0 {
		n.log.Info("Folders of ranges that are not in the map: remove them once the ranges with their keys follow the chain", "folders", named(stay))
	}
	return nil
}

// otherPlace opens the range in a folder as a retired one; nil: the folder had no state, and is
// removed.
func (n *Process) otherPlace(ctx context.Context, dir string) (*place, error) {
	if err := n.settle(dir); err != nil {
		return nil, err
	}
	keys, _, ok, err := rangestore.KeysOf(vfs.Default, filepath.Join(dir, "state"), n.genesis.ChainID)
	if err != nil {
		return nil, err
	}
	if !ok {
		n.log.Info("Removing the folder of a range without a state, which is not in the map", "folder", dir)
		return nil, removeFolder(dir)
	}
	p := &place{keys: keys, role: retired, retiredAt: time.Now(), dir: dir}
	if slices.ContainsFunc(n.all(), func(o *place) bool { return o.keys.Equal(keys) }) {
		return nil, fmt.Errorf("this folder has range %v, which another folder has too", keys)
	}
	return p, n.openReplica(ctx, p)
}

// openReplica opens a range. The error wraps server.ErrNoState if it has no state.
func (n *Process) openReplica(ctx context.Context, p *place) error {
	store, err := n.openStore(p, p.dir)
	if err != nil {
		return fmt.Errorf("range %s in %q: %w", p, p.dir, err)
	}
	began := time.Now()
	replica, err := server.Open(ctx, n.replicaOptions(p, store))
	if err != nil {
		return fmt.Errorf("range %s in %q: %w", p, p.dir, errors.Join(err, store.Close()))
	}
	n.mu.Lock()
	p.replica = replica
	n.mu.Unlock()
	recovered, claim := replica.Recovered(), replica.Claim()
	n.log.Info("Opened a range", "range", p.String(), "height", claim.Newest, "oldest", claim.Oldest, "stored", recovered.State,
		"replayed", recovered.Replayed, "seconds", time.Since(began).Seconds())
	return nil
}

// settle completes an interrupted replacement of a range's folder after a kill. It uses a complete
// state wherever the kill left it, unless that in the folder is as new: the range may have followed
// the chain while it was fetched.
func (n *Process) settle(dir string) error {
	next := dir + nextSuffix
	fetched, own := fetchedDir(dir), n.heightOf(dir)
	switch height := n.heightOf(fetched); {
	case height > own:
		if err := nextIs(dir, fetched); err != nil {
			return err
		}
	case height > 0: // a takeover continues only what is not complete
		if err := removeFolder(fetched); err != nil {
			return err
		}
	}
	_, err := os.Lstat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := durable.Rename(next, dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	case n.heightOf(next) > own:
		if err := replace(dir); err != nil {
			return err
		}
	}
	return errors.Join(removeAll(next), removeAll(dir+oldSuffix))
}

// heightOf returns the height of the complete state of a range in a folder; 0: there is none.
func (n *Process) heightOf(dir string) int64 {
	_, height, ok, err := rangestore.KeysOf(vfs.Default, filepath.Join(dir, "state"), n.genesis.ChainID)
	if err != nil {
		n.log.Info("A folder of a range cannot be read: fetching the range again", "folder", dir, "err", err)
	}
	if !ok || err != nil {
		return 0
	}
	return height
}

// nextIs renames the folder of a complete state to the next folder of a range.
func nextIs(dir, complete string) error {
	if err := removeAll(dir + nextSuffix); err != nil {
		return err
	}
	return durable.Rename(complete, dir+nextSuffix)
}

// replace replaces the folder of a range by that of its new state.
func replace(dir string) error {
	if err := removeAll(dir + oldSuffix); err != nil {
		return err
	}
	if err := os.Rename(dir, dir+oldSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := durable.Rename(dir+nextSuffix, dir); err != nil {
		return err
	}
	return removeAll(dir + oldSuffix)
}
