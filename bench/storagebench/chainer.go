package storagebench

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
	"github.com/starling-kv/starling/storage/sgc"
	"github.com/starling-kv/starling/storage/treestore"
)

// chainer makes the chain as a node does: the tree is in memory, and its changes go to the state
// store. The stores have a node's own settings.
//
//	Apply ─▶ Write ─▶ flusher …            role durable
//	Apply                                  role memory
//	page ─▶ Apply ─▶ Write ─▶ flusher …    role writer
//	Open, Load from the leaves or the page list ─▶ Apply ─▶ Write …    role opener
//	page ─▶ Apply ─▶ Write ─▶ flusher …    role paged: the tree above its pages, the rest in a cache
type chainer struct {
	begin
	chain  *chain
	tree   *avlstar.Version
	zone   *storage.Zone
	store  *treestore.Store
	blocks *blocks.Zone
	height int64
}

func newChainer(b begin) *chainer { return &chainer{begin: b, chain: newChain(b.Spec)} }

func (c *chainer) close() (err error) {
	if c.zone != nil {
		err = c.zone.Close()
	}
	if c.blocks != nil {
		err = errors.Join(err, c.blocks.Close())
	}
	return err
}

func (c *chainer) do(r request) (answer, error) {
	if r.Op == opRecover {
		return c.recover(r.Start)
	}
	if err := c.openOnce(); err != nil {
		return answer{}, err
	}
	switch r.Op {
	case opFill:
		return c.fill(r.N)
	case opWrite:
		return c.write(r.N)
	case opDie:
		return c.die(r.N)
	case opRedo:
		return c.redo(int64(r.N))
	case opCommit:
		return c.commit(r.N, r.Paced)
	case opUnpaced:
		return c.unpaced(r.N)
	case opPage:
		return answer{}, c.page()
	case opGet, opAbsent, opProve:
		return c.query(r)
	}
	return answer{}, fmt.Errorf("unknown request %q", r.Op)
}

func (c *chainer) openZones(start string) (err error) {
	zone := storage.Options{Logger: errorsOnly{}, Generations: true}
	if c.zone, err = storage.Open(filepath.Join(c.Dir, "state"), zone); err != nil {
		return err
	}
	o := treestore.Options{Zone: c.zone, ChainID: "bench", InMemory: start != startPaged}
	if start != startLeaves {
		o.Cache = sgc.New(cacheBytes)
	}
	c.store = treestore.New(o)
	c.blocks, err = blocks.Open(filepath.Join(c.Dir, "blocks"), blocks.Options{Logger: errorsOnly{}})
	return err
}

// cacheBytes is the default size of a node's cache.
const cacheBytes = 256 << 20

func (c *chainer) openOnce() (err error) {
	if c.tree != nil {
		return nil
	}
	if c.Role != roleMemory {
		if err := c.openZones(startMemory); err != nil {
			return err
		}
	}
	c.tree, err = avlstar.Empty(avlstar.DefaultChunkBytes)
	return err
}

// changes returns the changes of the next step in random order, like those of transactions.
func (c *chainer) changes() []avlstar.Change {
	of := c.chain.next()
	random := rand.New(rand.NewPCG(c.Spec.Seed, uint64(c.chain.step))) //nolint:gosec // reproducible
	random.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	changes := make([]avlstar.Change, len(of))
	for i, change := range of {
		changes[i].Key = c.chain.key(change.id)
		if !change.delete {
			changes[i].Value = c.chain.appendValue(make([]byte, 0, valueBytes+8), change.id, c.chain.step)
		}
	}
	return changes
}

// apply commits a block as a node does, from the last transaction to the response with the app
// hash.
func (c *chainer) apply(changes []avlstar.Change) error {
	next, err := c.tree.Apply(changes)
	if err != nil {
		return err
	}
	if c.zone == nil {
		next.AppHash() // a commit computes it
	} else if err := c.store.Commit(c.height+1, next, c.tree, changes); err != nil {
		next.Release()
		return err
	}
	c.height++
	c.tree.Release()
	c.tree = next
	return nil
}

