package treebench

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"time"

	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// ChildCommand is the hidden command with which this program runs itself for each contestant.
const ChildCommand = "tree-contestant"

// verifiedProofs is the number of proofs in each slice that are verified.
const verifiedProofs = 20

// child is one contestant with its workload.
type child struct {
	begin
	work   *workload.Workload
	tree   contestant.Contestant
	before memory // of the process, before the tree was made
}

// Serve is the child: it answers requests until there are no more.
func Serve(in io.Reader, out io.Writer) (err error) {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	c := &child{}
	if err := requests.Decode(&c.begin); err != nil {
		return fmt.Errorf("only starling-bench itself runs this command; run 'starling-bench tree': %w", err)
	}
	opened := c.open()
	if err := answers.Encode(c.answer(request{Op: opBegin}, opened)); err != nil || opened != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.tree.Close()) }()
	return harness.Serve(requests, answers, func(r request) answer { return c.answer(r, nil) })
}

func (c *child) open() (err error) {
	if c.work, err = workload.New(c.Spec, c.Versions); err != nil {
		return err
	}
	if c.Snapshot != "" {
		for !c.work.Loaded() {
			c.work.Next() // the snapshot has these changes
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

func (c *child) answer(r request, err error) answer {
	var a answer
	if err == nil {
		a, err = c.do(r)
	}
	if err != nil {
		return answer{Error: fmt.Sprintf("%s: %v", r.Op, err)}
	}
	if c.work != nil {
		a.Step, a.Keys = c.work.Step(), c.work.Len()
	}
	return a
}

func (c *child) do(r request) (answer, error) {
	switch r.Op {
	case opBegin:
		return answer{}, nil
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
	return answer{}, errors.New("no such request")
}

// snapshotFolder is where a snapshot lies, in the contestant's folder.
const snapshotFolder = "snapshot"

// memory reads all of a mapped snapshot first: what was never read is on disk only.
func (c *child) memory() (answer, error) {
	if c.Snapshot != "" {
		if err := c.tree.CheckLen(c.work.Len()); err != nil {
			return answer{}, err
		}
	}
	return answer{Memory: measureMemory().since(c.before)}, nil
}

// commits makes r.N steps, each timed from its changes to its root.
func (c *child) commits(r request) (a answer, err error) {
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

func (c *child) commit() (nanos int64, root []byte, err error) {
	commit := c.tree.Prepare(c.work.Next())
	from := time.Now()
	root, err = commit()
	return time.Since(from).Nanoseconds(), root, err
}

func (c *child) get(r request) (answer, error) {
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
	r.Round += manyRounds // other keys: these are in caches now
	together, err := c.timeGets(r, many.GetMany)
	return answer{Nanos: []int64{one, together}}, err
}

// manyRounds is more than the rounds of gets and proofs.
const manyRounds = 1000

// timeGets returns the time of get for one of r.N keys.
func (c *child) timeGets(r request, get func(values, keys [][]byte) error) (nanos int64, err error) {
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

func (c *child) prove(r request) (answer, error) {
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
func (c *child) export() (answer, error) {
	_, root, err := c.commit()
	if err != nil {
		return answer{}, err
	}
	a := answer{Roots: []string{hex.EncodeToString(root)}}
	runtime.GC() // garbage of the last round is not this one's
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

// check compares the tree with the workload's model: the number of keys, and the values of some.
func (c *child) check() (answer, error) {
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
