package treebench

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"time"

	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/internal/child"
)

// ChildName is the name of the child processes.
const ChildName = "tree"

// verifiedProofs is the number of verified proofs in each slice.
const verifiedProofs = 20

// contender is one contestant and its workload.
type contender struct {
	begin
	work   *workload.Workload
	tree   contestant.Contestant
	before memory // memory of the process before the tree was created
}

// Serve runs a child process.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b begin) (child.Worker[request, answer], answer, error) {
		c := &contender{begin: b}
		return c, answer{}, c.open()
	})
}

func (c *contender) open() (err error) {
	if c.work, err = workload.New(c.Spec, c.Versions); err != nil {
		return err
	}
	if c.Snapshot != "" {
		for !c.work.Loaded() {
			c.work.Next() // the snapshot already has these changes
		}
		c.before = measureMemory()
		c.tree, err = contestant.MapMemiavl(c.Snapshot, c.Dir)
		return err
	}
	if c.tree, err = contestant.Open(c.Name, c.Dir); err != nil {
		return err
	}
	c.before = measureMemory()
	return nil
}

// Close implements child.Worker.
func (c *contender) Close() error { return c.tree.Close() }

// Do implements child.Worker.
func (c *contender) Do(r request, _ *bufio.Reader) (answer, error) {
	a, err := c.do(r)
	a.Step, a.Keys = c.work.Step(), c.work.Len()
	return a, err
}

func (c *contender) do(r request) (answer, error) {
	switch r.Op {
	case opLoad, opVersions:
		return c.commits(r)
	case opMemory:
		return c.memory()
	case opSnapshot:
		return answer{}, c.tree.(contestant.Snapshotter).Snapshot(filepath.Join(c.Dir, snapshotFolder))
	case opGet:
		return c.get(r)
	case opProve:
		return c.prove(r)
	case opExport:
		return c.export()
	case opHash:
		return answer{Hash: measureHash()}, nil
	case opRead:
		return answer{Read: readLatency(r.N)}, nil
	case opCheck:
		return c.check()
	}
	return answer{}, fmt.Errorf("unknown request %q", r.Op)
}

// snapshotFolder is the name of the snapshot in the contestant's folder.
const snapshotFolder = "snapshot"

// memory reads all of a mapped snapshot first, because pages that were never read are only on disk.
func (c *contender) memory() (answer, error) {
	if c.Snapshot != "" {
		if err := c.tree.CheckLen(c.work.Len()); err != nil {
			return answer{}, err
		}
	}
	return answer{Memory: measureMemory().since(c.before)}, nil
}

// commits makes r.N steps, and times each from its changes to its root.
func (c *contender) commits(r request) (a answer, err error) {
	if r.Procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(r.Procs))
	}
	if r.Export {
		stop, err := c.startStream()
		if err != nil {
			return a, err
		}
		defer func() {
			var stopped error
			a.Streamed, a.StreamSeconds, stopped = stop()
			err = errors.Join(err, stopped)
		}()
	}
	for i := range r.Warm + r.N {
		if r.Op == opLoad && c.work.Loaded() {
			break
		}
		nanos, root, err := c.commit()
		if err != nil {
			return a, err
		}
		a.Roots = append(a.Roots, hex.EncodeToString(root))
		if i < r.Warm {
			continue
		}
		a.Nanos = append(a.Nanos, nanos)
		if h, ok := c.tree.(contestant.Hasher); ok {
			inner, leaves := h.Hashed()
			a.Inner, a.Leaves = a.Inner+inner, a.Leaves+leaves
		}
	}
	return a, nil
}

func (c *contender) commit() (nanos int64, root []byte, err error) {
	commit := c.tree.Prepare(c.work.Next())
	from := time.Now()
	root, err = commit()
	return time.Since(from).Nanoseconds(), root, err
}

func (c *contender) get(r request) (answer, error) {
	one, err := c.timeGets(r, func(values, keys [][]byte) (err error) {
		for i, key := range keys {
			if values[i], err = c.tree.Get(key); err != nil {
				return err
			}
		}
		return nil
	})
	many, can := c.tree.(contestant.ManyGetter)
	if err != nil || !can {
		return answer{Nanos: []int64{one}}, err
	}
	r.Round += manyRounds // other keys, because these are in caches now
	together, err := c.timeGets(r, many.GetMany)
	return answer{Nanos: []int64{one, together}}, err
}

// manyRounds is more than the number of rounds of gets and proofs.
const manyRounds = 1000

// timeGets returns the time of get per key, for r.N keys.
func (c *contender) timeGets(r request, get func(values, keys [][]byte) error) (nanos int64, err error) {
	keys := c.work.PresentKeys(r.N, r.Round)
	values := make([][]byte, len(keys))
	from := time.Now()
	if err := get(values, keys); err != nil {
		return 0, err
	}
	took := time.Since(from)
	for i, value := range values {
		if len(value) != workload.ValueBytes {
			return 0, fmt.Errorf("key %x, which is in the state, was not found", keys[i])
		}
	}
	return took.Nanoseconds() / int64(len(keys)), nil
}

func (c *contender) prove(r request) (answer, error) {
	a := answer{Verified: min(verifiedProofs, r.N)}
	drawn := c.work.Present(r.N, r.Round)
	proofs := make([]contestant.Proof, r.N)
	var err error
	from := time.Now()
	for i, kv := range drawn {
		if proofs[i], err = c.tree.Prove(kv.Key); err != nil {
			return a, err
		}
	}
	a.Nanos = []int64{time.Since(from).Nanoseconds() / int64(r.N)}
	for i, p := range proofs {
		a.Bytes += p.Bytes()
		if i < a.Verified {
			if err := c.tree.VerifyProof(p, drawn[i].Key, drawn[i].Value); err != nil {
				return a, err
			}
		}
	}
	a.Bytes /= r.N
	return a, nil
}

// export makes a version first, so that nothing is left over from an earlier export.
func (c *contender) export() (answer, error) {
	_, root, err := c.commit()
	if err != nil {
		return answer{}, err
	}
	a := answer{Roots: []string{hex.EncodeToString(root)}}
	runtime.GC() // collect the garbage of the last round
	from := time.Now()
	export, err := c.tree.Export()
	if err != nil {
		return a, err
	}
	exported := time.Since(from)
	runtime.GC()
	from = time.Now()
	done, err := export.Import()
	if err != nil {
		return a, err
	}
	a.Nanos = []int64{exported.Nanoseconds(), time.Since(from).Nanoseconds()}
	a.Bytes = export.Bytes()
	done()
	return a, nil
}

// check compares the tree with the workload's model: the number of keys, and the values of some
// keys.
func (c *contender) check() (answer, error) {
	const sample = 1000
	a := answer{Verified: sample}
	for _, kv := range c.work.Present(sample, 1<<20) {
		value, err := c.tree.Get(kv.Key)
		if err != nil {
			return a, err
		}
		if !bytes.Equal(value, kv.Value) {
			return a, fmt.Errorf("key %x has the value %x, want %x", kv.Key, value, kv.Value)
		}
	}
	return a, c.tree.CheckLen(c.work.Len())
}
