package node

import (
	"sync"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"
)

// Numbers of blocks that one call of lastTx.find reads at most: new ones, which are in a cache, and
// older ones.
const newTxStep, lastTxStep = 1000, 100

// lastTx finds the newest block with transactions. An idle chain makes many blocks without any, so
// each call reads only some of them: new ones upwards, then older ones downwards.
//
//	base … below │ blocks without transactions │ seen … top
//	◄── first calls, if none was found               ──►
type lastTx struct {
	mu     sync.Mutex
	seen   int64     // newest block that was read; 0: none; guarded by mu
	below  int64     // oldest block that was read; guarded by mu
	height int64     // newest block up to seen with transactions; 0: not found; guarded by mu
	time   time.Time // of that block; guarded by mu
}

// blockMetas is the part of CometBFT's block store that lastTx reads.
type blockMetas interface {
	Base() int64
	Height() int64
	LoadBlockMeta(height int64) *cmttypes.BlockMeta // nil: not stored
}

// find returns the height and time of the newest block with transactions; 0: not found yet.
func (l *lastTx) find(blocks blockMetas) (int64, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	top, base := blocks.Height(), max(blocks.Base(), 1)
	read := func(height int64) {
		if meta := blocks.LoadBlockMeta(height); meta != nil && meta.NumTxs > 0 {
			l.height, l.time = height, meta.Header.Time
		}
	}
	if l.seen == 0 {
		l.seen, l.below = top, top+1
	}
	l.seen = max(l.seen, base-1)
	for end := min(top, l.seen+newTxStep); l.seen < end; l.seen++ {
		read(l.seen + 1)
	}
	for end := max(base, l.below-lastTxStep); l.height == 0 && l.below > end; l.below-- {
		read(l.below - 1)
	}
	return l.height, l.time
}
