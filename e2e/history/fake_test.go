package history

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const fakeChainID = "fake"

// fault is a misbehaviour of a fake chain.
type fault string

const (
	none fault = "none"
	// staleCache answers reads from a copy of the state that is refreshed only now and then.
	staleCache fault = "stale cache"
	// lostWrite now and then loses the last transactions' writes, though it acknowledged them.
	lostWrite fault = "lost write in a crash"
	// looseCompare executes other transactions between the comparison of a compare-and-put and its
	// put.
	looseCompare fault = "compare-and-put that is not atomic"
	// twice now and then executes a transaction again, a while later, as a retry without nonces
	// would.
	twice fault = "executed twice"
	// looseTxn executes other transactions between the conditions of a txn and its branch.
	looseTxn fault = "txn that is not atomic"
	// torn writes the keys of one transaction one at a time.
	torn fault = "torn transaction"
	// lostAdd acknowledges some adds that have no effect.
	lostAdd fault = "lost add"
	// addedTwice executes some adds twice.
	addedTwice fault = "add executed twice"
	// looseBound executes adds whatever their bounds are.
	looseBound fault = "bound that is ignored"
)

const (
	blockTime   = 50 * time.Millisecond
	cacheTime   = 400 * time.Millisecond
	crashTime   = 500 * time.Millisecond
	lateTime    = 2 * time.Second
	longestWait = 30 * time.Millisecond // one-way delay between client and chain
)

// fakeChain executes transactions one after another, and puts them into blocks. Clients use it in a
// synctest bubble, so a run takes no real time. Each client waits for different times, which differ
// by nanoseconds, so the result depends on the seed, not on the machine.
type fakeChain struct {
	fault fault
	start time.Time
	late  sync.WaitGroup // transactions that are still in flight

	seed uint64

	mu      sync.Mutex
	state   state
	older   state // at the last crash or refresh of the cache
	renewed time.Time
	nonces  int
	blocks  []Block
	states  []state          // after each block
	heights map[string]int64 // the last height that each node has reported
}

func newFakeChain(fault fault, seed uint64) *fakeChain {
	return &fakeChain{fault: fault, start: time.Now(), renewed: time.Now(), seed: seed, state: state{}, older: state{},
		heights: map[string]int64{}}
}

func (c *fakeChain) config(seed uint64) Config {
	return Config{Nodes: []string{"one", "two", "three"}, ChainID: fakeChainID, Prefix: "load/", Seed: seed, Keys: 3, Counters: 2, Pause: 20 * time.Millisecond,
		connect: func(_ context.Context, _, account string) (store, error) {
			return &fakeStore{c, c.random(account)}, nil
		},
		source: func(_ context.Context, node string) (source, error) { return &fakeNode{c, node, c.random(node)}, nil },
		head:   func(context.Context, string) (int64, error) { return 0, nil },
	}
}

// random returns the random source of one connection, so that a client's draws do not depend on the
// order of other clients'.
func (c *fakeChain) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(c.seed, h.Sum64()))
}

// fakeStore is a client's connection to the chain, which loses requests and answers.
type fakeStore struct {
	*fakeChain
	random *rand.Rand
}

func (s *fakeStore) draw(most time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(most)))
}

func (s *fakeStore) wait() { _ = sleep.For(context.Background(), s.draw(longestWait)) }

// afterwards executes a transaction after its client has stopped waiting.
func (s *fakeStore) afterwards(operations []Operation, raw []byte) {
	wait := longestWait + s.draw(lateTime)
	s.late.Go(func() {
		_ = sleep.For(context.Background(), wait)
		s.commit(operations, raw)
	})
}

func (s *fakeStore) execute(_ context.Context, operations []Operation) answer {
	s.wait()
	switch fate := s.random.IntN(100); {
	case fate < 2:
		return answer{outcome: Refused, why: errors.New("the request was lost")}
	case fate < 4:
		return answer{outcome: Maybe, why: errors.New("the request was lost, and the client cannot know")}
	case fate < 6:
		raw := s.sign(operations)
		s.afterwards(operations, raw)
		return answer{outcome: Maybe, hash: (&Executed{Raw: raw}).hash(), why: errors.New("the answer was lost")}
	case fate < 8:
		a := s.commit(operations, s.sign(operations))
		return answer{outcome: Maybe, hash: a.hash, why: errors.New("the answer was lost")}
	case fate < 18 && s.fault == twice:
		s.afterwards(operations, s.sign(operations))
	}
	a := s.faulty(operations)
	s.wait()
	return a
}

