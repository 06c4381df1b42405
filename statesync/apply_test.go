package statesync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// syncFrom sends all chunks to a joiner in order and returns the last answer.
func syncFrom(t *testing.T, m *Manager, chunks [][]byte) (last *abci.ResponseApplySnapshotChunk) {
	t.Helper()
	for k, data := range chunks {
		last = apply(t, m, uint32(k), data, "peer")
		if last.Result != abci.ResponseApplySnapshotChunk_ACCEPT {
			break
		}
	}
	return last
}

func TestOurOwnFailuresAbort(t *testing.T) {
	rng := newRNG(t, 1)
	v := randomTree(t, rng, 100, 200)
	server := serverOf(t, v, 10)
	chunks := chunksOf(t, v)
	require.Greater(t, len(chunks), 4)
	for _, c := range []struct {
		name   string
		damage func(*fakeTarget)
		offer  offerResult
		last   abci.ResponseApplySnapshotChunk_Result
	}{
		{"begin", func(f *fakeTarget) { f.fault.begin = errDisk }, offerAbort, abci.ResponseApplySnapshotChunk_ABORT},
		{"write", func(f *fakeTarget) { f.fault.write, f.fault.writeAt = errDisk, 2 }, offerAccept, abci.ResponseApplySnapshotChunk_ABORT},
		{"write of the last", func(f *fakeTarget) { f.fault.write, f.fault.writeAt = errDisk, uint32(len(chunks)-1) }, offerAccept, abci.ResponseApplySnapshotChunk_ABORT},
		{"commit", func(f *fakeTarget) { f.fault.commit = errDisk }, offerAccept, abci.ResponseApplySnapshotChunk_ABORT},
		{"commit and abort", func(f *fakeTarget) { f.fault.commit, f.fault.abort = errDisk, errDisk }, offerAccept, abci.ResponseApplySnapshotChunk_ABORT},
		{"wrong interval", func(f *fakeTarget) { f.fault.commit = fmt.Errorf("node: %w", ErrWrongInterval) }, offerAccept, abci.ResponseApplySnapshotChunk_REJECT_SNAPSHOT},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, target := joiner(t, 2)
			c.damage(target)
			require.Equal(t, c.offer, offer(t, m, offerOf(t, server)))
			require.Equal(t, c.last, syncFrom(t, m, chunks).Result)
			target.requireEmpty()
			require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, apply(t, m, 0, chunks[0], "peer").Result, "the sync is over")

			target.fault.begin, target.fault.write, target.fault.commit, target.fault.abort = nil, nil, nil, nil
			require.Equal(t, offerAccept, offer(t, m, offerOf(t, server)))
			require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, syncFrom(t, m, chunks).Result)
			target.requireRestored(10, v)
		})
	}
	t.Run("no target", func(t *testing.T) {
		require.Equal(t, offerAbort, offer(t, server, offerOf(t, server)))
	})
}

// A new offer during a sync starts over, without anything from the old sync. Even a refused offer
// ends the old sync.
func TestNewOfferMidway(t *testing.T) {
	for seed := range uint64(20) {
		rng := newRNG(t, seed)
		v, w := randomTree(t, rng, 100, 200), randomTree(t, rng, 150, 200)
		m, target := joiner(t, 3)
		target.yield = rng.IntN(50)
		require.Equal(t, offerAccept, offer(t, m, offerOf(t, serverOf(t, v, 10))))
		chunks := chunksOf(t, v)
		for k := range chunks[:rng.IntN(len(chunks))] {
			apply(t, m, uint32(k), chunks[k], "peer")
		}
		if rng.IntN(2) == 0 {
			bad := offerOf(t, serverOf(t, v, 10))
			bad.Snapshot.Metadata = []byte("garbage")
			require.Equal(t, offerRejectSender, offer(t, m, bad))
			target.requireEmpty()
			require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, apply(t, m, 0, chunks[0], "peer").Result)
		}
		require.Equal(t, offerAccept, offer(t, m, offerOf(t, serverOf(t, w, 20))))
		newWorld(t, rng, m, chunksOf(t, w), 1, 1, 10).run()
		target.requireRestored(20, w)
	}
}

func TestCloseEndsASync(t *testing.T) {
	v := randomTree(t, newRNG(t, 1), 100, 200)
	m, target := joiner(t, 2)
	require.Equal(t, offerAccept, offer(t, m, offerOf(t, serverOf(t, v, 10))))
	chunks := chunksOf(t, v)
	apply(t, m, 0, chunks[0], "peer")
	require.NoError(t, m.Close())
	target.requireEmpty()
	require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, apply(t, m, 1, chunks[1], "peer").Result)
	require.Equal(t, offerAbort, offer(t, m, offerOf(t, serverOf(t, v, 10))))
	require.NoError(t, m.Close())
}

// blockedTarget blocks Write.
type blockedTarget struct {
	*fakeTarget
	entered, release chan struct{}
}

func (b *blockedTarget) Write(k uint32, c *avlstar.Chunk) error {
	b.entered <- struct{}{}
	<-b.release
	return b.fakeTarget.Write(k, c)
}

