package storagebench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/internal/child"
)

// ChildName is the name of the child processes.
const ChildName = "storage"

// worker is a contestant or a child of another role.
type worker struct {
	begin
	maker *maker

	layout        layout
	blocks, state *traceReader
	step          int // number of steps replayed
	reading       *reading
	zipfs         zipfs

	chainer *chainer // for the roles of recovery and commits
}

// Serve runs a child process.
func Serve(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b begin) (child.Worker[request, answer], answer, error) {
		w := &worker{begin: b}
		return w, answer{}, w.open()
	})
}

func (c *worker) open() (err error) {
	switch c.Role {
	case roleMaker:
		c.maker, err = newMaker(c.Traces, c.Spec)
		return err
	case roleWriter, roleOpener, roleDurable, roleMemory, rolePaged:
		c.chainer = newChainer(c.begin)
		return nil
	}
	file := fileNodes
	switch c.Role {
	case nameLeaves, nameStarling:
		file = fileLeaves
	case nameGethHash, nameGethLevel:
		file = fileHash
	case nameGethRow:
		file = fileRow
	case nameGethColumn:
		file = fileColumn
	case nameGethPath:
		file = filePath
	}
	if c.blocks, err = openTrace(filepath.Join(c.Traces, fileBlocks)); err != nil {
		return err
	}
	if c.state, err = openTrace(filepath.Join(c.Traces, file)); err != nil {
		return err
	}
	c.layout, err = openLayout(c.Role, c.Dir, c.Spec, c.Budget, nil)
	return err
}

// Close implements child.Worker.
func (c *worker) Close() (err error) {
	if c.layout != nil {
		err = c.layout.close()
	}
	if c.chainer != nil {
		err = errors.Join(err, c.chainer.close())
	}
	return err
}

// Do implements child.Worker.
func (c *worker) Do(r request, _ *bufio.Reader) (answer, error) {
	switch r.Op {
	case opMake:
		for range r.N {
			if err := c.maker.step(); err != nil {
				return answer{}, err
			}
		}
		return answer{Done: r.N}, nil
	case opModel:
		return c.finishModel()
	case opReplay:
		return c.replay(r.N)
	case opDrain:
		from := time.Now()
		err := c.layout.drain()
		return answer{Seconds: time.Since(from).Seconds()}, err
	case opSettle:
		return c.settle()
	case opReopen:
		return c.reopen(r.Cache, r.Cold)
	case opRead, opChange:
		return c.read(r)
	}
	if c.chainer != nil {
		return c.chainer.do(r)
	}
	return answer{}, fmt.Errorf("unknown request %q", r.Op)
}

func (c *worker) finishModel() (a answer, err error) {
	if err := c.maker.finish(); err != nil {
		return a, err
	}
	d := c.maker.model
	a.Model = modelSizes{
		Keys: len(d.Present), Height: d.Height, StateBytes: d.TotalState, BlockLogical: d.BlockBytes, StateLogical: d.StateBytes,
		NodeOps: d.NodeOps, NodeBytes: d.NodeBytes, LeafOps: d.LeafOps, LeafBytes: d.LeafBytes,
		HashOps: d.HashOps, HashBytes: d.HashBytes, ColumnBytes: d.ColumnBytes, PathOps: d.PathOps, PathBytes: d.PathBytes,
	}
	return a, nil
}

// replay replays the requests of n steps and times them. Background work between two calls is not
// timed, because the process is stopped.
func (c *worker) replay(n int) (a answer, err error) {
	from, cpu := time.Now(), harness.CPUTime()
	for ; a.Done < n; a.Done++ {
		state, err := c.state.next()
		if err != nil {
			return a, err
		}
		var blocks []batch
		if c.step++; c.step > c.Spec.LoadSteps {
			if blocks, err = c.blocks.next(); err != nil {
				return a, err
			}
		}
		if err := c.layout.replay(int64(c.step), blocks, state[0]); err != nil {
			return a, err
		}
	}
	a.Seconds, a.CPU = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds()
	harness.SyncDisk() // so that the next contestant does not wait for these writes
	return a, nil
}

