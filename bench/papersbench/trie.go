package papersbench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/gethtrie"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// trieOptions configure a measurement of Ethereum's trie alone.
type trieOptions struct {
	Keys      int
	Blocks    int
	Transfers int
	Gets      int
	Cache     int
	Seed      uint64
}

// Flags adds the options of rainblock/trie.
func (o *trieOptions) Flags(f *harness.Flags) {
	f.Int(&o.Keys, "keys", 100_000, 1000, 100_000_000, "number of accounts")
	f.Int(&o.Blocks, "blocks", 10, 1, 1_000_000, "number of measured blocks")
	f.Int(&o.Transfers, "transfers", 1000, 1, 1_000_000, "transfers per block; each reads and writes two accounts")
	f.Int(&o.Gets, "gets", 5000, 1, 100_000_000, "number of measured gets with proofs")
	f.Int(&o.Cache, "cache-bytes", 8<<20, 0, 1<<40, "bytes of the database's block cache")
	f.Seed(&o.Seed)
}

// trieResult has the figures of Ethereum's trie in the hash scheme, and sizes of Starling's tree
// with the same accounts.
type trieResult struct {
	Keys      int `json:"keys"`
	Blocks    int `json:"blocks"`
	Transfers int `json:"transfers"`
	Cache     int `json:"cache_bytes"`

	// For each block: nodes that are read, reads of files, blobs of the nodes that are read (the
	// block's witness), and nodes that are written.
	NodesRead    float64   `json:"nodes_read_per_block"`
	FileReads    float64   `json:"file_reads_per_block"`
	WitnessBytes float64   `json:"witness_bytes_per_block"`
	NodesWritten float64   `json:"nodes_written_per_block"`
	Millis       []float64 `json:"block_ms"`

	// Gets with proofs, and sizes of these.
	GetsCore   float64 `json:"gets_core"`        // per second of CPU time, nodes from the database
	GetsMemory float64 `json:"gets_core_memory"` // the same, nodes from a map in memory
	VerifyCore float64 `json:"verify_core"`      // proofs verified per second of CPU time
	ProofBytes float64 `json:"proof_bytes"`
	ProofNodes float64 `json:"proof_nodes"`

	// Puts per second of wall time. The database's log is synced for each block.
	PutS       float64 `json:"put_s"`
	PutSMemory float64 `json:"put_s_memory"` // nodes from a map in memory, and into it

	// Starling's sizes. The witness is one multiproof, for a receiver without nodes.
	OursProofBytes   float64 `json:"starling_proof_bytes"`
	OursWitnessBytes float64 `json:"starling_witness_bytes_per_block"`
}

// trieBench measures the trie in both stores.
//
//	nodes ─┬─▶ db: Pebble, keys are hashes
//	       └─▶ memory: a map by path, with the newest nodes only; it changes after the database
type trieBench struct {
	trieOptions
	dir      string
	progress *harness.Progress
	keys     [][]byte
	values   map[string][]byte // newest, of the database's trie
	db       *pebble.DB
	memory   map[string][]byte // newest nodes, by path
	reads    int               // of nodes, by fromDB
	root     gethtrie.Hash
}

// trieLoad is the number of accounts in a step of the load.
const trieLoad = 20_000

func measureTrie(ctx context.Context, o trieOptions, progress *harness.Progress) (r *trieResult, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) (err error) {
		b := &trieBench{trieOptions: o, dir: dir, progress: progress, memory: map[string][]byte{}, root: gethtrie.Empty, values: map[string][]byte{}}
		r, err = b.run(ctx)
		if b.db != nil {
			err = errors.Join(err, b.db.Close())
		}
		return err
	})
	return r, err
}

func (b *trieBench) run(ctx context.Context) (*trieResult, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	steps := (b.Keys + trieLoad - 1) / trieLoad
	b.progress.Begin("Ethereum's trie", "steps", steps+2+2*b.Blocks)
	if err := b.load(ctx); err != nil {
		return nil, err
	}
	// No compaction runs during the measurement, and a get finds a node of the load in one level.
	if err := b.db.Compact(ctx, nil, bytes.Repeat([]byte{0xff}, 1+len(gethtrie.Hash{})), true); err != nil {
		return nil, err
	}
	r := &trieResult{Keys: b.Keys, Blocks: b.Blocks, Transfers: b.Transfers, Cache: b.Cache}
	if err := b.gets(ctx, r); err != nil {
		return nil, err
	}
	if err := b.ours(r); err != nil {
		return nil, err
	}
	return r, b.blocks(ctx, r)
}

