package app

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/tx"
)

var errDisk = errors.New("the disk is broken")

// failingPages serves the pages of a state. The reads numbered from, …, to-1 fail.
type failingPages struct {
	// Its chunks are the pages: with a chunk_bytes this small, both are the largest subtrees of
	// that size.
	state    *avlstar.Version
	pages    map[avlstar.Stub]uint32
	reads    atomic.Int64
	clients  atomic.Int64 // reads of pages without a system key
	from, to int64
	delay    time.Duration // of each read, in a bubble
}

func (p *failingPages) Page(s avlstar.Subtree) (*avlstar.Page, error) {
	if n := p.reads.Add(1) - 1; p.from <= n && n < p.to {
		return nil, errDisk
	}
	if len(s.First) > 0 && s.First[0] != reserved {
		p.clients.Add(1)
	}
	if p.delay > 0 {
		bubble.Sleep(p.delay)
	}
	k, ok := p.pages[s.Stub]
	if !ok {
		return nil, fmt.Errorf("no page %v", s.Stub)
	}
	records, err := p.state.Chunk(k)
	if err != nil {
		return nil, err
	}
	return avlstar.VerifyPage(s.Stub, records)
}

// heal makes every read succeed.
func (p *failingPages) heal() { p.from, p.to = 0, 0 }

// pagedStore is a Store with a single state.
type pagedStore struct {
	height int64
	v      *avlstar.Version
}

func (s *pagedStore) Load() (int64, *avlstar.Version, error) { return s.height, s.v, nil }
func (s *pagedStore) Durable() int64                         { return s.height }
func (s *pagedStore) Commit(int64, *avlstar.Version, *avlstar.Version, []avlstar.Change) error {
	return nil
}

// pagedState makes trees of one state with only the nodes above pages in memory.
type pagedState struct {
	height int64
	full   *avlstar.Version
	pages  map[avlstar.Stub]uint32
}

func newPagedState(t *testing.T) *pagedState {
	t.Helper()
	a := startChain(t, &memoryStore{}, `{"chunk_bytes": 200, "open": true, "admins": ["@root", "@root2"], "grants": [
		{"grantee": "@alice", "prefix": "a", "quota": 5000}, {"grantee": "@bob", "prefix": "a1"}, {"grantee": "*", "prefix": "c", "quota": 3000}]}`)
	var operations []tx.Operation
	for i := range 60 {
		operations = append(operations, put(fmt.Sprintf("a%d", i), fmt.Sprint("value ", i)))
	}
	runBlock(t, a, sign(t, "alice", 0, operations...), sign(t, "root", 0, validatorOp(account("v2"), 3), grantOp(account("carol"), "x", 0)),
		[]byte("text=1"))
	runBlock(t, a, sign(t, "root", 1, upgradeOp(2, 3)))
	v := latest(t, a)
	s := &pagedState{height: a.Height(), full: v, pages: map[avlstar.Stub]uint32{}}
	for k, e := range v.Manifest().Entries {
		s.pages[e.Root] = uint32(k)
	}
	return s
}

// app starts an application on the state, whose pages do not fail yet.
func (s *pagedState) app(t *testing.T) (*App, *failingPages) {
	t.Helper()
	p := &failingPages{state: s.full, pages: s.pages}
	v, err := avlstar.FromLeavesPaged(s.full.ChunkBytes(), avlstar.Paging{Pages: p, Budget: func() int64 { return 1 << 40 }}, s.full.Leaves())
	require.NoError(t, err)
	a, err := New(Options{Store: &pagedStore{s.height, v}, ChainID: testChain, NewestVersion: 2, ProposalTime: time.Hour})
	require.NoError(t, err)
	return a, p
}

// answer is the result of a reader, for comparison; err is set if it failed.
type answer struct {
	what any
	err  error
}

// answerOf returns an error for the code that reports to a client that the state cannot be read.
func answerOf(res interface{ GetCode() uint32 }, log string, err error) answer {
	if err == nil && res.GetCode() == uint32(tx.CodeUnreadable) {
		err = fmt.Errorf("%w: %s", errDisk, log)
	}
	return answer{res, err}
}

func query(path string, data []byte, prove bool) func(*App) answer {
	return func(a *App) answer {
		res, err := a.Query(ctx, &abci.RequestQuery{Path: path, Data: data, Prove: prove})
		return answerOf(res, res.GetLog(), err)
	}
}

