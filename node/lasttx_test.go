package node

import (
	"testing"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
)

// emptyBlocks is a chain whose blocks have no transactions, except those in written.
type emptyBlocks struct {
	base, top int64
	written   map[int64]bool
	reads     int
}

func (b *emptyBlocks) Base() int64   { return b.base }
func (b *emptyBlocks) Height() int64 { return b.top }

func (b *emptyBlocks) LoadBlockMeta(height int64) *cmttypes.BlockMeta {
	b.reads++
	if height < b.base || height > b.top {
		return nil
	}
	meta := &cmttypes.BlockMeta{Header: cmttypes.Header{Height: height, Time: time.Unix(height, 0)}}
	if b.written[height] {
		meta.NumTxs = 1
	}
	return meta
}

func TestLastTx(t *testing.T) {
	chain := &emptyBlocks{base: 1, written: map[int64]bool{}}
	var l lastTx
	// find returns what a call finds, and the number of blocks that it read.
	find := func() (height int64, reads int) {
		chain.reads = 0
		height, at := l.find(chain)
		if height > 0 {
			require.Equal(t, time.Unix(height, 0), at)
		}
		return height, chain.reads
	}
	check := func(wantHeight int64, wantReads int) {
		t.Helper()
		height, reads := find()
		require.Equal(t, []any{wantHeight, wantReads}, []any{height, reads})
	}
	check(0, 0) // there is no block yet
	chain.top = 10
	check(0, 10)
	check(0, 0) // all blocks were read
	chain.top = 12
	check(0, 2)
	chain.written[13], chain.top = true, 15
	check(13, 3)
	check(13, 0)
	chain.top = 20
	check(13, 5)
	chain.written[19] = true // read before: not seen
	chain.top = 21
	check(13, 1)

	// Nobody looked at the page for a long time: the new blocks are read in steps.
	chain.written[22+2*newTxStep], chain.top = true, 22+2*newTxStep
	check(13, newTxStep)
	check(13, newTxStep)
	check(22+2*newTxStep, 1)
	check(22+2*newTxStep, 0)

	// Blocks that are no longer stored are not read.
	chain = &emptyBlocks{base: 50, top: 3 * lastTxStep, written: map[int64]bool{40: true}}
	l = lastTx{}
	check(0, lastTxStep)
	check(0, lastTxStep)
	check(0, lastTxStep-49)
	check(0, 0)
	chain.base, chain.top = chain.top-5, chain.top+1
	check(0, 1)
}
