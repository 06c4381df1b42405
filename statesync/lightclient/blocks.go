package lightclient

import (
	"slices"

	"github.com/cometbft/cometbft/types"
)

// Proved is a block that was verified.
type Proved struct {
	*types.LightBlock
	From     int64  // height of the block that it was verified from; its own for the root of trust
	By       string // the peer that gave it, as the caller names peers
	Compared bool   // whether it was compared with what other peers have at that height

	used uint64 // value of Blocks.clock when it was last used
}

// Blocks keeps verified blocks: always the root of trust, and the most recently used others. It
// must not be used concurrently. Blocks that it returns are shared and must not be modified.
type Blocks struct {
	limit  int
	root   *Proved
	blocks []*Proved // ascending, root among them
	clock  uint64    // counts uses
}

// NewBlocks returns an empty store of at most limit blocks. limit must be at least 2.
func NewBlocks(limit int) *Blocks { return &Blocks{limit: limit} }

// Len returns the number of blocks kept.
func (b *Blocks) Len() int { return len(b.blocks) }

// Root returns the root of trust, or nil before PutRoot.
func (b *Blocks) Root() *Proved { return b.root }

// PutRoot sets the root of trust, unless there is one already, and returns the one that is kept.
func (b *Blocks) PutRoot(root *Proved) *Proved {
	if b.root == nil {
		b.root = root
		b.Put(root)
	}
	return b.root
}

func (b *Blocks) find(height int64) (int, bool) {
	return slices.BinarySearchFunc(b.blocks, height, func(p *Proved, h int64) int { return int(min(max(p.Height-h, -1), 1)) })
}

func (b *Blocks) use(i int) *Proved {
	b.clock++
	b.blocks[i].used = b.clock
	return b.blocks[i]
}

// Get returns the block of that height, or nil.
func (b *Blocks) Get(height int64) *Proved {
	if i, has := b.find(height); has {
		return b.use(i)
	}
	return nil
}

// Below returns the highest block at or below height, or nil.
func (b *Blocks) Below(height int64) *Proved {
	i, has := b.find(height)
	if !has {
		i--
	}
	if i < 0 {
		return nil
	}
	return b.use(i)
}

// Above returns the lowest block above height, or nil.
func (b *Blocks) Above(height int64) *Proved {
	if i, _ := b.find(height + 1); i < len(b.blocks) {
		return b.use(i)
	}
	return nil
}

// Put adds p, unless there is a block of its height already, and returns the one that is kept.
func (b *Blocks) Put(p *Proved) *Proved {
	i, has := b.find(p.Height)
	if has {
		return b.use(i)
	}
	b.clock++
	p.used = b.clock
	b.blocks = slices.Insert(b.blocks, i, p)
	if len(b.blocks) > b.limit {
		oldest := -1
		for i, kept := range b.blocks {
			if kept != b.root && (oldest < 0 || kept.used < b.blocks[oldest].used) {
				oldest = i
			}
		}
		b.blocks = slices.Delete(b.blocks, oldest, oldest+1)
	}
	return p
}

// Trace returns the blocks by which the chain was climbed from the root of trust up to height,
// ascending. height must not be below the root.
func (b *Blocks) Trace(height int64) []*Proved {
	var t []*Proved
	for p := b.Below(height); p != nil && p.Height >= b.root.Height; p = b.Below(min(p.From, p.Height-1)) {
		t = append(t, p)
	}
	slices.Reverse(t)
	return t
}