func check(t *testing.T, raw []byte) func(*App) answer {
	t.Helper()
	return func(a *App) answer {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw})
		return answerOf(res, res.GetLog(), err)
	}
}

// readers returns all calls that read the state.
func readers(t *testing.T) map[string]func(*App) answer {
	block := [][]byte{
		sign(t, "alice", 1, put("a7", "other"), put("a61", "new"), del("a8"), cas("a9", "value 9", "x"), cas("a10", "wrong", "x")),
		sign(t, "alice", 2, read("a20"), read("absent"), put("a200", "of alice")),
		sign(t, "bob", 0, put("a17", "bob's"), del("a5")),
		sign(t, "carol", 0, put("x", "1"), put("c1", "everyone's"), put("a", "no right")),
		sign(t, "dave", 5, put("c", "2")),
		sign(t, "root", 2, validatorOp(account("v3"), 1), validatorOp(account("v1"), 0), grantOp(account("dave"), "d", 9), revokeOp(account("bob"), "a1")),
		sign(t, "root", 3, adminOp(account("root2"), true), adminOp(account("root"), true)),
		sign(t, "root", 3, upgradeOp(2, 0), upgradeOp(2, 5)),
		[]byte("text=2"), []byte("other=3"), []byte("a3=4"),
	}
	all := map[string]func(*App) answer{
		"FinalizeBlock": func(a *App) answer {
			res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: a.Height() + 1, Txs: block})
			return answer{res, err}
		},
		"PrepareProposal": func(a *App) answer {
			res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: block, MaxTxBytes: 1 << 20})
			return answer{res, err}
		},
		"Query key":         query(PathKey, []byte("a7"), false),
		"Query key, proof":  query(PathKey, []byte("a7"), true),
		"Query absent":      query(PathKey, []byte("absent"), true),
		"Query range":       query(PathRange, must((&RangeRequest{Start: []byte("a2"), End: []byte("a4")}).Marshal()), false),
		"Query range proof": query(PathRange, must((&RangeRequest{Start: []byte("a2"), End: []byte("a4")}).Marshal()), true),
		"Query nonce":       query(PathNonce, account("alice"), false),
		"Info":              func(a *App) answer { res, err := a.Info(ctx, &abci.RequestInfo{}); return answer{res, err} },
		"CanGoOn":           func(a *App) answer { return answer{nil, a.CanGoOn()} },
		"ReadParams":        func(a *App) answer { p, err := ReadParams(a.block.version); return answer{p, err} },
		"readUpgrade":       func(a *App) answer { u, err := readUpgrade(a.block.version); return answer{u, err} },
		"canWrite":          func(a *App) answer { can, err := canWrite(a.block.version); return answer{can, err} },
		"everything":        func(a *App) answer { all, err := everything(a.block.version); return answer{all, err} },
	}
	for i, raw := range block {
		all[fmt.Sprint("CheckTx ", i)] = check(t, raw)
	}
	return all
}

// TestWhatCannotBeRead makes every page read of each reader fail, one by one: alone, and with all
// later reads. The reader must fail, or return the usual result if it read the page again or did
// not need it. It must never return a result as if a key were absent. Afterwards, when the disk
// works again, it returns the usual result.
func TestWhatCannotBeRead(t *testing.T) {
	state := newPagedState(t)
	for name, read := range readers(t) {
		t.Run(name, func(t *testing.T) {
			a, pages := state.app(t)
			before := pages.reads.Load()
			want := read(a)
			require.NoError(t, want.err)
			reads := pages.reads.Load() - before
			require.NotZero(t, reads)
			for n := range reads {
				for _, forGood := range []bool{false, true} {
					a, pages := state.app(t)
					pages.from = pages.reads.Load() + n
					pages.to = pages.from + 1
					if forGood {
						pages.to = 1 << 40
					}
					got := read(a)
					if forGood || got.err != nil {
						require.ErrorIs(t, got.err, errDisk, "read %d of %d", n, reads)
					} else {
						require.Equal(t, want, got, "read %d of %d", n, reads)
					}
					pages.heal()
					require.Equal(t, want, read(a), "the disk was repaired after read %d of %d", n, reads)
				}
			}
		})
	}
}