func (b *trieBench) open() (err error) {
	cache := pebble.NewCache(int64(max(b.Cache, 1)))
	defer cache.Unref()
	b.db, err = pebble.Open(filepath.Join(b.dir, "trie"), &pebble.Options{Cache: cache, Logger: harness.Quiet{}})
	return err
}

func (b *trieBench) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(b.Seed, stream)) //nolint:gosec // reproducible by its seed
}

func randomBytes(rng *rand.Rand, n int) []byte {
	all := make([]byte, 0, n+8)
	for len(all) < n {
		all = binary.BigEndian.AppendUint64(all, rng.Uint64())
	}
	return all[:n:n]
}

func (b *trieBench) load(ctx context.Context) error {
	rng := b.random(1)
	for len(b.keys) < b.Keys {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var changes []gethtrie.Change
		for range min(trieLoad, b.Keys-len(b.keys)) {
			c := gethtrie.Change{Key: randomBytes(rng, workload.KeyBytes), Value: randomBytes(rng, workload.ValueBytes)}
			b.keys, b.values[string(c.Key)] = append(b.keys, c.Key), c.Value
			changes = append(changes, c)
		}
		root, nodes, err := gethtrie.Commit(b.root, b.fromMemory, changes)
		if err != nil {
			return err
		}
		b.root = root
		b.intoMemory(nodes)
		if err := b.intoDB(nodes); err != nil {
			return err
		}
		b.progress.Add(1)
	}
	return nil
}

func (b *trieBench) fromMemory(path []byte, _ gethtrie.Hash) ([]byte, error) {
	return b.memory[string(path)], nil
}

func (b *trieBench) intoMemory(nodes []gethtrie.Node) {
	for _, n := range nodes {
		if n.Blob == nil {
			delete(b.memory, n.Path)
		} else {
			b.memory[n.Path] = n.Blob
		}
	}
}

func (b *trieBench) fromDB(_ []byte, h gethtrie.Hash) ([]byte, error) {
	b.reads++
	value, closer, err := b.db.Get(gethtrie.HashKey(h))
	if err != nil {
		return nil, err
	}
	return bytes.Clone(value), closer.Close()
}

func (b *trieBench) intoDB(nodes []gethtrie.Node) error {
	batch := b.db.NewBatch()
	defer batch.Close()
	for _, n := range nodes {
		if n.Blob != nil {
			if err := batch.Set(gethtrie.HashKey(n.Hash), n.Blob, nil); err != nil {
				return err
			}
		}
	}
	return batch.Commit(pebble.Sync)
}

// gets measures gets with proofs from both stores, and the verification of the proofs.
func (b *trieBench) gets(ctx context.Context, r *trieResult) error {
	rng := b.random(2)
	keys := make([][]byte, b.Gets)
	for i := range keys {
		keys[i] = b.draw(rng)
	}
	rate := func(cpu time.Duration) float64 {
		return harness.Ratio(float64(b.Gets), (harness.CPUTime() - cpu).Seconds())
	}
	prove := func(read gethtrie.Read) (proofs []gethtrie.Proof, perS float64, err error) {
		proofs = make([]gethtrie.Proof, len(keys))
		cpu := harness.CPUTime()
		for i, key := range keys {
			if ctx.Err() != nil {
				return nil, 0, ctx.Err()
			}
			if proofs[i], err = gethtrie.Prove(b.root, read, key); err != nil {
				return nil, 0, err
			}
		}
		b.progress.Add(1)
		return proofs, rate(cpu), nil
	}
	var err error
	if _, r.GetsMemory, err = prove(b.fromMemory); err != nil {
		return err
	}
	b.reads = 0
	var proofs []gethtrie.Proof
	if proofs, r.GetsCore, err = prove(b.fromDB); err != nil {
		return err
	}
	r.ProofNodes = float64(b.reads) / float64(b.Gets)
	cpu := harness.CPUTime()
	for i, key := range keys {
		value, err := proofs[i].Verify(b.root, key)
		if err != nil {
			return err
		}
		if !bytes.Equal(value, b.values[string(key)]) {
			return fmt.Errorf("the proof of account %x has another value", key)
		}
		r.ProofBytes += float64(proofs[i].Bytes) / float64(b.Gets)
	}
	r.VerifyCore = rate(cpu)
	return nil
}

