package dsmbench

import (
	"context"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
)

// runStale counts stale transactions by number of accounts and by r: the paper's Fig. 8c. A scheme
// without revision of witnesses aborts them.
func (r *runner) runStale(ctx context.Context, depths []int) error {
	if len(r.o.Accounts) == 0 {
		return nil
	}
	r.progress.Begin("stale", "blocks", len(r.o.Accounts)*r.o.Blocks)
	for _, keys := range r.o.Accounts {
		r.progress.Working(harness.Count(keys, "account"))
		s := r.o.spec()
		s.Keys, s.Signers = keys, max(1, keys/signerShare)
		rows, err := stale(ctx, s, r.o.Blocks, depths, func() { r.progress.Add(1) })
		if err != nil {
			return err
		}
		r.result.Stale = append(r.result.Stale, rows...)
	}
	return nil
}

// signerShare is the number of accounts per signer. It is the same for all numbers of accounts, as
// signers' nonces are in the tree, too.
const signerShare = 50

// stale returns a row for each depth. A transaction of a block has its witnesses from the state
// before the previous block. counted is called after each block.
func stale(ctx context.Context, s spec, blocks int, depths []int, counted func()) ([]StaleRow, error) {
	g := newGenerator(s)
	v, err := newState(g, func(int) {})
	if err != nil {
		return nil, err
	}
	defer func() { v.Release() }()
	before, err := uppers(v, depths)
	if err != nil {
		return nil, err
	}
	defer func() { release(before) }()
	counts := make([]int, len(depths))
	for range blocks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next, err := v.Apply(g.next(false).changes)
		if err != nil {
			return nil, err
		}
		v.Release()
		v = next
		after, err := uppers(v, depths)
		if err != nil {
			return nil, err
		}
		late := g.draw()
		for i := range depths {
			for _, keys := range late {
				if changed(before[i], after[i], keys[0]) || changed(before[i], after[i], keys[1]) {
					counts[i]++
				}
			}
		}
		release(before)
		before = after
		counted()
	}
	rows := make([]StaleRow, len(depths))
	for i, d := range depths {
		rows[i] = StaleRow{Keys: s.Keys, Depth: d, StaleRate: harness.Ratio(float64(counts[i]), float64(blocks*s.Transfers))}
	}
	return rows, nil
}

// draw returns the accounts of a block's transfers, without making them.
func (g *generator) draw() [][2][]byte {
	all := make([][2][]byte, g.Transfers)
	for i := range all {
		from, to := g.pair()
		all[i] = [2][]byte{g.key(from), g.key(to)}
	}
	return all
}

// uppers returns the trees of a version down to each depth, which the caller must release.
func uppers(v *avlstar.Version, depths []int) ([]*avlstar.Partial, error) {
	var all []*avlstar.Partial
	for _, d := range depths {
		p, _, err := upperTree(v, d)
		if err != nil {
			release(all)
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func release(all []*avlstar.Partial) {
	for _, p := range all {
		p.Release()
	}
}
