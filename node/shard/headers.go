package shard

import (
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/storagenode"
)

const (
	// keepHeaders is how many app hashes below the slowest range are kept: a range that is taken
	// over may begin a few heights below it.
	keepHeaders = 1024
	// aheadHeaders is how far the headers run ahead of the slowest range.
	aheadHeaders = 1 << 15
)

// headers are the app hashes that proved headers have, of the heights that replicas need.
type headers struct {
	mu     sync.Mutex
	hashes map[int64]avlstar.Hash // by the height of the block after which it is the state
	upTo   int64                  // hashes has those from the slowest range to below upTo
	newest int64                  // height of the newest proved header; 0: none
	time   time.Time              // of that header
	hash   []byte                 // its
}

var _ storagenode.Headers = (*headers)(nil)

func (h *headers) init() { h.hashes = map[int64]avlstar.Hash{} }

// AppHash implements storagenode.Headers.
func (h *headers) AppHash(height int64) (avlstar.Hash, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash, ok := h.hashes[height]
	return hash, ok
}

// proved is a header that was proved.
type proved struct {
	height  int64
	appHash []byte
	hash    []byte
	time    time.Time
}

// add adds headers, in any order.
func (h *headers) add(all ...proved) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range all {
		var hash avlstar.Hash
		copy(hash[:], p.appHash)
		h.hashes[p.height-1] = hash
		if p.height > h.newest {
			h.newest, h.time, h.hash = p.height, p.time, p.hash
		}
	}
}

// next returns the height of the first header that is missing for replicas of which the slowest is
// at lowest; ok is false if there are enough for now. What is far below lowest is dropped.
func (h *headers) next(lowest int64) (height int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for height := range h.hashes {
		if height < lowest-keepHeaders {
			delete(h.hashes, height)
		}
	}
	for height = max(lowest, h.upTo); ; height++ {
		if _, has := h.hashes[height]; !has {
			break
		}
	}
	if _, has := h.hashes[lowest]; !has {
		height = lowest
	}
	h.upTo = height
	return height + 1, height <= lowest+aheadHeaders
}

// newestProved returns the newest header; height 0: none was proved yet.
func (h *headers) newestProved() proved {
	h.mu.Lock()
	defer h.mu.Unlock()
	return proved{height: h.newest, hash: h.hash, time: h.time}
}