// draw returns an account: nine tenths are drawn from a tenth of all, as in RainBlock's evaluation.
func (b *trieBench) draw(rng *rand.Rand) []byte {
	if rng.IntN(10) < 9 {
		return b.keys[rng.IntN(len(b.keys)/10)]
	}
	return b.keys[rng.IntN(len(b.keys))]
}

// block returns the changes of a block of transfers: two accounts each.
func (b *trieBench) block(rng *rand.Rand) (changes []gethtrie.Change) {
	for range 2 * b.Transfers {
		changes = append(changes, gethtrie.Change{Key: b.draw(rng), Value: randomBytes(rng, workload.ValueBytes)})
	}
	return changes
}

// ours measures the sizes of Starling's proofs and witnesses, of the same accounts.
func (b *trieBench) ours(r *trieResult) error {
	var leaves []avlstar.Change
	for _, key := range b.keys {
		leaves = append(leaves, avlstar.Change{Key: key, Value: b.values[string(key)]})
	}
	empty, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	if err != nil {
		return err
	}
	defer empty.Release()
	v, err := empty.Apply(leaves)
	if err != nil {
		return err
	}
	defer v.Release()
	rng := b.random(2)
	for range b.Gets {
		p, err := v.Prove(b.draw(rng))
		if err != nil {
			return err
		}
		r.OursProofBytes += float64(len(p.State)+len(p.Map)) / float64(b.Gets)
	}
	rng = b.random(3)
	for range b.Blocks {
		var wants []avlstar.Want
		for _, c := range b.block(rng) {
			wants = append(wants, avlstar.Want{Key: c.Key})
		}
		slices.SortFunc(wants, func(x, y avlstar.Want) int { return bytes.Compare(x.Key, y.Key) })
		wants = slices.CompactFunc(wants, func(x, y avlstar.Want) bool { return bytes.Equal(x.Key, y.Key) })
		m, err := v.Multiproof(wants, avlstar.Below{})
		if err != nil {
			return err
		}
		r.OursWitnessBytes += float64(len(m)) / float64(b.Blocks)
	}
	return nil
}

// blocks measures blocks with the database, and then the same blocks with memory.
func (b *trieBench) blocks(ctx context.Context, r *trieResult) error {
	n, rng, first := float64(b.Blocks), b.random(3), b.root
	puts, seconds := 0, 0.0
	own := harness.OwnIO().Reads
	own = harness.OwnIO().Reads - own // by OwnIO itself
	for range b.Blocks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		changes := b.block(rng)
		b.reads = 0
		before, from := harness.OwnIO().Reads, time.Now()
		root, nodes, witness, err := gethtrie.CommitWitnessed(b.root, b.fromDB, changes)
		if err != nil {
			return err
		}
		if err := b.intoDB(nodes); err != nil {
			return err
		}
		took := time.Since(from).Seconds()
		r.FileReads += float64(harness.OwnIO().Reads-before-own) / n
		r.NodesRead += float64(b.reads) / n
		for _, blob := range witness {
			r.WitnessBytes += float64(len(blob)) / n
		}
		r.NodesWritten += float64(len(nodes)) / n
		r.Millis = append(r.Millis, took*1e3)
		b.root, puts, seconds = root, puts+len(changes), seconds+took
		for _, c := range changes {
			b.values[string(c.Key)] = c.Value
		}
		b.progress.Add(1)
	}
	r.PutS = harness.Ratio(float64(puts), seconds)
	last := b.root
	b.root, seconds, rng = first, 0, b.random(3)
	for range b.Blocks {
		changes := b.block(rng)
		from := time.Now()
		root, nodes, err := gethtrie.Commit(b.root, b.fromMemory, changes)
		if err != nil {
			return err
		}
		b.intoMemory(nodes)
		seconds += time.Since(from).Seconds()
		b.root = root
		b.progress.Add(1)
	}
	r.PutSMemory = harness.Ratio(float64(puts), seconds)
	if b.root != last {
		return fmt.Errorf("the tries have the roots %s and %s after the same blocks", last, b.root)
	}
	return b.reopen()
}

// reopen closes the database, and reads the values of the last block from its files.
func (b *trieBench) reopen() error {
	if err := b.db.Close(); err != nil {
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	rng := b.random(3)
	for range b.Blocks {
		for _, c := range b.block(rng) {
			value, err := gethtrie.Get(b.root, b.fromDB, c.Key)
			if err != nil {
				return err
			}
			if !bytes.Equal(value, b.values[string(c.Key)]) {
				return fmt.Errorf("account %x has another value after the database was opened again", c.Key)
			}
		}
	}
	return nil
}