// faulty executes a transaction with the fault.
func (s *fakeStore) faulty(operations []Operation) answer {
	first := operations[0]
	switch {
	case s.fault == staleCache && len(operations) == 1 && first.Kind == Read:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.renew(cacheTime)
		value, found := s.older[first.Key]
		return answer{outcome: OK, results: []Result{{Found: found, Value: value}}, hash: []byte("none"), height: s.height()}
	case s.fault == looseCompare && len(operations) == 1 && first.Kind == CompareAndPut:
		s.mu.Lock()
		equal := s.state[first.Key] == first.Expected
		s.mu.Unlock()
		if equal {
			s.wait()
			a := s.commit([]Operation{{Kind: Put, Key: first.Key, Value: first.Value}}, s.sign(operations))
			// Found is that of the comparison
			a.results = []Result{{Found: first.Expected != ""}}
			return a
		}
	case s.fault == looseTxn && first.Kind == Txn:
		s.mu.Lock()
		_, before, _ := s.state.execute(operations)
		s.mu.Unlock()
		for range 20 { // so that the txns of a run meet others often enough
			s.wait()
		}
		ran := Operation{Kind: Txn, Then: first.branch(true)}
		if !before[0].Holds {
			ran = Operation{Kind: Txn, If: []Condition{{Key: "nobody writes it", Present: true}}, Else: first.branch(false)}
		}
		return s.commit([]Operation{ran}, s.sign(operations))
	case s.fault == torn && len(operations) > 1:
		all := answer{outcome: OK}
		for i := range operations {
			a := s.commit(operations[i:i+1], s.sign(operations[i:i+1]))
			if a.outcome != OK {
				return a
			}
			all.results = append(all.results, a.results...)
			s.wait()
		}
		return all
	}
	return s.commit(operations, s.sign(operations))
}

// renew takes a new copy of the state if the last one is old enough. c.mu is held.
func (c *fakeChain) renew(every time.Duration) bool {
	if time.Since(c.renewed) < every {
		return false
	}
	c.older, c.renewed = maps.Clone(c.state), time.Now()
	return true
}

// height returns the height of the current block. c.mu is held.
func (c *fakeChain) height() int64 { return 1 + int64(time.Since(c.start)/blockTime) }

func (c *fakeChain) sign(operations []Operation) []byte {
	list := make([]tx.Operation, len(operations))
	for i, o := range operations {
		list[i] = o.encode()
	}
	c.mu.Lock()
	c.nonces++
	nonce := c.nonces
	c.mu.Unlock()
	raw, err := tx.Sign(ed25519.GenPrivKeyFromSecret([]byte("fake")), fakeChainID, &tx.Body{Nonce: uint64(nonce), Operations: list})
	if err != nil {
		panic(err)
	}
	return raw
}

// commit executes a transaction in the current block.
func (c *fakeChain) commit(operations []Operation, raw []byte) answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == lostWrite && time.Since(c.renewed) > crashTime {
		c.state = c.older // everything since the last crash is gone
		c.renew(crashTime)
	}
	return c.append(c.height(), operations, raw)
}

// append executes a transaction as the last one of a block. c.mu is held.
func (c *fakeChain) append(height int64, operations []Operation, raw []byte) answer {
	c.fill(height)
	b := &c.blocks[height-1]
	next, results, code := c.count(operations)
	e := Executed{Raw: raw, Code: uint32(code)}
	a := answer{outcome: OK, results: results, hash: e.hash(), height: height}
	if code != tx.CodeOK {
		a.outcome = Failed
	} else {
		e.Data = encodeResults(results)
		c.state, c.states[height-1] = next, next
	}
	b.Transactions = append(b.Transactions, e)
	return a
}

// count executes operations, with the fault if it is one of adds. c.mu is held.
func (c *fakeChain) count(operations []Operation) (next state, results []Result, code tx.Code) {
	if first := operations[0]; c.fault == looseBound && first.Kind == Add {
		first.Least, first.Most = math.MinInt64, math.MaxInt64
		operations = []Operation{first}
	}
	next, results, code = c.state.execute(operations)
	if operations[0].Kind == Add && c.nonces%4 == 0 {
		switch c.fault {
		case lostAdd:
			next = c.state
		case addedTwice:
			next, _, _ = next.execute(operations)
		}
	}
	return next, results, code
}

