// Package opsbench compares the operations of stores for a Cosmos SDK chain: IAVL's, memiavl's and
// ours. All run the same workload, each in its own process.
//
// The program is bench/sdk; its package kv does the measurements. The processes take turns: while
// one works, the others are stopped.
package opsbench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// Names of the stores. The trees alone have neither a log nor a multi-store.
const (
	Starling         = "starling"
	StarlingUnsynced = "starling, not synced"
	StarlingTree     = "starling, tree alone"
	Memiavl          = "memiavl"
	MemiavlLogged    = "memiavl, log in commit"
	MemiavlSynced    = "memiavl, log synced"
	MemiavlTree      = "memiavl, tree alone"
	IAVL             = "iavl"
)

// Names lists all stores in the order of the table.
var Names = []string{Starling, StarlingUnsynced, StarlingTree, Memiavl, MemiavlLogged, MemiavlSynced, MemiavlTree, IAVL}

const (
	batch         = 10_000 // changes per commit of the load
	rounds        = 4
	commits       = 30 // in each round
	oneCore       = 15
	warmUp        = 3 // unmeasured commits at the start of each round
	reads         = 20_000
	proofs        = 500
	iterated      = 100_000 // or all entries, if fewer
	versionsAtAll = rounds * (commits + oneCore + 2*warmUp)
)

// Figures are the results of one store. Times are medians over all rounds.
type Figures struct {
	LoadS       float64 `json:"load_s"`
	CommitP50MS float64 `json:"commit_p50_ms"` // from sorted changes to the end of Commit
	CommitP99MS float64 `json:"commit_p99_ms"`
	SetMS       float64 `json:"set_ms"` // part of the commit time for Set and Delete
	OneCoreMS   float64 `json:"commit_one_core_p50_ms"`
	GetNS       float64 `json:"get_ns"`
	IterateNS   float64 `json:"iterate_ns"` // per entry
	ProofUS     float64 `json:"proof_us"`
	ProofBytes  int     `json:"proof_bytes"`
	OpenS       float64 `json:"open_s"`        // in a new process
	BytesPerKey float64 `json:"bytes_per_key"` // anonymous memory after the load
	Root        string  `json:"root"`
}

// Options configure Run.
type Options struct {
	Keys    int
	Seed    uint64
	Program string   // path of the built program of bench/sdk
	Only    []string // of Names; nil: all
}

// entrant is a store under measurement.
type entrant struct {
	*harness.Process
	f     Figures
	keys  int // keys in the load
	dir   string
	work  *workload.Workload
	start func() (*harness.Process, storeAnswer, error)

	commit, set, one, get, iterate, prove []float64
}

// Run measures the stores, with databases in dir.
func Run(ctx context.Context, o Options, dir string, p *harness.Progress) (map[string]Figures, error) {
	names := o.Only
	if names == nil {
		names = Names
	}
	var all []*entrant
	defer func() {
		for _, e := range all {
			e.End()
		}
	}()
	for _, name := range names {
		e, err := begin(ctx, o, name, dir)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
		if err := e.load(p); err != nil {
			return nil, err
		}
		e.Pause()
	}
	p.Begin("store operations", "turns", rounds*len(all))
	for round := range rounds {
		for _, e := range all {
			p.Working(e.Name)
			e.Resume()
			if err := e.measure(uint64(round)); err != nil {
				return nil, err
			}
			e.Pause()
			p.Add(1)
		}
	}
	result := map[string]Figures{}
	p.Begin("open", "stores", len(all))
	for _, e := range all {
		p.Working(e.Name)
		e.Resume()
		if err := e.reopen(); err != nil {
			return nil, err
		}
		e.finish()
		result[e.Name] = e.f
		p.Add(1)
	}
	return result, sameRoots(result)
}

// sameRoots returns an error if IAVL and memiavl, which have the same tree, differ in a root, or if
// our stores differ among themselves.
func sameRoots(r map[string]Figures) error {
	for _, of := range []string{"starling", "iavl"} {
		var name, root string
		for _, n := range Names {
			f, measured := r[n]
			if !measured || strings.HasPrefix(n, "starling") != (of == "starling") {
				continue
			}
			if root != "" && f.Root != root {
				return fmt.Errorf("store %q has root %s, %q has %s", name, root, n, f.Root)
			}
			name, root = n, f.Root
		}
	}
	return nil
}

