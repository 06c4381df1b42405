package clientbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/starling-kv/starling/bench/harness"
)

// The stores.
const (
	nameStarling = "starling"
	nameEtcd     = "etcd"
)

// The operations. The names of those that etcd has are bench/etcdstore's.
const (
	opPut             = "put"
	opTxn             = "transaction"
	opGet             = "get"
	opGetOrdered      = "get, ordered"
	opGetProved       = "get, proved"
	opGetProvedNewest = "get, proved, newest"
	opRange           = "range"
	opRangeOrdered    = "range, ordered"
	opRangeProved     = "range, proved"
	opWatch           = "watch"
)

// operations are all of them, in the order of the table. The values are of which stores.
var operations = []struct {
	name string
	of   []string
}{
	{opPut, []string{nameStarling, nameEtcd}},
	{opTxn, []string{nameStarling, nameEtcd}},
	{opGet, []string{nameStarling, nameEtcd}},
	{opGetOrdered, []string{nameStarling, nameEtcd}},
	{opGetProved, []string{nameStarling}},
	{opGetProvedNewest, []string{nameStarling}},
	{opRange, []string{nameStarling, nameEtcd}},
	{opRangeOrdered, []string{nameStarling, nameEtcd}},
	{opRangeProved, []string{nameStarling}},
	{opWatch, []string{nameStarling, nameEtcd}},
}

// store is a running store with its clients.
type store interface {
	load(ctx context.Context) error
	// run repeats an operation. The seed chooses keys and values.
	run(ctx context.Context, what string, seed uint64) (Figures, error)
	close() error
}

// run makes one run.
type run struct {
	o        Options
	dir      string
	progress *harness.Progress
	programs map[string]string
	rounds   map[string]map[string][]Figures // by store and operation
	turns    int
}

// Run measures. It says on progress how far it is, and ends its processes in any case.
func Run(ctx context.Context, o Options, progress *harness.Progress) (result *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	err = harness.InFolder(ctx, o.Dir, "homes", progress, func(dir string) error {
		r := &run{o: o, dir: dir, progress: progress, programs: map[string]string{}, rounds: map[string]map[string][]Figures{nameStarling: {}, nameEtcd: {}}}
		if err := r.build(ctx); err != nil {
			return err
		}
		progress.Begin("load", "operations", o.Rounds*r.number())
		if err := harness.InTurns(o.Rounds, []string{nameStarling, nameEtcd}, func(round int, name string) error { return r.turn(ctx, round, name) }); err != nil {
			return err
		}
		result = newResult(o, r.rounds)
		return nil
	})
	return result, err
}

func (r *run) build(ctx context.Context) (err error) {
	r.progress.Begin("build", "programs", 2)
	r.progress.Working(nameStarling)
	if r.programs[nameStarling], err = buildStarlingd(ctx, r.o.Starlingd, r.dir); err != nil {
		return err
	}
	r.progress.Add(1)
	r.progress.Working(nameEtcd)
	if r.programs[nameEtcd] = r.o.EtcdStore; r.o.EtcdStore == "" {
		r.programs[nameEtcd], err = harness.BuildBeside(ctx, "etcdstore", r.dir)
	}
	r.progress.Add(1)
	return err
}

// number is how many operations a round measures.
func (r *run) number() (n int) {
	for _, op := range operations {
		n += len(op.of)
	}
	return n
}

// turn measures all operations of a store that begins anew.
func (r *run) turn(ctx context.Context, round int, name string) (err error) {
	r.progress.Working(name)
	r.turns++
	dir := filepath.Join(r.dir, fmt.Sprintf("turn-%d", r.turns))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	start := startStarling
	if name == nameEtcd {
		start = startEtcd
	}
	s, err := start(ctx, r.o, r.programs[name], dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.load(ctx); err != nil {
		return fmt.Errorf("%s: load: %w", name, err)
	}
	for _, op := range operations {
		for _, of := range op.of {
			if of != name {
				continue
			}
			r.progress.Working(name + ", " + op.name)
			f, err := s.run(ctx, op.name, uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			r.rounds[name][op.name] = append(r.rounds[name][op.name], f)
			r.progress.Add(1)
		}
	}
	return nil
}