func encodeResults(results []Result) []byte {
	var message tx.Result
	for _, r := range results {
		message.Results = append(message.Results, r.encode())
	}
	data, err := message.Marshal()
	if err != nil {
		panic(err)
	}
	return data
}

// encode is the inverse of resultOf.
func (r Result) encode() tx.OperationResult {
	o := tx.OperationResult{Found: r.Found, Value: []byte(r.Value), Deleted: uint32(r.Deleted), More: r.More, Succeeded: r.Holds}
	for _, e := range r.Entries {
		o.Entries = append(o.Entries, tx.KeyValue{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	for _, inner := range r.Results {
		o.Results = append(o.Results, inner.encode())
	}
	return o
}

// fill makes the blocks up to a height. c.mu is held.
func (c *fakeChain) fill(height int64) {
	for int64(len(c.blocks)) < height {
		made := int64(len(c.blocks) + 1)
		c.blocks = append(c.blocks, Block{Height: made, Time: c.start.Add(time.Duration(made) * blockTime)})
		c.states = append(c.states, c.state)
	}
}

// fakeNode returns proved answers, as of a node that lags by up to three blocks.
type fakeNode struct {
	chain  *fakeChain
	name   string
	random *rand.Rand
}

func (n *fakeNode) head(context.Context) (int64, error) {
	c := n.chain
	c.mu.Lock()
	defer c.mu.Unlock()
	// the last block is not complete
	height := max(c.heights[n.name], c.height()-1-n.random.Int64N(4), 0)
	c.heights[n.name] = height
	return height, nil
}

func (n *fakeNode) get(ctx context.Context, key string) (*client.Value, error) {
	height, err := n.head(ctx)
	if err != nil || height == 0 {
		return nil, client.ErrUntrusted
	}
	c := n.chain
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fill(height)
	value, found := c.states[height-1][key]
	return &client.Value{State: client.State{Height: height, Time: c.blocks[height-1].Time}, Key: []byte(key), Value: []byte(value), Found: found}, nil
}

// fakeRun returns the history of a chain with a fault, and its blocks.
func fakeRun(t *testing.T, fault fault, seed uint64, length time.Duration) (h *History, blocks []Block) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		chain := newFakeChain(fault, seed)
		run, err := Start(t.Context(), chain.config(seed))
		require.NoError(t, err)
		_ = sleep.For(t.Context(), length)
		h = run.Stop()
		chain.late.Wait()
		chain.fill(h.Top())
		blocks = chain.blocks
	})
	return h, blocks
}

// checkPatience is far longer than any check here takes, on any machine.
const checkPatience = 2 * time.Minute

func TestHonestChain(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h, blocks := fakeRun(t, none, seed, 6*time.Second)
			count := h.Count()
			require.Positive(t, count[OK])
			require.Positive(t, count[Maybe])
			adds := map[Outcome]int{}
			for _, tr := range h.Transactions {
				if tr.Operations[0].Kind == Add {
					adds[tr.Outcome]++
				}
			}
			require.Positive(t, adds[OK])
			require.Positive(t, adds[Failed])
			require.NotEmpty(t, h.Reads)
			require.NoError(t, h.CheckLinearizable(checkPatience, ""), h.Summary())
			require.NoError(t, h.CheckBlocks(blocks), h.Summary())
			require.NoError(t, h.CheckReads(Bounds{Age: 5 * blockTime}), h.Summary())
		})
	}
}

// Every fault of a store must be visible in the clients' history alone, with every seed.
func TestFaultyChains(t *testing.T) {
	for _, fault := range []fault{staleCache, lostWrite, looseCompare, looseTxn, twice, torn, lostAdd, addedTwice, looseBound} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%s/%d", fault, seed), func(t *testing.T) {
				h, blocks := fakeRun(t, fault, seed, 6*time.Second)
				err := h.CheckLinearizable(checkPatience, "")
				require.ErrorContains(t, err, "no order of the", h.Summary())
				require.Error(t, h.CheckBlocks(blocks))
			})
		}
	}
}
