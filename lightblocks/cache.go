package lightblocks

import (
	"slices"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// proved is a block that was verified.
type proved struct {
	*types.LightBlock
	from     int64        // height of the block that it was verified from; its own for the trusted one
	by       transport.ID // who gave it
	compared bool         // with what the other peers say
	used     uint64       // when it was used last, for leaving the cache
}

// cachedBlocks bounds what is kept: 10,000 validators have some 4 MiB in memory.
const cachedBlocks = 64

// cache keeps proved blocks: the trusted one always, of the others those used last.
type cache struct {
	anchor *proved
	blocks []*proved // ascending, the anchor among them
	clock  uint64
}

func (c *cache) find(height int64) (int, bool) {
	return slices.BinarySearchFunc(c.blocks, height, func(b *proved, h int64) int { return int(min(max(b.Height-h, -1), 1)) })
}

// get returns the block of that height, or nil.
func (c *cache) get(height int64) *proved {
	if i, has := c.find(height); has {
		c.clock++
		c.blocks[i].used = c.clock
		return c.blocks[i]
	}
	return nil
}

// below returns the highest block at or below height, or nil.
func (c *cache) below(height int64) *proved {
	i, has := c.find(height)
	if has {
		return c.get(height)
	}
	if i == 0 {
		return nil
	}
	return c.get(c.blocks[i-1].Height)
}

// above returns the lowest block above height, or nil.
func (c *cache) above(height int64) *proved {
	if i, _ := c.find(height + 1); i < len(c.blocks) {
		return c.get(c.blocks[i].Height)
	}
	return nil
}

// put keeps b and returns what is kept for its height: what was there first stays.
func (c *cache) put(b *proved) *proved {
	if kept := c.get(b.Height); kept != nil {
		return kept
	}
	c.clock++
	b.used = c.clock
	i, _ := c.find(b.Height)
	c.blocks = slices.Insert(c.blocks, i, b)
	if len(c.blocks) > cachedBlocks {
		oldest := -1
		for i, b := range c.blocks {
			if b != c.anchor && (oldest < 0 || b.used < c.blocks[oldest].used) {
				oldest = i
			}
		}
		c.blocks = slices.Delete(c.blocks, oldest, oldest+1)
	}
	return b
}

// trace returns the blocks at or below height by which the chain was climbed from the trusted one, ascending.
func (c *cache) trace(height int64) []*proved {
	var t []*proved
	for b := c.below(height); b != nil && b.Height >= c.anchor.Height; b = c.below(min(b.from, b.Height-1)) {
		t = append(t, b)
	}
	slices.Reverse(t)
	return t
}