// Background work counts as finished after settleQuiet intervals with hardly any writes. The Go
// runtime also writes, to wake its threads.
const (
	settleEvery = 100 * time.Millisecond
	settleQuiet = 5 // intervals
	settleSlack = 16 << 10
)

// settle waits until flushes and compactions have ended. It does not flush memtables: their content
// is in the log, or durable.
func (c *worker) settle() (a answer, err error) {
	if err := c.layout.drain(); err != nil {
		return a, err
	}
	from, cpu := time.Now(), harness.CPUTime()
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	last := harness.OwnIO().Written
	for quiet := 0; quiet < settleQuiet; {
		<-ticker.C
		now := harness.OwnIO().Written
		if quiet++; now > last+settleSlack || c.layout.busy() {
			quiet = 0
		}
		last = now
	}
	a.Seconds, a.CPU = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds()
	if zones, is := c.layout.(*starlingLayout); is {
		a.Zones = zones.zones()
	}
	a.Written, a.Counts, a.Disk, a.Plan = harness.OwnIO().Written, c.layout.counts(), diskBytes(c.Dir), c.layout.plan()
	harness.SyncDisk()
	return a, nil
}

// reopen closes the files and opens them for reading, so that every cache is empty. With cold, it
// also empties the page cache of the files.
func (c *worker) reopen(mode cacheMode, cold bool) (a answer, err error) {
	if c.reading == nil {
		c.blocks.close()
		c.state.close()
		d, err := readModel(c.Traces)
		if err != nil {
			return a, err
		}
		c.reading = &reading{model: d}
	}
	c.reading.mode = mode
	if err := c.layout.close(); err != nil {
		return a, err
	}
	c.layout = nil
	if cold {
		harness.ForgetFiles(c.Dir)
	}
	runtime.GC()
	layout, err := openLayout(c.Role, c.Dir, c.Spec, c.Budget, c.reading)
	if err != nil {
		return a, err
	}
	c.layout = layout
	a.Plan = c.layout.plan()
	return a, nil
}

// read makes queries, after some that only warm the caches, and compares every result with the
// chain.
func (c *worker) read(r request) (a answer, err error) {
	asker := newAsker(c.Spec, c.reading.model, r.Distribution, &c.zipfs, r.Round)
	warm, queries := asker.queries(r.Warm, r.Mix), asker.queries(r.N, r.Mix)
	if r.Op == opChange {
		queries = append(queries, asker.queries(r.N, r.Then)...)
	}
	if _, err := c.ask(warm); err != nil {
		return a, err
	}
	runtime.GC()
	hits, before := c.layout.hits(), harness.OwnIO()
	from, cpu := time.Now(), harness.CPUTime()
	a.Wrong, err = c.ask(queries)
	a.Seconds, a.CPU = time.Since(from).Seconds(), (harness.CPUTime() - cpu).Seconds()
	after := harness.OwnIO()
	a.Done, a.Reads, a.ReadBytes = len(queries), after.Reads-before.Reads, after.Read-before.Read
	a.Hits = c.layout.hits().minus(hits)
	return a, err
}

func (c *worker) ask(queries []query) (wrong int, err error) {
	var want, key []byte
	for _, q := range queries {
		if q.height > 0 {
			_, offset := txPlace(q.tx)
			err = c.layout.tx(q.height, q.tx, func(record, part []byte) error {
				if len(part) < offset || !isTx(c.Spec, q.height, q.tx, record, part[offset:]) {
					wrong++
				}
				return nil
			})
		} else {
			key = c.Spec.appendKey(key[:0], q.account)
			err = c.layout.account(key, func(value []byte) error {
				want = c.Spec.appendValue(want[:0], q.account, c.reading.model.Last[q.account])
				if !bytes.Equal(value, want) {
					wrong++
				}
				return nil
			})
		}
		if err != nil {
			return wrong, err
		}
	}
	return wrong, nil
}

// diskBytes returns the total size of all files below dir.
func diskBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // a compaction removed the file meanwhile
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
