package storagenode

import (
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
)

const (
	// keepHeaders is the number of app hashes kept below the slowest range: a range taken over may
	// begin a few heights below it.
	keepHeaders = 1024
	// aheadHeaders is the maximum distance of the headers ahead of the slowest range.
	aheadHeaders = 1 << 15
)

// headers holds the app hashes of proved headers for the heights that replicas need.
type headers struct {
	mu     sync.Mutex
	hashes map[int64]avlstar.Hash // by the height of the block after which this is the state's hash
	upTo   int64                  // hashes is complete from the slowest range to below upTo
	newest int64                  // height of the newest proved header; 0: none
	time   time.Time              // of the newest header
	hash   []byte                 // of the newest header
}

var _ server.Headers = (*headers)(nil)

func (h *headers) init() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hashes = map[int64]avlstar.Hash{}
}

// AppHash implements server.Headers.
func (h *headers) AppHash(height int64) (avlstar.Hash, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash, ok := h.hashes[height]
	return hash, ok
}

// proved is a proved header.
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

// next returns the height of the first missing header if the slowest replica is at lowest; ok is
// false if there are enough headers for now. Headers far below lowest are dropped.
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

// newestProved returns the newest header; height 0: none has been proved yet.
func (h *headers) newestProved() proved {
	h.mu.Lock()
	defer h.mu.Unlock()
	return proved{height: h.newest, hash: h.hash, time: h.time}
}
