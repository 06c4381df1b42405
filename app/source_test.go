package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
)

var errSource = errors.New("nobody answers")

// fakeSource is a Source over the full trees of all heights, which delays, loses and divides its
// responses, inside a bubble of testing/synctest.
type fakeSource struct {
	t *testing.T

	mu struct {
		sync.Mutex
		rnd    *rand.Rand                 // nil: it responds correctly
		full   map[int64]*avlstar.Version // by height; each with a reference
		silent bool                       // it returns nothing until ctx ends
		wants  []avlstar.Want             // wants of the last request
		calls  int
		bytes  int // length of all multiproofs
		bad    int // number of calls since the last correct response
		delay  time.Duration
	}
}

func newFakeSource(t *testing.T, rnd *rand.Rand) *fakeSource {
	s := &fakeSource{t: t}
	s.mu.rnd, s.mu.full = rnd, map[int64]*avlstar.Version{}
	t.Cleanup(func() {
		for _, v := range s.mu.full {
			v.Release()
		}
	})
	return s
}

// has adopts the latest state of a.
func (s *fakeSource) has(a *App) {
	height, v := a.Latest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.full[height] = v
}

func (s *fakeSource) silence(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.silent = silent
}

func (s *fakeSource) delayed(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.delay = d
}

func (s *fakeSource) sent(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.bytes += bytes
}

// took returns the total length of all multiproofs.
func (s *fakeSource) took() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.bytes
}

func (s *fakeSource) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.calls
}

// how describes the response to a request.
type how struct {
	v            *avlstar.Version // version of the height, or an older one
	stale        bool
	silent, fail bool
	delay        time.Duration
	portion      int // number of wants that are answered
	apart        bool
}

func (s *fakeSource) choose(height int64, wants []avlstar.Want) how {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls++
	s.mu.wants = wants
	h := how{v: s.mu.full[height], silent: s.mu.silent, delay: s.mu.delay, portion: len(wants)}
	// At least every third response is correct, so that no query waits longer than it may.
	if s.mu.bad++; s.mu.rnd != nil && s.mu.bad == 3 {
		s.mu.bad = 0
	} else if r := s.mu.rnd; r != nil {
		if old := s.mu.full[height-1-r.Int64N(2)]; old != nil && r.IntN(4) == 0 {
			h.v, h.stale = old, true
		}
		h.fail = r.IntN(8) == 0
		h.delay += time.Duration(r.IntN(50)) * time.Millisecond
		if r.IntN(3) == 0 {
			h.portion = r.IntN(len(wants) + 1)
		}
		h.apart = r.IntN(3) == 0
	}
	return h
}

func (s *fakeSource) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	h := s.choose(height, wants)
	if h.delay > 0 {
		select {
		case <-bubble.After(h.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if h.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if h.fail || h.v == nil {
		return nil, fmt.Errorf("%w: height %d", errSource, height)
	}
	if len(wants) == 0 || len(below.Held) == 0 {
		s.t.Errorf("a request without wants at height %d", height)
	}
	if h.stale {
		below = avlstar.Below{} // the stubs may be others in that version
	}
	parts := [][]avlstar.Want{wants[:h.portion]}
	most, came := below.MaxBytes, 0
	if below.MaxBytes = 0; h.apart || most > 0 {
		parts = nil
		for i := range h.portion {
			parts = append(parts, wants[i:i+1])
		}
	}
	var multiproofs []*avlstar.Multiproof
	for _, part := range parts {
		b, err := h.v.Multiproof(part, below)
		if err != nil {
			return nil, err
		}
		multiproof, err := avlstar.DecodeMultiproof(b)
		if err != nil {
			return nil, err
		}
		multiproofs = append(multiproofs, multiproof)
		s.sent(len(b))
		if came += len(b); most > 0 && came >= most {
			break
		}
	}
	return multiproofs, nil
}

// shardedStore is the Store of a node that keeps no state: a start uses the root of the newest
// state.
type shardedStore struct {
	t      *testing.T
	height int64
	at     avlstar.Commitment
}

func (s *shardedStore) Load() (int64, *avlstar.Version, error) {
	if s.height == 0 {
		return 0, nil, nil
	}
	p, err := avlstar.NewPartial(s.at)
	if err != nil {
		return 0, nil, err
	}
	return s.height, p.Version(), nil
}

func (s *shardedStore) Durable() int64 { return s.height }

func (s *shardedStore) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	require.NotNil(s.t, base)
	if s.height > 0 {
		require.Equal(s.t, s.at, base.Commitment())
	}
	for i := 1; i < len(changes); i++ {
		require.Negative(s.t, bytes.Compare(changes[i-1].Key, changes[i].Key))
	}
	s.height, s.at = height, v.Commitment()
	return nil
}

// startSharded starts an application on the state in store, or on genesis.
func startSharded(t *testing.T, store *shardedStore, source Source, r avlstar.Retention, appState string) *App {
	t.Helper()
	a, err := New(Options{Store: store, Source: source, Retention: r, KeepRecent: 4, ChainID: testChain, ProposalTime: time.Hour})
	require.NoError(t, err)
	if a.Height() == 0 {
		_, err = a.InitChain(ctx, initRequest(appState))
		require.NoError(t, err)
	}
	return a
}

// startBare starts an application that has the root's hash of the latest state of full, and the
// records that it needs to start.
func startBare(t *testing.T, full *App, source Source, r avlstar.Retention) *App {
	t.Helper()
	height, v := full.Latest()
	defer v.Release()
	return startSharded(t, &shardedStore{t: t, height: height, at: v.Commitment()}, source, r, "")
}

// startBeside starts a chain in full-state mode with the transactions of prefill, a source over it,
// and an application that has the root's hash of its state.
func startBeside(t *testing.T, r avlstar.Retention) (source *fakeSource, local, a *App) {
	t.Helper()
	source = newFakeSource(t, nil)
	local = startChain(t, &memoryStore{}, witnessedState)
	runBlock(t, local, prefill(t)...)
	source.has(local)
	return source, local, startBare(t, local, source, r)
}

func processed(t *testing.T, a *App, last abci.CommitInfo, txs ...[]byte) bool {
	t.Helper()
	a.block.Lock()
	next := a.nextHeight()
	a.block.Unlock()
	res, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Height: next, Txs: txs, ProposedLastCommit: last})
	require.NoError(t, err)
	return res.IsAccepted()
}
