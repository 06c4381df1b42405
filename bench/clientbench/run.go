package clientbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// Names of the stores.
const (
	nameStarling = "starling"
	nameEtcd     = "etcd"
)

// Names of the operations.
const (
	OpPut             = "put"
	OpTxn             = "transaction"
	OpGet             = "get"
	OpGetOrdered      = "get, ordered"
	opGetProved       = "get, proved"
	opGetProvedNewest = "get, proved, newest"
	OpRange           = "range"
	OpRangeOrdered    = "range, ordered"
	opRangeProved     = "range, proved"
	OpWatch           = "watch"
)

// operations lists all operations in the order of the table, with the stores that have each.
var operations = []struct {
	name string
	of   []string
}{
	{OpPut, []string{nameStarling, nameEtcd}},
	{OpTxn, []string{nameStarling, nameEtcd}},
	{OpGet, []string{nameStarling, nameEtcd}},
	{OpGetOrdered, []string{nameStarling, nameEtcd}},
	{opGetProved, []string{nameStarling}},
	{opGetProvedNewest, []string{nameStarling}},
	{OpRange, []string{nameStarling, nameEtcd}},
	{OpRangeOrdered, []string{nameStarling, nameEtcd}},
	{opRangeProved, []string{nameStarling}},
	{OpWatch, []string{nameStarling, nameEtcd}},
}

// store is a running store with its clients.
type store interface {
	load(ctx context.Context) error
	// run repeats an operation. seed determines the keys and values.
	run(ctx context.Context, what string, seed uint64) (Figures, error)
	close() error
}

// run is the state of one run.
type run struct {
	o        Options
	dir      string
	progress *harness.Progress
	programs map[string]string
	rounds   map[string]map[string][]Figures // by store, then by operation
	turns    int
	retries  []string // see turn
}

// Run runs the benchmark. It reports to progress, and always stops its processes.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		r := &run{o: o, dir: dir, progress: progress, programs: map[string]string{}, rounds: map[string]map[string][]Figures{nameStarling: {}, nameEtcd: {}}}
		if err := r.build(ctx); err != nil {
			return err
		}
		progress.Begin("load", "operations", o.Rounds*r.number())
		if err := harness.InTurns(o.Rounds, []string{nameStarling, nameEtcd}, func(round int, name string) error { return r.measure(ctx, round, name) }); err != nil {
			return err
		}
		result = newResult(o, r.rounds)
		result.EtcdRetries = r.retries
		return nil
	})
	return result, err
}

func (r *run) build(ctx context.Context) (err error) {
	if r.programs[nameStarling], err = network.Starlingd(ctx, r.o.Starlingd, r.progress); err != nil {
		return err
	}
	r.programs[nameEtcd], err = buildEtcdStore(ctx, r.o.EtcdStore, r.progress)
	return err
}

// number returns the number of operations that a round measures.
func (r *run) number() (n int) {
	for _, op := range operations {
		if slices.Contains(r.o.Operations, op.name) {
			n += len(op.of)
		}
	}
	return n
}

// measure adds the figures of one store in one round.
func (r *run) measure(ctx context.Context, round int, name string) error {
	figures, err := r.turn(ctx, round, name)
	if err != nil {
		return err
	}
	for op, f := range figures {
		r.rounds[name][op] = append(r.rounds[name][op], f)
	}
	r.progress.Add(len(figures))
	return nil
}

// turn measures the operations of a store.
func (r *run) turn(ctx context.Context, round int, name string) (figures map[string]Figures, err error) {
	r.turns++
	start := startStarling
	if name == nameEtcd {
		start = startEtcd
	}
	var ops []string
	for _, op := range operations {
		if slices.Contains(op.of, name) && slices.Contains(r.o.Operations, op.name) {
			ops = append(ops, op.name)
		}
	}
	t := turn{
		name: name, dir: filepath.Join(r.dir, fmt.Sprintf("turn-%d", r.turns)), operations: ops,
		seed: uint64(round), progress: r.progress, retries: &r.retries,
	}
	return t.measure(ctx, func(dir string) (store, error) { return start(ctx, r.o, r.programs[name], dir) })
}

// turn measures operations on a new store, in a folder of its own, which it removes.
type turn struct {
	name, dir  string
	operations []string
	seed       uint64
	progress   *harness.Progress
	retries    *[]string // errors of etcd after which it was measured again
}

// measure measures the operations. An error of etcd does not end a run of hours: etcd is measured
// once more, and the result reports that.
func (t turn) measure(ctx context.Context, start func(dir string) (store, error)) (map[string]Figures, error) {
	figures, err := t.once(ctx, start)
	if err != nil && t.name == nameEtcd && ctx.Err() == nil {
		*t.retries = append(*t.retries, err.Error())
		return t.once(ctx, start)
	}
	return figures, err
}

func (t turn) once(ctx context.Context, start func(dir string) (store, error)) (figures map[string]Figures, err error) {
	t.progress.Working(t.name)
	if err := os.MkdirAll(t.dir, 0o750); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.dir)) }()
	s, err := start(t.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.load(ctx); err != nil {
		return nil, fmt.Errorf("%s: load: %w", t.name, err)
	}
	figures = map[string]Figures{}
	for _, op := range t.operations {
		t.progress.Working(t.name + ", " + op)
		if figures[op], err = s.run(ctx, op, t.seed); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", t.name, op, err)
		}
	}
	return figures, nil
}
