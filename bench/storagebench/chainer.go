package storagebench

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	dbm "github.com/cometbft/cometbft-db"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// chainer makes the chain as a node does: the tree in memory, what changed handed to the state zone. Its zones have a node's own
// settings, not a benchmark's.
//
//	Apply ─▶ Write ─▶ flusher …            roles durable, writer
//	Apply                                  role memory
//	Open, Scan ─▶ FromLeaves ─▶ root       role opener
type chainer struct {
	begin
	chain  *chain
	tree   *avlstar.Version
	zone   *storage.State
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
		return c.recover()
	}
	if err := c.openOnce(); err != nil {
		return answer{}, err
	}
	switch r.Op {
	case opWrite:
		return c.write(r.N)
	case opDie:
		return c.die(r.N)
	case opCommit:
		return c.commit(r.N, r.Paced)
	case opUnpaced:
		return c.unpaced(r.N)
	}
	return answer{}, errors.New("nobody knows this request")
}

func (c *chainer) openZones() (err error) {
	if c.zone, err = storage.Open(filepath.Join(c.Dir, "state"), storage.Options{Logger: errorsOnly{}}); err != nil {
		return err
	}
	c.blocks, err = blocks.Open(filepath.Join(c.Dir, "blocks"), blocks.Options{Logger: errorsOnly{}})
	return err
}

func (c *chainer) openOnce() (err error) {
	if c.tree != nil {
		return nil
	}
	if c.Role != roleMemory {
		if err := c.openZones(); err != nil {
			return err
		}
	}
	c.tree, err = avlstar.Empty(avlstar.DefaultChunkBytes)
	return err
}

// changes are those of the next step, in random order as transactions bring them.
func (c *chainer) changes() []avlstar.Change {
	of := c.chain.next()
	rand.New(rand.NewPCG(c.Spec.Seed, uint64(c.chain.step))).Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] }) //nolint:gosec // the same every time
	changes := make([]avlstar.Change, len(of))
	for i, change := range of {
		changes[i].Key = c.chain.key(change.id)
		if !change.delete {
			changes[i].Value = c.chain.appendValue(make([]byte, 0, valueBytes+8), change.id, c.chain.step)
		}
	}
	return changes
}

// apply commits a block: what node does between the last transaction and the answer with the app hash.
func (c *chainer) apply(changes []avlstar.Change) error {
	next, err := c.tree.Apply(changes)
	if err != nil {
		return err
	}
	hash := next.AppHash()
	base := c.tree
	c.tree = next
	c.height++
	if c.zone == nil {
		base.Release()
		return nil
	}
	b := storage.Block{Meta: storage.Meta{Height: c.height, AppHash: hash[:], ChunkBytes: next.ChunkBytes(), ChainID: "bench"}}
	b.Puts = make([]storage.Leaf, 0, len(changes))
	for _, change := range changes {
		if change.Value == nil {
			b.Deletes = append(b.Deletes, change.Key)
		} else {
			b.Puts = append(b.Puts, storage.Leaf{Key: change.Key, Value: change.Value})
		}
	}
	next.Retain()
	b.Heights = heightsOf(next, base)
	b.Done = func() {
		base.Release()
		next.Release()
	}
	return c.zone.Write(b)
}

func heightsOf(v, base *avlstar.Version) iter.Seq[storage.Height] {
	return func(yield func(storage.Height) bool) {
		for key, height := range v.NewInner(base) {
			if !yield(storage.Height{Key: key, Height: height}) {
				return
			}
		}
	}
}

// write makes n steps, without measuring, and makes them durable.
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

// die makes n blocks, with their part of the block zone, and kills this process in the middle of the flusher's work.
func (c *chainer) die(n int) (answer, error) {
	dbs := map[byte]dbm.DB{}
	for letter, id := range dbNames {
		dbs[letter] = c.blocks.DB(id)
	}
	for height := range n {
		for _, b := range c.chain.blockData(height + 1) {
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
	select {} // the signal comes
}

// recover is what a start after a crash takes until blocks can be replayed.
func (c *chainer) recover() (a answer, err error) {
	from := time.Now()
	if err := c.openZones(); err != nil {
		return a, err
	}
	a.Open = time.Since(from).Seconds()
	meta, ok := c.zone.Meta()
	if !ok {
		return a, errors.New("the state zone is empty after the crash")
	}
	if c.tree, err = avlstar.FromLeaves(meta.ChunkBytes, leavesOf(c.zone)); err != nil {
		return a, err
	}
	if hash := c.tree.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		return a, fmt.Errorf("the rebuilt tree has the app hash %s, %x was stored", hash, meta.AppHash)
	}
	a.Seconds = time.Since(from).Seconds()
	a.Keys, a.Height, a.Disk = int(c.tree.Len()), meta.Height, diskBytes(c.Dir)
	return a, nil
}

// blockEvery is the time between blocks that are paced.
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
	}
	return a, nil
}

// unpaced makes n blocks as fast as they go, until they are durable.
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
	before := waited()
	from := time.Now()
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
	a.Seconds, a.Waited = time.Since(from).Seconds(), waited()-before
	return a, nil
}
