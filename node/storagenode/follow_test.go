package storagenode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/statesync/lightblocks"
)

// tip is a verifier of a chain with that many blocks. It waits for any block above them, as if a
// stranger kept it busy.
type tip int64

func (v tip) LightBlock(ctx context.Context, height int64) (*cmttypes.LightBlock, error) {
	if height > int64(v) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_ = sleep.For(ctx, 100*time.Millisecond)
	header := &cmttypes.Header{Height: height}
	return &cmttypes.LightBlock{SignedHeader: &cmttypes.SignedHeader{Header: header}}, nil
}

func (v tip) Newest(ctx context.Context) (int64, error) {
	_ = sleep.For(ctx, time.Second)
	return int64(v), nil
}

func (tip) Ancestors(context.Context, int64, func(*cmttypes.Header) bool) ([]lightblocks.Ancestor, error) {
	return nil, nil
}

// A stranger's false height costs two seconds once, and later a second for each batch. If peers
// claim nothing new, the newest proved block is asked for at intervals.
func TestFalseHeights(t *testing.T) {
	for name, c := range map[string]struct {
		claim, next, want int64
		more              bool
		first, later      time.Duration
	}{
		"true":                      {1000, 990, 1000, false, 100 * time.Millisecond, 100 * time.Millisecond},
		"true and far":              {1000, 100, 100 + headerBatch - 1, true, 100 * time.Millisecond, 100 * time.Millisecond},
		"false":                     {11_000, 990, 1000, false, 3100 * time.Millisecond, 1100 * time.Millisecond},
		"false, but the batch true": {11_000, 100, 100 + headerBatch - 1, true, 100 * time.Millisecond, 100 * time.Millisecond},
		"false, without any new":    {11_000, 1001, 0, false, 3 * time.Second, time.Second},
		"none":                      {0, 990, 1000, false, 1100 * time.Millisecond, 0},
		"none, without any new":     {0, 1001, 0, false, time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &target{verifier: tip(1000), claimed: func(context.Context) int64 { return c.claim }}
				for _, takes := range []time.Duration{c.first, c.later} {
					ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
					began := time.Now()
					block, more, err := v.next(ctx, c.next)
					cancel()
					require.NoError(t, err)
					require.Equal(t, takes, time.Since(began))
					require.Equal(t, c.more, more)
					if c.want == 0 || takes == 0 {
						require.Nil(t, block)
					} else {
						require.Equal(t, c.want, block.Height)
					}
				}
			})
		})
	}
}

// A new map is applied at once, also while the follower has nothing to do.
func TestNewMapWakesTheFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t)
		o.mapSet = make(chan struct{}, 1)
		o.add(avlstar.KeyRange{}, current, true)
		o.serveAll()
		v := &target{verifier: tip(offlineHeight), claimed: func(context.Context) int64 { return offlineHeight }}
		ctx, cancel := context.WithCancel(t.Context())
		o.ctx = ctx
		ended := make(chan error, 1)
		go func() { ended <- o.proveAndTend(ctx, v) }()
		bubble.Sleep(time.Second + idlePoll/2) // it has asked for the newest height, and pauses
		m := placed(t, 2, []dsm.Placement{at(avlstar.KeyRange{}, o.self())}, nil, o.self())
		o.SetMap(m)
		synctest.Wait()
		require.Same(t, m, o.nodes.Load())
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		o.wg.Wait()
	})
}

// forked is a verifier of a chain with two proved blocks of one height.
type forked struct{ tip }

func (forked) LightBlock(context.Context, int64) (*cmttypes.LightBlock, error) {
	return nil, fmt.Errorf("%w: block 7", lightblocks.ErrConflict)
}

// A storage node that learns of a fork ends, and forgets the header that it trusted last.
func TestForkEndsTheNode(t *testing.T) {
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	n, err := New(t.Context(), Options{Config: nodetest.Load(t, dir), Logger: log.NewNopLogger()})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Stop()) }()
	nodetest.WriteFile(t, n.trustedPath(), "{}")
	claimed := func(context.Context) int64 { return 7 }
	err = n.followWith(t.Context(), &target{verifier: forked{tip(7)}, claimed: claimed})
	require.ErrorIs(t, err, lightblocks.ErrConflict)
	require.ErrorIs(t, err, config.ErrInvalid, "exit status 2")
	require.ErrorContains(t, err, "ask the validators which chain is right")
	require.NoFileExists(t, n.trustedPath())
}

// After two blocks of one height were proved, no start follows one of them by itself.
func TestForkStaysAnAlarm(t *testing.T) {
	c := newChain(t, twoRanges()...)
	dir := c.replicaHome()
	conf := nodetest.Load(t, dir)
	evidence := filepath.Join(conf.CometBFT.DBDir(), "conflicts", "light-client-attack-7-AB.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(evidence), 0o700))
	nodetest.WriteFile(t, evidence, fmt.Sprintf(`{"found": "2026-01-02T03:04:05Z", "chain_id": %q, "peers": ["a", "b"], "evidence": []}`, "test-chain"))
	_, err := New(t.Context(), Options{Config: conf, Logger: log.NewNopLogger()})
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorIs(t, err, lightblocks.ErrConflict)
	require.ErrorContains(t, err, "2026-01-02 03:04:05")
	require.ErrorContains(t, err, evidence)
	require.ErrorContains(t, err, "peers a and b sent")
	require.NoError(t, os.Rename(filepath.Dir(evidence), filepath.Join(dir, "decided")))
	n, err := New(t.Context(), Options{Config: conf, Logger: log.NewNopLogger()})
	require.NoError(t, err)
	require.NoError(t, n.Stop())
}
