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
	"github.com/starling-kv/starling/internal/sleep"
)

// Config configures clients, readers and keys. Zero values of numbers select the defaults, which
// the comments give in parentheses.
type Config struct {
	Nodes   []string // URLs of the RPC servers of honest nodes
	ChainID string
	// Prefix of the keys. The accounts must be allowed to write there, no other account may, and no
	// key may exist there at the start: a further run on the same chain needs another prefix.
	Prefix string
	Seed   uint64

	// (5) number of clients; each executes one transaction after another, with its own accounts
	Clients int
	// (4) number of keys that are written one at a time; few, so that clients conflict
	Keys  int
	Group int // (3) number of keys that one transaction writes or reads together
	// number of numeric keys that clients add to; 0 if the chain's app version has no add
	Counters   int
	ValueBytes int // (64) minimum length of a value
	// (8 s) time that a client waits for its transaction before it records a Maybe
	Patience time.Duration
	// (100 ms) average pause between two transactions of a client, and between two reads of a
	// reader
	Pause time.Duration

	// Trust is the trust root of the readers; nil: no reader reads with proofs.
	Trust   *client.Trust
	Readers int // (2)

	connect func(ctx context.Context, node, account string) (store, error) // nil: connectStarling
	source  func(ctx context.Context, node string) (source, error)         // nil: connectSource
	head    func(ctx context.Context, node string) (int64, error)          // nil: headOf
}

// connectPatience limits the wait for a node's first answer: a paused node never sends it.
const connectPatience = 2 * time.Second

// DefaultPatience is the time after which a client gives up on a transaction.
const DefaultPatience = 8 * time.Second

// afterFailure is the pause of a client whose node did not answer, so that clients do not flood
// nodes while the network is down.
const afterFailure = 250 * time.Millisecond

func (c *Config) complete() error {
	switch {
	case len(c.Nodes) == 0:
		return errors.New("history: no node was given")
	case c.Prefix == "":
		return errors.New("history: no prefix was given: only these clients may write under it")
	}
	c.Nodes = slices.Clone(c.Nodes)
	c.Clients, c.Keys, c.Group, c.Readers = cmp.Or(c.Clients, 5), cmp.Or(c.Keys, 4), cmp.Or(c.Group, 3), cmp.Or(c.Readers, 2)
	c.ValueBytes = cmp.Or(c.ValueBytes, 64)
	c.Patience, c.Pause = cmp.Or(c.Patience, DefaultPatience), cmp.Or(c.Pause, 100*time.Millisecond)
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
		processes int // number of process ids in use
		counters  int
		// the last value that a client read or wrote, by key: what a compare-and-put expects
		seen    map[string]string
		history History
	}
}

// Start starts clients and readers, which work until ctx ends or Stop is called. At least one node
// must answer with its height, at which the history begins.
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
		return nil, fmt.Errorf("history: no node returns its height: %w", errors.Join(errs...))
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Run{config: config, cancel: cancel, start: time.Now()}
	r.mu.nodes, r.mu.seen, r.mu.processes, r.mu.counters = config.Nodes, map[string]string{}, config.Clients, config.Counters
	r.mu.history = History{ChainID: config.ChainID, Prefix: config.Prefix, Seed: config.Seed, Start: r.start.UTC(), From: from}
	for id := range config.Clients {
		r.wg.Go(func() { r.work(ctx, id) })
	}
	for id := range config.Readers {
		r.wg.Go(func() { r.read(ctx, id) })
	}
	return r, nil
}

// AddNode adds a node for clients and readers, such as one that has joined.
func (r *Run) AddNode(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.nodes = append(r.mu.nodes, node)
}

// SetCounters sets the number of counters from now on, such as when an upgrade has begun.
func (r *Run) SetCounters(counters int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.counters = counters
}

func (r *Run) counters() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.counters
}

// Progress returns the number of transactions that were acknowledged so far, and of those that are
// a Maybe.
func (r *Run) Progress() (acknowledged, maybe int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := r.mu.history.Count()
	return count[OK] + count[Failed], count[Maybe]
}

// Disturb records that a node (empty: every node) is being disturbed, until the returned function
// is called.
func (r *Run) Disturb(node string) (over func()) {
	from := r.now()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.history.Disturbed = append(r.mu.history.Disturbed, Disturbance{Node: node, From: from, To: r.now()})
	}
}

// Stop ends clients and readers, which takes up to Config.Patience, and returns their history.
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

// nodeAfter returns a node other than the last one, if there is one.
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

// see records the values that operations have read or written. r.mu is held.
func (r *Run) see(operations []Operation, results []Result) {
	for i, o := range operations {
		switch {
		case i >= len(results) || o.Kind == Compare || o.Kind == DeleteRange || o.Kind == Add:
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

// work is a client: it executes one transaction after another, and changes the node after each
// failure. Each connection has a separate account, so that neither a Maybe nor a lagging node makes
// the next nonce uncertain.
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
				_ = sleep.For(ctx, afterFailure)
				continue
			}
		}
		t := Transaction{Process: process, Node: node, Operations: c.transaction(process, r.counters(), r.seen), Call: r.now()}
		// A transaction in flight when the run ends is still waited for, so that few outcomes
		// remain unknown.
		a, _ := bounded(context.WithoutCancel(ctx), r.config.Patience, func(ctx context.Context) (answer, error) {
			return to.execute(ctx, t.Operations), nil
		})
		t.Return, t.Outcome, t.Results, t.Hash, t.Height = r.now(), a.outcome, a.results, a.hash, a.height
		if a.why != nil {
			t.Why = a.why.Error()
		}
		r.record(t)
		switch t.Outcome {
		case OK, Failed:
			_ = sleep.For(ctx, time.Duration(c.random.Int64N(2*int64(r.config.Pause))))
			continue
		case Maybe:
			process = r.newProcess()
		case Refused:
		}
		to = nil
		_ = sleep.For(ctx, afterFailure)
	}
}

// seen returns the last value that a client read or wrote at a key; empty if the key was absent or
// never seen.
func (r *Run) seen(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.seen[key]
}

// bounded calls f with a context that ends after limit.
func bounded[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}