func begin(ctx context.Context, o Options, name, dir string) (*entrant, error) {
	w, err := workload.New(workload.Spec{Seed: o.Seed, Keys: o.Keys, Batch: batch}, versionsAtAll)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, strings.NewReplacer(" ", "-", ",", "").Replace(name))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	e := &entrant{work: w, keys: o.Keys, dir: dir, start: func() (p *harness.Process, a storeAnswer, err error) {
		p, err = harness.StartProgram(ctx, name, storeBegin{Store: name, Dir: dir}, &a, o.Program, "kv")
		return p, a, err
	}}
	e.Process, _, err = e.start()
	return e, err
}

// storeBegin, storeRequest and storeAnswer are copies of the types in bench/sdk/kv, whose module
// cannot be imported here.
type storeBegin struct {
	Store string `json:"store"`
	Dir   string `json:"dir"`
}

type storeRequest struct {
	Op    string `json:"op"`
	N     int    `json:"n,omitempty"`
	Procs int    `json:"procs,omitempty"`
}

type storeAnswer struct {
	Nanos int64  `json:"nanos"`
	Set   int64  `json:"set"`
	Root  []byte `json:"root"`
	Bytes int    `json:"bytes"`
}

// ask sends a request with its changes.
func (e *entrant) ask(op string, procs int, changes []workload.Change) (a storeAnswer, err error) {
	err = e.AskWith(storeRequest{Op: op, N: len(changes), Procs: procs}, changes, &a)
	return a, err
}

func (e *entrant) load(p *harness.Progress) error {
	p.Begin("load", "batches", workload.Spec{Keys: e.keys, Batch: batch}.LoadSteps())
	p.Working(e.Name)
	nanos := int64(0)
	for !e.work.Loaded() {
		a, err := e.ask("commit", 0, e.work.Next())
		if err != nil {
			return err
		}
		nanos += a.Nanos
		p.Add(1)
	}
	e.f.LoadS = float64(nanos) / 1e9
	a, err := e.ask("memory", 0, nil)
	e.f.BytesPerKey = float64(a.Bytes) / float64(e.work.Len())
	return err
}

func (e *entrant) measure(round uint64) error {
	// Disk writes that are pending since the last turn slow the first commits down, so all cores
	// and one core go first alternately.
	first := int(round % 2)
	for _, procs := range []int{first, 1 - first} {
		n, times := commits, &e.commit
		if procs == 1 {
			n, times = oneCore, &e.one
		}
		for i := range warmUp + n {
			a, err := e.ask("commit", procs, e.work.Next())
			if err != nil {
				return err
			}
			e.f.Root = fmt.Sprintf("%x", a.Root)
			if i < warmUp {
				continue
			}
			*times = append(*times, float64(a.Nanos)/1e6)
			if procs == 0 {
				e.set = append(e.set, float64(a.Set)/1e6)
			}
		}
	}
	a, err := e.ask("get", 0, e.work.Present(reads, 2*round))
	if err != nil {
		return err
	}
	e.get = append(e.get, float64(a.Nanos))
	if a, err = e.ask("prove", 0, e.work.Present(proofs, 2*round+1)); err != nil {
		return err
	}
	e.prove, e.f.ProofBytes = append(e.prove, float64(a.Nanos)/1e3), a.Bytes
	var read storeAnswer
	err = e.Ask(storeRequest{Op: "iterate", N: min(iterated, e.work.Len())}, &read)
	e.iterate = append(e.iterate, float64(read.Nanos))
	return err
}

// reopen ends the process, and opens its databases in another. A tree alone has no databases.
func (e *entrant) reopen() error {
	if strings.HasSuffix(e.Name, "alone") {
		e.End()
		return nil
	}
	before, err := e.ask("settle", 0, nil)
	if err != nil {
		return err
	}
	// Leave versions that were not settled, as in a running node.
	for range warmUp {
		if before, err = e.ask("commit", 0, e.work.Next()); err != nil {
			return err
		}
	}
	e.End()
	var a storeAnswer
	if e.Process, a, err = e.start(); err != nil {
		return err
	}
	if !bytes.Equal(a.Root, before.Root) {
		return fmt.Errorf("store %q reopened with root %x, but was closed with %x", e.Name, a.Root, before.Root)
	}
	e.f.OpenS = float64(a.Nanos) / 1e9
	e.End()
	return nil
}

func (e *entrant) finish() {
	e.f.CommitP50MS, e.f.CommitP99MS = harness.Median(e.commit), harness.Percentile(e.commit, 99)
	e.f.SetMS, e.f.OneCoreMS = harness.Median(e.set), harness.Median(e.one)
	e.f.GetNS, e.f.IterateNS, e.f.ProofUS = harness.Median(e.get), harness.Median(e.iterate), harness.Median(e.prove)
}
