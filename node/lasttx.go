package node

import (
	"sync"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"
)

// lastTxStep is the number of blocks that one call of lastTx.find reads at most.
const lastTxStep = 1000

// lastTx finds the newest block with transactions. An idle chain makes many blocks without any, so
// each call reads only some of them:
//
//	base … below │ blocks without transactions │ seen │ new blocks … top
//	◄── older blocks, next calls                        ◄── first
type lastTx struct {
	mu     sync.Mutex
	seen   int64     // top at the last call; guarded by mu
	below  int64     // blocks from below to seen have none if height is 0; guarded by mu
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
	top, left := blocks.Height(), lastTxStep
	// read reads blocks from the one at height down to the one above end. It returns the height of
	// the last one that it read.
	read := func(height, end int64) (last int64, found bool) {
		for ; height > end && left > 0; height-- {
			left--
			if meta := blocks.LoadBlockMeta(height); meta != nil && meta.NumTxs > 0 {
				l.height, l.time = height, meta.Header.Time
				return height, true
			}
		}
		return height + 1, false
	}
	if top > l.seen {
		switch last, found := read(top, l.seen); {
		case found:
		case last > l.seen+1: // too many new blocks: the next calls go on below them
			l.below, l.height = last, 0
		case l.below == 0:
			l.below = last
		}
		l.seen = top
	}
	if l.height == 0 && l.below > 0 {
		l.below, _ = read(l.below-1, max(blocks.Base()-1, 0))
	}
	return l.height, l.time
}