// write makes n steps without measuring them, and waits until they are durable.
func (c *chainer) write(n int) (answer, error) {
	for range n {
		if err := c.apply(c.changes()); err != nil {
			return answer{}, err
		}
	}
	if c.zone != nil {
		if err := c.zone.Flush(); err != nil {
			return answer{}, err
		}
	}
	return answer{Done: n, Keys: int(c.tree.Len()), Height: c.height}, nil
}

// die waits for a flush, makes n blocks, writes them to the block store, too, and kills this
// process.
func (c *chainer) die(n int) (answer, error) {
	c.chain.skipTo(c.height)
	if err := c.zone.Flush(); err != nil {
		return answer{}, err
	}
	dbs := map[byte]dbm.DB{}
	for letter, id := range dbNames {
		dbs[letter] = c.blocks.DB(id)
	}
	for range n {
		for _, b := range c.chain.blockData(int(c.height) + 1) {
			if err := writeTo(dbs[b.db], b); err != nil {
				return answer{}, err
			}
		}
		if err := c.apply(c.changes()); err != nil {
			return answer{}, err
		}
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return answer{}, err
	}
	if err := self.Kill(); err != nil {
		return answer{}, err
	}
	select {} // wait for the signal
}

// recover measures a start after a crash, until blocks can be replayed.
func (c *chainer) recover(start string) (a answer, err error) {
	from, cpu := time.Now(), harness.CPUTime()
	if err := c.openZones(start); err != nil {
		return a, err
	}
	a.Open = time.Since(from).Seconds()
	meta, ok := c.zone.Meta()
	if !ok {
		return a, errors.New("the state store is empty after the crash")
	}
	if c.height, c.tree, err = c.store.Load(); err != nil {
		return a, err
	}
	if hash := c.tree.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		return a, fmt.Errorf("the rebuilt tree has the app hash %s, want %x", hash, meta.AppHash)
	}
	a.Seconds = time.Since(from).Seconds()
	a.CPU = (harness.CPUTime() - cpu).Seconds()
	a.Keys, a.Height, a.Disk = int(c.tree.Len()), meta.Height, diskBytes(c.Dir)
	return a, nil
}

// redo reads the blocks that were not durable from the block store, and executes them, up to the
// height to. CometBFT's own start does not count.
func (c *chainer) redo(to int64) (a answer, err error) {
	c.chain.skipTo(c.height)
	stored := c.blocks.DB(dbNames[dbBlocks])
	cpu := time.Duration(0)
	for ; c.height < to; a.Done++ {
		written := c.chain.blockData(int(c.height) + 1)[0].ops
		changes := c.changes()
		from, before := time.Now(), harness.CPUTime()
		for _, o := range written {
			value, err := stored.Get(o.key)
			if err != nil {
				return a, err
			}
			if !bytes.Equal(value, o.value) {
				return a, fmt.Errorf("the record %q of block %d is not what was written", o.key, c.height+1)
			}
		}
		if err := c.apply(changes); err != nil {
			return a, err
		}
		a.Seconds, cpu = a.Seconds+time.Since(from).Seconds(), cpu+harness.CPUTime()-before
	}
	if there, want := int(c.tree.Len()), len(c.chain.present); there != want {
		return a, fmt.Errorf("the state has %d accounts after the lost blocks, want %d", there, want)
	}
	a.CPU, a.Height = cpu.Seconds(), c.height
	return a, nil
}

// fill makes blocks at fixed intervals after recover until the whole state is in memory, and then n
// more. It measures each; Done is the number of the former.
func (c *chainer) fill(n int) (a answer, err error) {
	c.chain.skipTo(c.height)
	from, cpu := time.Now(), harness.CPUTime()
	for c.store.Filling() {
		one, err := c.commit(1, true)
		if err != nil {
			return a, err
		}
		a.Done++
		a.Millis = append(a.Millis, one.Millis...)
	}
	a.Seconds, a.CPU = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds()
	after, err := c.commit(n, true)
	a.Millis = append(a.Millis, after.Millis...)
	return a, err
}

