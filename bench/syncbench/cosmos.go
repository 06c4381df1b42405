package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/opsbench"
	"github.com/starling-kv/starling/bench/workload"
)

// Engines are the SDK's databases that RunCosmos can measure.
var Engines = []string{"goleveldb", "pebbledb"}

// CosmosOptions of RunCosmos.
type CosmosOptions struct {
	Keys    int
	Repeat  int      // joins, and restores of the SDK's store; medians count
	Engines []string // of Engines
	Seed    uint64
	Dir     string // for databases, which are removed; empty: the system's temporary folder
	SDK     string // the built program of bench/sdkstore; empty: it is built

	Stores   []string // of opsbench.Names; none: their operations are not measured
	StoreOps string   // the built program of bench/storeops; empty: it is built

	Commits int    // blocks of each node whose commits are timed; 0: none are
	Node    string // the built program of bench/sdknode; empty: it is built
}

// Check returns an error if RunCosmos cannot be run so.
func (o CosmosOptions) Check() error {
	if o.Keys < 1 || o.Repeat < 1 || len(o.Engines)+len(o.Stores) == 0 {
		return errors.New("--keys and --repeat are 1 or more, and --engines or --stores names one at least")
	}
	if o.Commits < 0 || o.Commits > 0 && o.Keys < workload.MinKeys {
		return fmt.Errorf("--commits is 0 or more, and needs %d --keys at least", workload.MinKeys)
	}
	for _, s := range o.Stores {
		if !slices.Contains(opsbench.Names, s) {
			return fmt.Errorf("--stores: %q is none of %q", s, opsbench.Names)
		}
	}
	if len(o.Stores) > 0 && o.Keys < workload.MinKeys {
		return fmt.Errorf("--keys: the operations of --stores need %d at least", workload.MinKeys)
	}
	for _, e := range o.Engines {
		if !slices.Contains(Engines, e) {
			return fmt.Errorf("--engines: %q is none of %q", e, Engines)
		}
	}
	return nil
}

// CosmosResult is the outcome of RunCosmos.
type CosmosResult struct {
	Keys    int                     `json:"keys"`
	Engines map[string]CosmosFigure `json:"engines"`
	// Stores are operations of stores under the SDK, by opsbench.Names.
	Stores  map[string]opsbench.Figures `json:"stores,omitempty"`
	Repeat  int                         `json:"repeat"`
	Seed    uint64                      `json:"seed"`
	Machine harness.Machine             `json:"machine"`
}

// CosmosFigure is what one engine takes. Times are medians.
type CosmosFigure struct {
	ManifestMS float64 `json:"manifest_ms"`  // to cut the state on disk
	ServeCPUS  float64 `json:"serve_cpu_s"`  // to read all chunks, and prove them
	VerifyCPUS float64 `json:"verify_cpu_s"` // to prove them at the joiner
	WriteCPUS  float64 `json:"write_cpu_s"`  // to write the home
	JoinS      float64 `json:"join_s"`       // all of it at once, until the SDK has opened the home
	JoinCPUS   float64 `json:"join_cpu_s"`
	AgainS     float64 `json:"again_s"` // JoinS, from a server that served before
	AgainCPUS  float64 `json:"again_cpu_s"`
	// SDKCreateS and SDKRestoreS are what the SDK's own snapshots take.
	SDKCreateS  float64 `json:"sdk_create_s"`
	SDKRestoreS float64 `json:"sdk_restore_s"`
	SDKCPUS     float64 `json:"sdk_cpu_s"` // of both
	Times       float64 `json:"times"`     // create and restore over join
	Overhead    float64 `json:"overhead_bytes_per_leaf"`
	Bytes       int64   `json:"bytes"`
	Chunks      int     `json:"chunks"`
	// CommitP99 is the 99th percentile of a commit, of a node from which a joiner reads chunks all
	// the time, over that of a node that is not wrapped; ServedP99 without the joiner.
	CommitP99 float64                 `json:"commit_p99_ratio,omitempty"`
	ServedP99 float64                 `json:"served_commit_p99_ratio,omitempty"`
	Commits   map[string]CommitFigure `json:"commits,omitempty"` // plain, served, joined
}