// An answer that waits for the pool ends when its caller gives up and when the node stops. Serving
// does not wait for it.
func TestWaitingAnswers(t *testing.T) {
	v := randomTree(t, newRNG(t, 1), 1, 200)
	require.EqualValues(t, 1, v.NumChunks())
	target := &blockedTarget{&fakeTarget{t: t}, make(chan struct{}, 10), make(chan struct{})}
	m := NewManager(Options{Target: target, Interval: interval, Keep: 1, Workers: 1})
	m.Committed(10, v)
	req := offerOf(t, m)
	chunk := chunksOf(t, v)[0]
	require.Equal(t, offerAccept, offer(t, m, req))

	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := m.ApplySnapshotChunk(ctx, &abci.RequestApplySnapshotChunk{Chunk: chunk})
		require.ErrorIs(t, err, context.Canceled)
	})
	<-target.entered
	require.Equal(t, chunk, load(t, m, 10, Format, 0))
	require.Len(t, m.List(), 1)
	cancel()
	wg.Wait()

	wg.Go(func() {
		resp, err := m.ApplySnapshotChunk(context.Background(), &abci.RequestApplySnapshotChunk{Chunk: chunk})
		require.NoError(t, err)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, resp.Result)
	})
	m.cancel() // as Close does first
	close(target.release)
	wg.Wait()
	require.NoError(t, m.Close())
	target.requireEmpty()
}

// A second copy whose caller gave up before the pool took it does not affect the first copy, which
// is being verified: the restore completes without receiving the chunk again.
func TestCancelledSecondCopy(t *testing.T) {
	v := randomTree(t, newRNG(t, 1), 30, 200)
	chunks := chunksOf(t, v)
	require.Greater(t, len(chunks), 2)
	target := &blockedTarget{&fakeTarget{t: t}, make(chan struct{}, len(chunks)), make(chan struct{})}
	m := NewManager(Options{Target: target, Interval: interval, Keep: 1, Workers: 1})
	m.Committed(10, v)
	require.Equal(t, offerAccept, offer(t, m, offerOf(t, m)))
	require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, apply(t, m, 0, chunks[0], "peer").Result)
	<-target.entered // the only worker is busy, and the next job fills the pool
	require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, apply(t, m, 1, chunks[1], "peer").Result)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := m.ApplySnapshotChunk(ctx, &abci.RequestApplySnapshotChunk{Chunk: chunks[0]})
	require.ErrorIs(t, err, context.Canceled)

	close(target.release)
	for i := 2; i < len(chunks); i++ {
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, apply(t, m, uint32(i), chunks[i], "peer").Result)
	}
	target.mu.Lock()
	require.EqualValues(t, 10, target.mu.height, "all chunks were given, and the restore is not complete")
	target.mu.Unlock()
	require.NoError(t, m.Close())
}

func TestRestorer(t *testing.T) {
	rng := newRNG(t, 3)
	v := randomTree(t, rng, 200, 200)
	chunks := chunksOf(t, v)
	manifest, err := avlstar.VerifyManifest(v.Manifest().Encode(), v.AppHash())
	require.NoError(t, err)
	target := &fakeTarget{t: t}
	r, err := BeginRestore(target, 30, manifest)
	require.NoError(t, err)
	require.Equal(t, len(chunks), r.Missing())

	_, err = r.Accept(uint32(len(chunks)), chunks[0])
	require.ErrorIs(t, err, avlstar.ErrInvalidChunk)
	_, err = r.Accept(1, chunks[0])
	require.ErrorIs(t, err, avlstar.ErrInvalidChunk)
	fresh, err := r.Accept(1, chunks[1])
	require.NoError(t, err)
	require.True(t, fresh)
	fresh, err = r.Accept(1, []byte("is not looked at any more"))
	require.NoError(t, err)
	require.False(t, fresh)
	_, err = r.Commit()
	require.ErrorIs(t, err, ErrIncomplete)

	// All at once, each several times: each is written once (the target checks this).
	var wg sync.WaitGroup
	for range 3 {
		for _, k := range rng.Perm(len(chunks)) {
			wg.Go(func() {
				_, err := r.Accept(uint32(k), chunks[k])
				require.NoError(t, err)
			})
		}
	}
	wg.Wait()
	require.Zero(t, r.Missing())
	got, err := r.Commit()
	require.NoError(t, err)
	require.Equal(t, v.AppHash(), got.AppHash())
	target.requireRestored(30, v)
	require.NoError(t, r.Abort(), "no effect")
	target.requireRestored(30, v)
	_, err = r.Commit()
	require.ErrorIs(t, err, ErrOver)
	_, err = r.Accept(0, chunks[0])
	require.ErrorIs(t, err, ErrOver)

	target.fault.write = errDisk
	r, err = BeginRestore(target, 40, manifest)
	require.NoError(t, err)
	_, err = r.Accept(0, chunks[0])
	require.ErrorIs(t, err, errDisk)
	require.False(t, errors.Is(err, avlstar.ErrInvalidChunk))
	_, err = r.Accept(1, chunks[1])
	require.ErrorIs(t, err, errDisk)
	_, err = r.Commit()
	require.ErrorIs(t, err, errDisk)
	require.NoError(t, r.Abort())
	target.requireEmpty()
}