// blockEvery is the interval between paced blocks.
const blockEvery = 100 * time.Millisecond

// commit makes n blocks and measures each.
func (c *chainer) commit(n int, paced bool) (answer, error) {
	a := answer{Done: n}
	ticker := time.NewTicker(blockEvery)
	defer ticker.Stop()
	for range n {
		changes := c.changes()
		if paced {
			<-ticker.C
		}
		from := time.Now()
		if err := c.apply(changes); err != nil {
			return a, err
		}
		a.Millis = append(a.Millis, time.Since(from).Seconds()*1e3)
		a.Reclaim = max(a.Reclaim, c.tree.Reclaimed().Took.Seconds()*1e3)
	}
	return a, nil
}

// unpaced makes n blocks as fast as possible, and waits until they are durable.
func (c *chainer) unpaced(n int) (answer, error) {
	a := answer{Done: n, FirstWait: n}
	all := make([][]avlstar.Change, n)
	for i := range all {
		all[i] = c.changes()
	}
	waited := func() float64 {
		if c.zone == nil {
			return 0
		}
		return c.zone.Metrics().WaitSeconds
	}
	before, pages := waited(), c.tree.Memory().Loaded
	from, cpu := time.Now(), harness.CPUTime()
	for i, changes := range all {
		if err := c.apply(changes); err != nil {
			return a, err
		}
		if a.FirstWait == n && waited() > before {
			a.FirstWait = i
		}
	}
	if c.zone != nil {
		if err := c.zone.Flush(); err != nil {
			return a, err
		}
	}
	a.Seconds, a.CPU, a.Waited = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds(), waited()-before
	a.Pages = c.tree.Memory().Loaded - pages
	return a, nil
}

// page reopens the state store like a node whose state exceeds its memory. It divides the budget as
// a node does (memory_bytes): an eighth for each database, the rest for the cache and the tree
// above its pages.
func (c *chainer) page() error {
	c.tree.Release()
	c.tree = nil
	if err := c.zone.Close(); err != nil {
		return err
	}
	database := c.Budget / 8
	var err error
	c.zone, err = storage.Open(filepath.Join(c.Dir, "state"), storage.Options{Logger: errorsOnly{}, CacheBytes: database, Generations: true})
	if err != nil {
		return err
	}
	c.store = treestore.New(treestore.Options{Zone: c.zone, ChainID: "bench", Cache: sgc.New(c.Budget - 2*database)})
	_, c.tree, err = c.store.Load()
	return err
}

// query makes r.N queries to the newest version and measures their CPU time, after the same number
// of queries to fill the caches.
func (c *chainer) query(r request) (a answer, err error) {
	asker := newAsker(c.Spec, &model{Present: c.chain.present}, distNormal, new(zipfs), r.Round)
	ask := func(q query) error {
		switch r.Op {
		case opGet:
			value, _, err := c.tree.ByKey().View(c.Spec.key(q.account))
			if err == nil && !bytes.Equal(value, c.Spec.appendValue(nil, q.account, c.chain.last[q.account])) {
				a.Wrong++
			}
			return err
		case opAbsent:
			_, there, err := c.tree.ByKey().View(c.Spec.key(q.account | 1<<31))
			if there {
				a.Wrong++
			}
			return err
		default:
			_, err := c.tree.Prove(c.Spec.key(q.account))
			return err
		}
	}
	warm, queries := asker.queries(r.N, 0), asker.queries(r.N, 0)
	for i, q := range append(warm, queries...) {
		if i == len(warm) {
			runtime.GC()
			a.CPU = -harness.CPUTime().Seconds()
		}
		if err := ask(q); err != nil {
			return a, err
		}
	}
	a.CPU += harness.CPUTime().Seconds()
	a.Done = r.N
	if a.Wrong > 0 {
		return a, fmt.Errorf("%d of %d answers are wrong", a.Wrong, 2*r.N)
	}
	return a, nil
}
