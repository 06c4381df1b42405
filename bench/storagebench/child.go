package storagebench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// ChildCommand is the hidden command with which this program runs itself for each contestant.
const ChildCommand = "storage-contestant"

// child is one contestant, or one of the other roles.
type child struct {
	begin
	maker *maker

	layout        layout
	blocks, state *traceReader
	step          int // replayed
	reading       *reading
	zipfs         zipfs

	chainer *chainer // recovery, commits
}

// Serve is the child: it answers requests until there are no more.
func Serve(in io.Reader, out io.Writer) (err error) {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	c := &child{}
	if err := requests.Decode(&c.begin); err != nil {
		return fmt.Errorf("only starling-bench itself runs this command; run 'starling-bench storage': %w", err)
	}
	opened := c.open()
	if err := answers.Encode(c.answer(request{Op: opBegin}, opened)); err != nil || opened != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	return harness.Serve(requests, answers, func(r request) answer { return c.answer(r, nil) })
}

func (c *child) open() (err error) {
	switch c.Role {
	case roleMaker:
		c.maker, err = newMaker(c.Traces, c.Spec)
		return err
	case roleWriter, roleOpener, roleDurable, roleMemory, rolePaged:
		c.chainer = newChainer(c.begin)
		return nil
	}
	file := fileNodes
	if c.Role == nameLeaves || c.Role == nameStarling {
		file = fileLeaves
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

func (c *child) close() (err error) {
	if c.layout != nil {
		err = c.layout.close()
	}
	if c.chainer != nil {
		err = errors.Join(err, c.chainer.close())
	}
	return err
}

func (c *child) answer(r request, err error) answer {
	var a answer
	if err == nil {
		a, err = c.do(r)
	}
	if err != nil {
		return answer{Error: fmt.Sprintf("%s: %v", r.Op, err)}
	}
	return a
}

func (c *child) do(r request) (answer, error) {
	switch r.Op {
	case opBegin:
		return answer{}, nil
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
	return answer{}, errors.New("no such request")
}

func (c *child) finishModel() (a answer, err error) {
	if err := c.maker.finish(); err != nil {
		return a, err
	}
	d := c.maker.model
	a.Model = modelSizes{
		Keys: len(d.Present), Height: d.Height, StateBytes: d.TotalState, BlockLogical: d.BlockBytes, StateLogical: d.StateBytes,
		NodeOps: d.NodeOps, NodeBytes: d.NodeBytes, LeafOps: d.LeafOps, LeafBytes: d.LeafBytes,
	}
	return a, nil
}

// replay makes the requests of n steps, and times all of them. Background work between requests is
// not timed: the process is stopped then.
func (c *child) replay(n int) (a answer, err error) {
	from, cpu := time.Now(), cpuTime()
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
	a.Seconds, a.CPU = time.Since(from).Seconds(), (cpuTime() - cpu).Seconds()
	syncDisk() // the next contestant must not wait for this one's writes
	return a, nil
}

// Background work is over when hardly anything was written for so long. The Go runtime also writes,
// to wake its threads.
const (
	settleEvery = 100 * time.Millisecond
	settleQuiet = 5 // times
	settleSlack = 16 << 10
)

// settle waits until flushes and compactions are over. Memtables are not flushed: their bytes are
// in the log, or durable.
func (c *child) settle() (a answer, err error) {
	if err := c.layout.drain(); err != nil {
		return a, err
	}
	from, cpu := time.Now(), cpuTime()
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	last := readProcIO().written
	for quiet := 0; quiet < settleQuiet; {
		<-ticker.C
		now := readProcIO().written
		if quiet++; now > last+settleSlack || c.layout.busy() {
			quiet = 0
		}
		last = now
	}
	a.Seconds, a.CPU = time.Since(from).Seconds(), (cpuTime() - cpu).Seconds()
	if zones, is := c.layout.(*starlingLayout); is {
		a.Zones = zones.zones()
	}
	a.Written, a.Counts, a.Disk, a.Plan = readProcIO().written, c.layout.counts(), diskBytes(c.Dir), c.layout.plan()
	syncDisk()
	return a, nil
}

// reopen closes the files and opens them for reading, so that every cache is empty; with cold, the
// system's page cache too.
func (c *child) reopen(mode cacheMode, cold bool) (a answer, err error) {
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
		forgetFiles(c.Dir)
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

// read makes queries, first some that only warm the caches. It compares every answer with the
// chain.
func (c *child) read(r request) (a answer, err error) {
	asker := newAsker(c.Spec, c.reading.model, r.Distribution, &c.zipfs, r.Round)
	warm, queries := asker.queries(r.Warm, r.Mix), asker.queries(r.N, r.Mix)
	if r.Op == opChange {
		queries = append(queries, asker.queries(r.N, r.Then)...)
	}
	if _, err := c.ask(warm); err != nil {
		return a, err
	}
	runtime.GC()
	hits, before := c.layout.hits(), readProcIO()
	from, cpu := time.Now(), cpuTime()
	a.Wrong, err = c.ask(queries)
	a.Seconds, a.CPU = time.Since(from).Seconds(), (cpuTime() - cpu).Seconds()
	after := readProcIO()
	a.Done, a.Reads, a.ReadBytes = len(queries), after.reads-before.reads, after.read-before.read
	a.Hits = c.layout.hits().minus(hits)
	return a, err
}

func (c *child) ask(queries []query) (wrong int, err error) {
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
