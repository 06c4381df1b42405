package dsmbench

import (
	"context"
	"fmt"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage"
)

// Modes of a validator.
const (
	modeLocal   = "local"
	modeSharded = "sharded"
	modePaged   = "paged"
)

// validator is an application that executes blocks without CometBFT.
type validator struct {
	g      *generator
	app    *app.App
	source *ownSource       // sharded mode only; has the full tree
	store  *appstore.Memory // nil in paged mode
	zone   *storage.Zone
	height int64
}

func openValidator(b begin) (*validator, error) {
	v := &validator{g: newGenerator(b.Spec), height: firstHeight}
	state, err := newState(v.g, func(int) {})
	if err != nil {
		return nil, err
	}
	defer state.Release()
	keep := config.DefaultApp().State
	o := app.Options{ChainID: chainID, KeepRecent: keep.KeepRecent, KeepRecentBytes: uint64(keep.KeepRecentBytes)}
	v.store = &appstore.Memory{First: state, Height: firstHeight}
	o.Store = v.store
	switch b.Role {
	case modeSharded:
		p, _, err := upperTree(state, b.Retain)
		if err != nil {
			return nil, err
		}
		if p, err = withRecords(p, state); err != nil {
			return nil, err
		}
		defer p.Release()
		state.Retain()
		v.source = newOwnSource(state)
		v.store.First = p.Version()
		o.Source, o.Retention = v.source, retention(b.Retain, b.Window)
	case modePaged:
		if o.Store, v.zone, err = appstore.Page(b.Dir, chainID, firstHeight, state, b.PagedBytes); err != nil {
			return nil, err
		}
	}
	v.app, err = app.New(o)
	v.store.First = nil
	return v, err
}

// Close implements child.Worker.
func (v *validator) Close() error {
	v.app.Stop()
	if v.zone == nil {
		return nil
	}
	return v.zone.Close()
}

// blocks executes n blocks whose signatures were checked before.
func (v *validator) blocks(r request) (a answer, err error) {
	for range r.N {
		b := v.g.next(r.Deletions)
		txs, err := v.g.sign(b)
		if err != nil {
			return a, err
		}
		one, err := v.block(context.Background(), txs, ways(b.wants(true)))
		if err != nil {
			return a, err
		}
		a.Nanos = append(a.Nanos, one.clock.Nanoseconds())
		a.GraftNanos = append(a.GraftNanos, one.graft.Nanoseconds())
		a.CPUNanos = append(a.CPUNanos, one.cpu.Nanoseconds())
		a.Fetched += one.fetched
	}
	height, latest := v.app.Latest()
	defer latest.Release()
	a.Height, a.AppHash = height, latest.AppHash()
	memory := latest.Memory()
	a.TreeBytes = treeBytes(memory)
	return a, nil
}

// took is the cost of a block.
type took struct {
	clock, cpu, graft time.Duration
	fetched           int // requests during the block
}

func (v *validator) block(ctx context.Context, txs [][]byte, wants []avlstar.Want) (t took, err error) {
	if v.source != nil {
		v.source.hold()
	}
	if err := check(ctx, v.app, txs); err != nil {
		return t, err
	}
	if v.source != nil {
		if t.graft, t.cpu, err = v.source.place(v.app, wants); err != nil {
			return t, err
		}
	}
	v.height++
	cpu, from := harness.CPUTime(), time.Now()
	res, err := v.app.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: v.height, Txs: txs})
	if err != nil {
		return t, err
	}
	if _, err := v.app.Commit(ctx, &abci.RequestCommit{}); err != nil {
		return t, err
	}
	t.clock = time.Since(from) + t.graft
	t.cpu += harness.CPUTime() - cpu
	for i, r := range res.TxResults {
		if r.Code != 0 {
			return t, fmt.Errorf("block %d, transaction %d failed: %s", v.height, i, r.Log)
		}
	}
	if v.source != nil {
		t.fetched = v.source.during
		return t, v.source.advance(v.store.Changes)
	}
	return t, nil
}
