// Package opsbench compares the operations of stores under a Cosmos SDK chain: IAVL's, memiavl's
// and ours, on one workload, each in a process of its own.
//
//	Run ──┬─ starling …, iavl   program of bench/storeops (the SDK's modules) ┐
//	      └─ memiavl …          this program                                  ┴─ package ops measures
//
// They take turns: a process is stopped while another one works.
package opsbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/ops"
	"github.com/starling-kv/starling/bench/workload"
)

// The stores. Those in memory alone have neither a log nor a multi-store.
const (
	Starling         = "starling"
	StarlingUnsynced = "starling, not synced"
	StarlingTree     = "starling, tree alone"
	Memiavl          = "memiavl"
	MemiavlLogged    = "memiavl, log in commit"
	MemiavlTree      = "memiavl, tree alone"
	IAVL             = "iavl"
)

// Names are all of them, in the order of the table.
var Names = []string{Starling, StarlingUnsynced, StarlingTree, Memiavl, MemiavlLogged, MemiavlTree, IAVL}

const (
	batch         = 10_000 // changes in a commit of the load
	rounds        = 4
	commits       = 30 // in each round
	oneCore       = 15
	warmUp        = 3 // commits at the start of each round
	reads         = 20_000
	proofs        = 500
	iterated      = 100_000 // or as many as there are
	versionsAtAll = rounds * (commits + oneCore + 2*warmUp)
)

// Figures of a store. Times are medians of all rounds.
type Figures struct {
	LoadS       float64 `json:"load_s"`
	CommitP50MS float64 `json:"commit_p50_ms"` // from the sorted changes to the end of Commit
	CommitP99MS float64 `json:"commit_p99_ms"`
	SetMS       float64 `json:"set_ms"` // the part of it for Set and Delete
	OneCoreMS   float64 `json:"commit_one_core_p50_ms"`
	GetNS       float64 `json:"get_ns"`
	IterateNS   float64 `json:"iterate_ns"` // an entry
	ProofUS     float64 `json:"proof_us"`
	ProofBytes  int     `json:"proof_bytes"`
	OpenS       float64 `json:"open_s"`        // in a new process
	BytesPerKey float64 `json:"bytes_per_key"` // anonymous memory after the load
	Root        string  `json:"root"`
}

// Options of Run.
type Options struct {
	Keys    int
	Seed    uint64
	Program string   // the built one of bench/storeops
	Only    []string // of Names; nil: all
}

// entrant is a store that is measured.
type entrant struct {
	*harness.Process
	f     Figures
	keys  int // of the load
	dir   string
	work  *workload.Workload
	start func() (*harness.Process, error)

	commit, set, one, get, iterate, prove []float64
}

// Run measures stores, with databases in dir.
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

// sameRoots returns an error if IAVL and memiavl, whose trees are the same, have other roots, or
// ours among themselves.
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
	args := []string{o.Program}
	if strings.HasPrefix(name, "memiavl") {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		args = []string{self, ChildCommand}
	}
	e := &entrant{work: w, keys: o.Keys, dir: dir, start: func() (*harness.Process, error) {
		return harness.StartProgram(ctx, name, args[0], args[1:]...)
	}}
	if e.Process, err = e.start(); err != nil {
		return nil, err
	}
	if _, err := e.open(); err != nil {
		e.End()
		return nil, err
	}
	return e, nil
}

func (e *entrant) open() (a ops.Answer, err error) {
	err = e.Ask(ops.Request{Op: "open", Store: e.Name, Dir: e.dir}, &a)
	return a, err
}

// ask sends a request with its changes.
func (e *entrant) ask(op string, procs int, changes []workload.Change) (a ops.Answer, err error) {
	r := ops.Request{Op: op, N: len(changes), Procs: procs}
	err = e.AskWith(r, func(w *bufio.Writer) error { return writeChanges(w, changes) }, &a)
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
	// What waits for the disk since the last turn slows the first commits down, so all cores and
	// one begin by turns.
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
	a = ops.Answer{}
	err = e.Ask(ops.Request{Op: "iterate", N: min(iterated, e.work.Len())}, &a)
	e.iterate = append(e.iterate, float64(a.Nanos))
	return err
}

// reopen ends the process, and opens its databases in another. Trees alone have none.
func (e *entrant) reopen() error {
	if strings.HasSuffix(e.Name, "alone") {
		e.End()
		return nil
	}
	before, err := e.ask("settle", 0, nil)
	if err != nil {
		return err
	}
	// Versions behind what was settled, which a node would have, too.
	for range warmUp {
		if before, err = e.ask("commit", 0, e.work.Next()); err != nil {
			return err
		}
	}
	e.End()
	if e.Process, err = e.start(); err != nil {
		return err
	}
	a, err := e.open()
	if err != nil {
		return err
	}
	if !bytes.Equal(a.Root, before.Root) {
		return fmt.Errorf("store %q opens with root %x, it was closed with %x", e.Name, a.Root, before.Root)
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

// writeChanges is the inverse of what package ops reads.
func writeChanges(w *bufio.Writer, changes []workload.Change) error {
	var b []byte
	for _, c := range changes {
		b = append(binary.AppendUvarint(b[:0], uint64(len(c.Key))), c.Key...)
		if c.Value == nil {
			b = binary.AppendUvarint(b, 0)
		} else {
			b = append(binary.AppendUvarint(b, uint64(len(c.Value))+1), c.Value...)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
