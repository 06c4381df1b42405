package comet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/storage"
)

// passing counts the blocks that a Halter lets through.
type passing struct {
	abci.BaseApplication
	finalized, committed int
}

func (p *passing) FinalizeBlock(context.Context, *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	p.finalized++
	return &abci.ResponseFinalizeBlock{}, nil
}

func (p *passing) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	p.committed++
	return &abci.ResponseCommit{}, nil
}

func TestHalter(t *testing.T) {
	tooOld := &app.UpgradeError{Version: 2, Newest: 1, Height: 3}
	for name, c := range map[string]struct {
		halt    int64
		mayGoOn func(committed int) error
		last    int
		cause   error
	}{
		"none":                          {0, func(int) error { return nil }, 10, nil},
		"halt":                          {4, func(int) error { return nil }, 4, ErrHalted},
		"upgrade":                       {0, func(n int) error { return tooOldAt(n, 3, tooOld) }, 3, tooOld},
		"upgrade and halt at one block": {3, func(n int) error { return tooOldAt(n, 3, tooOld) }, 3, tooOld},
		"halt before upgrade":           {2, func(n int) error { return tooOldAt(n, 3, tooOld) }, 2, ErrHalted},
	} {
		inner := new(passing)
		var stopped, left []error
		g := NewHalter(inner, c.halt, func() error { return c.mayGoOn(inner.committed) }, func(err error) { stopped = append(stopped, err) })
		g.leave = func(err error) { left = append(left, err) }
		for height := int64(1); height <= 10; height++ {
			shut := int(height) > c.last
			_, err := g.PrepareProposal(t.Context(), &abci.RequestPrepareProposal{Height: height})
			require.Equal(t, shut, err != nil, "%s: %d", name, height)
			_, err = g.ProcessProposal(t.Context(), &abci.RequestProcessProposal{Height: height})
			require.Equal(t, shut, err != nil)
			_, err = g.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: height})
			require.Equal(t, shut, err != nil)
			if shut {
				require.ErrorIs(t, err, c.cause)
				continue
			}
			_, err = g.Commit(t.Context(), &abci.RequestCommit{})
			require.NoError(t, err)
		}
		require.Equal(t, c.last, inner.finalized, name)
		require.Equal(t, c.last, inner.committed, name)
		require.Len(t, left, 3*(10-c.last))
		if c.cause == nil {
			require.Empty(t, stopped)
			continue
		}
		require.Len(t, stopped, 1)
		require.ErrorIs(t, stopped[0], c.cause)
		require.Equal(t, stopped[0], g.cause())
	}
}

// failing is an application that cannot execute or commit block 3.
type failing struct {
	passing
	finalize, commit error
}

func (f *failing) FinalizeBlock(ctx context.Context, req *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	if req.Height == 3 && f.finalize != nil {
		return nil, f.finalize
	}
	return f.passing.FinalizeBlock(ctx, req)
}

func (f *failing) Commit(ctx context.Context, req *abci.RequestCommit) (*abci.ResponseCommit, error) {
	if f.finalized == 3 && f.commit != nil {
		return nil, f.commit
	}
	return f.passing.Commit(ctx, req)
}

// A disk failure in a block ends the blocks: CometBFT would panic on the error, which in block sync
// ends the process without a reason, and in consensus ends only consensus.
func TestHalterEndsBlocksThatFail(t *testing.T) {
	broken := errors.New("input/output error")
	for name, c := range map[string]struct {
		inner *failing
		is    error
	}{
		"execution":   {&failing{finalize: broken}, broken},
		"lost page":   {&failing{finalize: fmt.Errorf("block 3: %w", storage.ErrNoPage)}, storage.ErrCorrupt},
		"commit":      {&failing{commit: broken}, broken},
		"remote":      {&failing{finalize: broken}, nil},
		"remote page": {&failing{finalize: storage.ErrNoPage}, storage.ErrCorrupt},
	} {
		var stopped, left []error
		h := NewHalter(c.inner, 0, func() error { return nil }, func(err error) { stopped = append(stopped, err) })
		remote := strings.HasPrefix(name, "remote")
		if !remote {
			h.leave = func(err error) { left = append(left, err) }
		}
		var err error
		for height := int64(1); height <= 3; height++ {
			require.NoError(t, err, name)
			if _, err = h.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: height}); err == nil {
				_, err = h.Commit(t.Context(), &abci.RequestCommit{})
			}
		}
		require.Error(t, err, name)
		if c.is == nil { // the calling process ends by itself, and may call again
			require.ErrorIs(t, err, broken, name)
			require.Empty(t, stopped, name)
			continue
		}
		require.ErrorIs(t, err, c.is, name)
		require.Equal(t, []error{err}, stopped, name)
		_, again := h.FinalizeBlock(t.Context(), &abci.RequestFinalizeBlock{Height: 3})
		require.Equal(t, err, again, name)
		require.Len(t, stopped, 1, name)
		if !remote {
			require.Equal(t, []error{err, err}, left, name)
		}
	}
}

func tooOldAt(committed, height int, err error) error {
	if committed >= height {
		return err
	}
	return nil
}
