package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/client"
)

// Config says who does what to which keys. Zero values of numbers stand for the defaults.
type Config struct {
	Nodes   []string // URLs of the RPC servers of honest nodes
	ChainID string
	// Prefix of the keys. The accounts must be allowed to write there, and nobody else may, nor may
	// any key be there at the start: a run that follows another one on the same chain has a prefix
	// of its own.
	Prefix string
	Seed   uint64

	// (5) do one transaction after the other, each with accounts of its own
	Clients int
	// (4) that each are written alone; few, so that clients get in each other's way
	Keys  int
	Group int // (3) keys that are written and read several at once
	// Old: one of the nodes is of the oldest build with app version 1, so that operations that came
	// later are left out.
	Old        bool
	ValueBytes int // (64) a value has at least
	// (8 s) how long a client waits for its transaction before it calls it a Maybe
	Patience time.Duration
	// (100 ms) on average, between two transactions of a client, and between two reads of a reader
	Pause time.Duration

	// Trust is what readers verify from; nil: nobody reads with proofs.
	Trust   *client.Trust
	Readers int // (2)

	connect func(ctx context.Context, node, account string) (store, error) // nil: connectStarling
	source  func(ctx context.Context, node string) (source, error)         // nil: connectSource
	head    func(ctx context.Context, node string) (int64, error)          // nil: headOf
}

// connectPatience limits the wait for a node's first answer: one that is paused never gives it.
const connectPatience = 2 * time.Second

// afterFailure is the pause of a client whose node gave no answer, so that no node is flooded while
// the network is down.
const afterFailure = 250 * time.Millisecond

func (c *Config) complete() error {
	switch {
	case len(c.Nodes) == 0:
		return errors.New("history: no node was given to send transactions to")
	case c.Prefix == "":
		return errors.New("history: no prefix was given: the clients need keys that nobody else writes")
	}
	c.Nodes = slices.Clone(c.Nodes)
	c.Clients, c.Keys, c.Group, c.Readers = cmp.Or(c.Clients, 5), cmp.Or(c.Keys, 4), cmp.Or(c.Group, 3), cmp.Or(c.Readers, 2)
	c.ValueBytes = cmp.Or(c.ValueBytes, 64)
	c.Patience, c.Pause = cmp.Or(c.Patience, 8*time.Second), cmp.Or(c.Pause, 100*time.Millisecond)
	if c.connect == nil {
		c.connect = func(ctx context.Context, node, account string) (store, error) {
			return connectStarling(ctx, node, c.ChainID, account)
		}
	}
	if c.source == nil && c.Trust != nil {
		c.source = func(ctx context.Context, node string) (source, error) {
			return connectSource(ctx, node, c.ChainID, *c.Trust)
		}
	}
	if c.source == nil {
		c.Readers = 0
	}
	if c.head == nil {
		c.head = headOf
	}
	return nil
}

// Run is a load whose history is recorded. Its methods may be called concurrently.
type Run struct {
	config Config
	cancel context.CancelFunc
	wg     sync.WaitGroup
	start  time.Time

	mu struct {
		sync.Mutex
		nodes     []string
		processes int // numbers given so far
		// what somebody read or wrote last: what a compare-and-put expects
		seen    map[string]string
		history History
	}
}

// Start lets clients and readers work until ctx ends or Stop is called. At least one node must
// answer, to say at which height they begin.
func Start(ctx context.Context, config Config) (*Run, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	var errs []error
	from := int64(-1)
	for _, node := range config.Nodes {
		head, err := bounded(ctx, connectPatience, func(ctx context.Context) (int64, error) { return config.head(ctx, node) })
		if err == nil {
			from = head
			break
		}
		errs = append(errs, err)
	}
	if from < 0 {
		return nil, fmt.Errorf("history: no node says at which height it is: %w", errors.Join(errs...))
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Run{config: config, cancel: cancel, start: time.Now()}
	r.mu.nodes, r.mu.seen, r.mu.processes = config.Nodes, map[string]string{}, config.Clients
	r.mu.history = History{ChainID: config.ChainID, Prefix: config.Prefix, Seed: config.Seed, Start: r.start.UTC(), From: from}
	for id := range config.Clients {
		r.wg.Go(func() { r.work(ctx, id) })
	}
	for id := range config.Readers {
		r.wg.Go(func() { r.read(ctx, id) })
	}
	return r, nil
}

// AddNode has clients and readers use one more node, such as one that has joined.
func (r *Run) AddNode(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.nodes = append(r.mu.nodes, node)
}

// Progress is how many transactions were acknowledged so far, and how many are a Maybe.
func (r *Run) Progress() (acknowledged, maybe int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := r.mu.history.Count()
	return count[OK] + count[CompareFailed], count[Maybe]
}

// Disturb notes that a node (empty: every one) is being disturbed, until the function that it
// returns is called.
func (r *Run) Disturb(node string) (over func()) {
	from := r.now()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.history.Disturbed = append(r.mu.history.Disturbed, Disturbance{Node: node, From: from, To: r.now()})
	}
}