// RunCosmos measures how a new node of a Cosmos SDK chain gets its state.
func RunCosmos(ctx context.Context, o CosmosOptions, progress *harness.Progress) (*CosmosResult, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	result := &CosmosResult{Keys: o.Keys, Repeat: o.Repeat, Seed: o.Seed, Engines: map[string]CosmosFigure{}, Machine: harness.ThisMachine()}
	err := harness.InFolder(ctx, o.Dir, "databases", progress, func(dir string) error {
		r := &runner{dir: dir, progress: progress}
		program := o.SDK
		if program == "" && len(o.Engines) > 0 {
			var err error
			if program, err = r.build(ctx); err != nil {
				return err
			}
		}
		if o.Commits > 0 && len(o.Engines) > 0 {
			var err error
			if o.Node, err = r.buildUnless(ctx, o.Node, "sdknode", "the SDK's node"); err != nil {
				return err
			}
		}
		for _, engine := range o.Engines {
			f, err := r.cosmos(ctx, o, program, engine)
			if err != nil {
				return fmt.Errorf("%s: %w", engine, err)
			}
			result.Engines[engine] = f
		}
		if len(o.Stores) == 0 {
			return nil
		}
		program, err := r.buildUnless(ctx, o.StoreOps, "storeops", "the stores")
		if err != nil {
			return err
		}
		result.Stores, err = opsbench.Run(ctx, opsbench.Options{Keys: o.Keys, Seed: o.Seed, Program: program, Only: o.Stores}, dir, progress)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// buildUnless builds the program of a module of bench, unless it is built.
func (r *runner) buildUnless(ctx context.Context, built, module, name string) (program string, err error) {
	if built != "" {
		return built, nil
	}
	r.progress.Begin("build", "programs", 1)
	r.progress.Working(name)
	if program, err = harness.BuildBeside(ctx, module, r.dir); err == nil {
		r.progress.Add(1)
	}
	return program, err
}

func (r *runner) cosmos(ctx context.Context, o CosmosOptions, program, engine string) (f CosmosFigure, err error) {
	dir, err := r.folder(engine)
	if err != nil {
		return f, err
	}
	store, err := startSDK(ctx, program, dir, "--backend", engine)
	if err != nil {
		return f, err
	}
	defer func() { store.End() }()
	w, err := workload.New(specOf(o.Keys, o.Seed), o.Commits+2*commitWarmUp)
	if err != nil {
		return f, err
	}
	if err := loadSDK(store, w, o.Keys, r.progress); err != nil {
		return f, err
	}
	// What the load has left in memory would be scanned by each garbage collection that follows.
	store.End()
	if store, err = startSDK(ctx, program, dir, "--backend", engine); err != nil {
		return f, err
	}
	r.progress.Begin("join", "turns", 1+2*o.Repeat)
	r.progress.Working(engine)
	created, err := store.create()
	if err != nil {
		return f, err
	}
	r.progress.Add(1)
	var manifest, serve, verify, write, join, cpu, again, againCPU, restore, restoreCPU []float64
	for range o.Repeat {
		syncDisk()
		a, err := store.join()
		if err != nil {
			return f, err
		}
		r.progress.Add(1)
		syncDisk()
		b, err := store.restore()
		if err != nil {
			return f, err
		}
		r.progress.Add(1)
		manifest, serve, verify, write = append(manifest, a.ManifestMS), append(serve, a.ServeCPUS), append(verify, a.VerifyCPUS), append(write, a.WriteCPUS)
		join, cpu, restore = append(join, a.Seconds), append(cpu, a.CPUS), append(restore, b.Seconds)
		again, againCPU, restoreCPU = append(again, a.AgainS), append(againCPU, a.AgainCPUS), append(restoreCPU, b.CPUS)
		f.Overhead, f.Bytes, f.Chunks = a.Overhead, a.Bytes, a.Chunks
	}
	f.ManifestMS, f.ServeCPUS, f.VerifyCPUS, f.WriteCPUS = harness.Median(manifest), harness.Median(serve), harness.Median(verify), harness.Median(write)
	f.JoinS, f.JoinCPUS, f.SDKCreateS, f.SDKRestoreS = harness.Median(join), harness.Median(cpu), created.Seconds, harness.Median(restore)
	f.AgainS, f.AgainCPUS = harness.Median(again), harness.Median(againCPU)
	f.SDKCPUS = created.CPUS + harness.Median(restoreCPU)
	f.Times = harness.Ratio(f.SDKCreateS+f.SDKRestoreS, f.JoinS)
	if o.Commits == 0 {
		return f, nil
	}
	store.End() // it has the database
	if f.Commits, err = r.commits(ctx, o, o.Node, engine, filepath.Join(dir, "source"), w); err != nil {
		return f, err
	}
	plain := f.Commits[commitModes[0]].P99MS
	f.ServedP99, f.CommitP99 = harness.Ratio(f.Commits[commitModes[1]].P99MS, plain), harness.Ratio(f.Commits[commitModes[2]].P99MS, plain)
	return f, nil
}

// Print writes a table with a column for each engine, and how to read it.
func (r *CosmosResult) Print(out io.Writer) {
	if len(r.Engines) > 0 {
		r.printJoins(out)
	}
	r.printCommits(out)
	if len(r.Stores) > 0 {
		opsbench.Print(out, r.Keys, r.Stores)
	}
}

func (r *CosmosResult) printJoins(out io.Writer) {
	head := []string{harness.Count(r.Keys, "key")}
	rows := [][]string{{"manifest, ms"}, {"serve, CPU s"}, {"verify, CPU s"}, {"write, CPU s"}, {"join, s"}, {"join, CPU s"}, {"join from a server that served before, s"}, {"the same, CPU s"}, {"SDK create, s"}, {"SDK restore, s"}, {"SDK both, CPU s"},
		{"create + restore over join"}, {"beside keys and values, bytes a leaf"}}
	for _, engine := range Engines {
		f, measured := r.Engines[engine]
		if !measured {
			continue
		}
		head = append(head, engine)
		for i, v := range []float64{f.ManifestMS, f.ServeCPUS, f.VerifyCPUS, f.WriteCPUS, f.JoinS, f.JoinCPUS, f.AgainS, f.AgainCPUS, f.SDKCreateS, f.SDKRestoreS, f.SDKCPUS, f.Times, f.Overhead} {
			rows[i] = append(rows[i], fmt.Sprintf("%.2f", v))
		}
	}
	harness.PrintAligned(out, append([][]string{head}, rows...))
	fmt.Fprintf(out, `
The SDK's source, its snapshot, and all homes are databases of the engine on this machine's disk; no network is between them.
Their process is new since the state was loaded. The stages are measured alone, one after another; join is all of them at once
on all processors, until the SDK has opened the home and has the same hash. Medians of %s; the snapshot is created once.
`, harness.Count(r.Repeat, "turn"))
}
