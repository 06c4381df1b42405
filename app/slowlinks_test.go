package app

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// slowNetwork is a set of validators whose links to the storage nodes are slow, each independently.
// Some of them, fewer than a third, are Byzantine and propose and vote arbitrarily.
//
//	round r:  proposer r mod n ──► ProcessProposal of all, in parallel ──► more than two thirds: decided
//	                                                                   └─► fewer: round r+1, another proposal
//	decided:  FinalizeBlock of all, also of validators that had rejected it
type slowNetwork struct {
	t     *testing.T
	rnd   *rand.Rand
	slow  time.Duration // the longest delay of a request
	liars int           // number of Byzantine validators, the first ones

	local      *App // in full-state mode, for the correct results
	validators []*App
	sources    []*fakeSource
	generator  *generator
	model      *model
	rounds     []int // number of rounds of each height
	decided    int   // number of transactions
}

func newSlowNetwork(t *testing.T, rnd *rand.Rand, slow time.Duration) *slowNetwork {
	n := &slowNetwork{t: t, rnd: rnd, slow: slow, liars: 2, local: startChain(t, &memoryStore{}, witnessedState)}
	n.generator = &generator{Rand: rnd, t: t, names: []string{"alice", "bob", "carol", "root"}}
	n.model = &model{state: map[string]string{}, open: true}
	runBlock(t, n.local, prefill(t)...)
	for range 7 {
		source := newFakeSource(t, nil)
		source.has(n.local)
		n.sources = append(n.sources, source)
		n.validators = append(n.validators, startBare(t, n.local, source, avlstar.Retention{Depth: rnd.IntN(4), Window: 1 + rnd.IntN(3)}))
	}
	return n
}

// links draws the delays of a round.
func (n *slowNetwork) links() {
	for _, s := range n.sources {
		s.delayed(time.Duration(n.rnd.Int64N(int64(n.slow))))
	}
}

// proposal returns a validator's proposal from the mempool. Most validators have the whole state,
// as in full-state mode, so that they leave nothing out; Byzantine ones propose transactions whose
// nodes no validator could fetch ahead.
func (n *slowNetwork) proposal(who int, mempool [][]byte) [][]byte {
	a := n.local
	if n.rnd.IntN(4) == 0 {
		a = n.validators[who]
	}
	if who < n.liars {
		var operations []tx.Operation
		for range 20 {
			operations = append(operations, put(fmt.Sprintf("a%d", 7*n.rnd.IntN(50)), "theirs"), del(fmt.Sprintf("ab%d", 7*n.rnd.IntN(50))))
		}
		return [][]byte{sign(n.t, "alice", n.model.u64(NonceKey(account("alice"))), operations...)}
	}
	res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: mempool, MaxTxBytes: 1 << 20})
	require.NoError(n.t, err)
	return res.Txs
}

// votes returns the number of prevotes for a block.
func (n *slowNetwork) votes(block [][]byte) (prevotes int) {
	var all sync.WaitGroup
	accepted := make([]bool, len(n.validators))
	for i := range n.validators {
		if i < n.liars {
			accepted[i] = n.rnd.IntN(2) == 0
			continue
		}
		all.Go(func() { accepted[i] = processed(n.t, n.validators[i], abci.CommitInfo{}, block...) })
	}
	all.Wait()
	for _, yes := range accepted {
		if yes {
			prevotes++
		}
	}
	return prevotes
}

// height decides a block, and makes all validators execute it.
func (n *slowNetwork) height() {
	t := n.t
	var mempool [][]byte
	for waiting := map[string]uint64{}; len(mempool) < 10; {
		mempool = append(mempool, n.generator.transaction(n.model, waiting))
	}
	var block [][]byte
	rounds := 1
	for ; ; rounds++ {
		require.Less(t, rounds, 100, "with links of %v nothing is decided", n.slow)
		n.links()
		block = n.proposal((int(n.local.Height())+rounds)%len(n.validators), mempool)
		if 3*n.votes(block) > 2*len(n.validators) {
			break
		}
	}
	n.rounds, n.decided = append(n.rounds, rounds), n.decided+len(block)
	want := runBlock(t, n.local, block...)
	n.links()
	var all sync.WaitGroup
	for i, a := range n.validators {
		all.Go(func() { require.Equal(t, want, runBlock(t, a, block...), "validator %d", i) })
	}
	all.Wait()
	for _, s := range n.sources {
		s.has(n.local)
	}
	_, v := n.local.Latest()
	defer v.Release()
	clear(n.model.state)
	for _, kv := range entries(t, v) {
		n.model.state[string(kv.Key)] = string(kv.Value)
	}
}

// However slow the links are, each height is decided, since the time for a proposal grows with each
// proposal at its height. Whatever the rounds were, all validators have the results of full-state
// mode.
func TestSlowLinks(t *testing.T) {
	rnd := seeds.Rand(t)
	heights := 12
	if testing.Short() {
		heights = 5
	}
	for _, slow := range []time.Duration{DefaultWitnessTimeout / 2, 3 * DefaultWitnessTimeout, 20 * DefaultWitnessTimeout} {
		world := rnd.Uint64()
		t.Run(slow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newSlowNetwork(t, rand.New(rand.NewPCG(world, 7)), slow)
				began, total, most := time.Now(), 0, 0
				for len(n.rounds) < heights || n.decided == 0 { // a block can be empty
					require.Less(t, len(n.rounds), 100*heights)
					n.height()
				}
				for _, a := range n.validators {
					a.Stop()
				}
				for _, rounds := range n.rounds {
					total, most = total+rounds, max(most, rounds)
				}
				t.Logf("requests of up to %v: %d heights with %d transactions in %d rounds, %d at most, %v", slow, heights, n.decided, total, most, time.Since(began).Round(time.Second))
				// A Byzantine proposal or vote costs a round. A request that takes n times the
				// limit costs n rounds, and nodes that have arrived stay.
				require.LessOrEqual(t, most, 4*(n.liars+1)+int(2*slow/DefaultWitnessTimeout))
			})
		})
	}
}
