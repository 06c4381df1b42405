package treestore

import (
	"bytes"
	"math"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/sgc"
)

// records finds values of one version by key, in the newest state that was kept when the version
// was made. That state has every leaf below a stub of the version, because leaves changed by later
// blocks are in memory. It may also have leaves that later blocks deleted.
//
//	state g                            version h
//	k1 k2 k3 k4 k5 k6    k3 deleted    ┌──┴──┐
//	                     k6 changed   stub   k6      stub: k1 k2 k4 k5
//
// See docs/decisions/0031-reads-by-key.md for the complete argument.
type records struct {
	pages   *pages.Pages
	state   *storage.Kept
	height  int64
	deleted *deletions
}

var _ avlstar.Records = (*records)(nil)

// RecordsOf returns the records of the version whose state is kept. It takes over the reference.
func RecordsOf(p *pages.Pages, state *storage.Kept) avlstar.Records {
	return &records{p, state, state.Height(), &deletions{after: state.Height()}}
}

// Record implements avlstar.Records. It first looks in the cache for the verified page, and for the
// record, whose cache key is the hash of its page and its key. Every version with that page has
// that record.
func (r *records) Record(s avlstar.Subtree, key []byte) (value []byte, ok bool, err error) {
	cache := r.pages.Cache
	if page, ok := cache.Peek(sgc.State, s.Hash[:]); ok {
		value, ok = page.(*avlstar.Page).Get(key)
		return value, ok, nil
	}
	var buf [128]byte
	name := append(append(buf[:0], s.Hash[:]...), key...)
	if value, ok := cache.GetBytes(sgc.State, name, nil); ok {
		return value, true, nil
	}
	value, ok, err = r.state.Get(key)
	if err != nil {
		if r.pages.Failed != nil {
			r.pages.Failed(err)
		}
		return nil, false, err
	}
	if !ok || r.deleted.upTo(r.height, key) {
		return nil, false, nil
	}
	cache.PutBytes(sgc.State, name, value)
	return value, true, nil
}

// Release implements avlstar.Records.
func (r *records) Release() { r.state.Release() }

// deletions are the keys deleted by blocks after a kept state. Readers use them while further
// blocks add keys.
type deletions struct {
	after int64 // height of the state
	mu    struct {
		sync.RWMutex
		first map[string]int64 // by key: the first block that deleted it
	}
}

// add records the deletions of a block. Heights must increase.
func (d *deletions) add(height int64, keys [][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		if _, known := d.mu.first[string(key)]; !known {
			if d.mu.first == nil {
				d.mu.first = make(map[string]int64)
			}
			d.mu.first[string(key)] = height
		}
	}
}

// upTo reports whether a block up to height deleted key. A key that was put again later is in
// memory.
func (d *deletions) upTo(height int64, key []byte) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	first, deleted := d.mu.first[string(key)]
	return deleted && first <= height
}

// keeper gives versions their records. Its methods are called by Load, restores and Commit, never
// concurrently.
type keeper struct {
	mu     sync.Mutex // guards the other fields
	from   int64      // the deletions of all blocks after this height are known
	recent []deleted  // after the newest kept state, in ascending order
	window *deletions // of the newest kept state; nil: not made yet
}

// deleted are the deletions of one block.
type deleted struct {
	height int64
	keys   [][]byte
}

func newKeeper() *keeper { return &keeper{from: math.MaxInt64} }

// begin starts from a state that was loaded or restored, and not made by the previous blocks.
func (k *keeper) begin(height int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.from, k.recent, k.window = height, nil, nil
}

// block records the deletions of a block. It is called before give for the version of that block.
func (k *keeper) block(height int64, keys [][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	own := make([][]byte, len(keys))
	for i, key := range keys {
		own[i] = bytes.Clone(key) // otherwise all memory of the block would stay in use
	}
	k.recent = append(k.recent, deleted{height, own})
	if k.window != nil {
		k.window.add(height, own)
	}
}

// give sets the records of v, the version at height, if a kept state has its pages. All blocks up
// to height must have been recorded. v must not be shared yet.
func (k *keeper) give(v *avlstar.Version, p *pages.Pages, zone *storage.Zone, height int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	state := zone.Kept(height)
	if state == nil {
		return
	}
	after := state.Height()
	if after < k.from {
		state.Release()
		return
	}
	for len(k.recent) > 0 && k.recent[0].height <= after {
		k.recent[0] = deleted{}
		k.recent = k.recent[1:]
	}
	if k.window == nil || k.window.after != after {
		k.window = &deletions{after: after}
		for _, d := range k.recent {
			k.window.add(d.height, d.keys)
		}
	}
	v.SetRecords(&records{p, state, height, k.window})
}