// Stop has clients and readers end, which takes up to Config.Patience, and returns what they saw.
func (r *Run) Stop() *History {
	r.cancel()
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.mu.history
	slices.SortStableFunc(h.Transactions, func(a, b Transaction) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortStableFunc(h.Reads, func(a, b ProvedRead) int { return cmp.Compare(a.Call, b.Call) })
	return &h
}

func (r *Run) now() time.Duration { return time.Since(r.start) }

// nodeAfter returns another node than the one that was asked last, where there is one.
func (r *Run) nodeAfter(random *rand.Rand, last string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(r.mu.nodes), func(node string) bool { return node == last })
	if len(others) == 0 {
		return last
	}
	return others[random.IntN(len(others))]
}

func (r *Run) newProcess() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.processes++
	return r.mu.processes - 1
}

func (r *Run) record(t Transaction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.history.Transactions = append(r.mu.history.Transactions, t)
	if t.Outcome != OK {
		return
	}
	r.see(t.Operations, t.Results)
}

// see remembers what operations have read or written. r.mu is held.
func (r *Run) see(operations []Operation, results []Result) {
	for i, o := range operations {
		switch {
		case i >= len(results) || o.Kind == Compare || o.Kind == DeleteRange:
		case o.Kind == Read:
			r.mu.seen[o.Key] = results[i].Value
		case o.Kind == ReadRange:
			for _, e := range results[i].Entries {
				r.mu.seen[e.Key] = e.Value
			}
		case o.Kind == Txn:
			r.see(o.branch(results[i].Holds), results[i].Results)
		default:
			r.mu.seen[o.Key] = o.Value
		}
	}
}

// work is a client: one transaction after the other, and another node after each failure. Each
// connection has an account of its own, so that neither a Maybe nor a node that lags leaves the
// next nonce in doubt.
func (r *Run) work(ctx context.Context, id int) {
	c := drawer{Config: &r.config, random: rand.New(rand.NewPCG(r.config.Seed, uint64(id)))}
	process := id
	var (
		to   store
		node string
	)
	for connections := 0; ctx.Err() == nil; {
		if to == nil {
			node = r.nodeAfter(c.random, node)
			connections++
			account := fmt.Sprintf("history %s, seed %d, client %d, connection %d", r.config.Prefix, r.config.Seed, id, connections)
			var err error
			to, err = bounded(ctx, connectPatience, func(ctx context.Context) (store, error) { return r.config.connect(ctx, node, account) })
			if err != nil {
				to = nil
				pause(ctx, afterFailure)
				continue
			}
		}
		t := Transaction{Process: process, Node: node, Operations: c.transaction(process, r.seen), Call: r.now()}
		// What is under way when the run ends is still waited for, so that little remains unknown.
		a, _ := bounded(context.WithoutCancel(ctx), r.config.Patience, func(ctx context.Context) (answer, error) {
			return to.execute(ctx, t.Operations), nil
		})
		t.Return, t.Outcome, t.Results, t.Hash, t.Height = r.now(), a.outcome, a.results, a.hash, a.height
		if a.why != nil {
			t.Why = a.why.Error()
		}
		r.record(t)
		switch t.Outcome {
		case OK, CompareFailed:
			pause(ctx, time.Duration(c.random.Int64N(2*int64(r.config.Pause))))
			continue
		case Maybe:
			process = r.newProcess()
		case Refused:
		}
		to = nil
		pause(ctx, afterFailure)
	}
}

// seen returns what somebody read or wrote last at a key, empty where it is absent or nobody did.
func (r *Run) seen(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.seen[key]
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// bounded calls f with a context that ends after limit.
func bounded[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}
