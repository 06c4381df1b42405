package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/opsbench"
	"github.com/starling-kv/starling/bench/workload"
)

// Engines are the SDK's databases that RunCosmos can measure.
var Engines = []string{"goleveldb", "pebbledb"}

// CosmosOptions configure RunCosmos.
type CosmosOptions struct {
	Keys    int
	Repeat  int      // number of joins, and of restores of the SDK's store
	Engines []string // of Engines
	Seed    uint64
	SDK     string   // path of the built program of bench/sdk
	Stores  []string // of opsbench.Names; none: operations are not measured
	Commits int      // timed blocks of each node; 0: none
	Records bool     // the state has records like a chain's, not random bytes
}

// Flags adds the flags of cosmos.
func (o *CosmosOptions) Flags(f *harness.Flags) {
	keys(f, &o.Keys)
	f.Names(&o.Engines, "engines", Engines, Engines, "databases of homes; empty for none")
	f.Int(&o.Repeat, "repeat", 3, 1, 100, "number of joins and restores; the result has their medians")
	f.Seed(&o.Seed)
	f.Int(&o.Commits, "commits", 500, 0, maxBlocks, "number of blocks whose commits are timed, with and without serving; 0: none")
	f.Names(&o.Stores, "stores", opsbench.Names, opsbench.Names, "stores to measure operations of; empty for none")
	f.BoolVar(&o.Records, "records", false, "a state of records like those of a chain's modules, which compress, instead of random bytes; only joins are measured")
	f.Program(&o.SDK, "sdk")
	f.Also(func() error {
		if o.Records {
			f.Unless("commits", "0", "stores", "")
			if o.Commits > 0 || len(o.Stores) > 0 {
				return errors.New("--records allows neither --commits nor --stores")
			}
		}
		if len(o.Engines)+len(o.Stores) == 0 {
			return errors.New("--engines and --stores are both empty")
		}
		return nil
	})
}

// CosmosResult is the outcome of RunCosmos.
type CosmosResult struct {
	Keys    int                     `json:"keys"`
	Engines map[string]CosmosFigure `json:"engines"`
	// Stores has the operations of stores below the SDK, by opsbench.Names.
	Stores  map[string]opsbench.Figures `json:"stores,omitempty"`
	Repeat  int                         `json:"repeat"`
	Commits int                         `json:"commits"` // timed blocks of each node
	Records bool                        `json:"records,omitempty"`
	Seed    uint64                      `json:"seed"`
	Machine harness.Machine             `json:"machine"`
	Targets []harness.Target            `json:"targets"`
}

// CosmosFigure has the figures of one engine. Times are medians.
type CosmosFigure struct {
	ManifestMS float64 `json:"manifest_ms"` // cutting the state on disk into chunks
	ServeCPUS  float64 `json:"serve_cpu_s"` // reading and proving all chunks
	PackCPUS   float64 `json:"compress_cpu_s"`
	UnpackCPUS float64 `json:"decompress_cpu_s"`
	VerifyCPUS float64 `json:"verify_cpu_s"` // verifying them at the joiner
	WriteCPUS  float64 `json:"write_cpu_s"`  // writing the home
	JoinS      float64 `json:"join_s"`       // the whole join, until the SDK has opened the home
	JoinCPUS   float64 `json:"join_cpu_s"`
	AgainS     float64 `json:"again_s"` // JoinS from a server that has served before
	AgainCPUS  float64 `json:"again_cpu_s"`
	// SDKCreateS and SDKRestoreS are the times of the SDK's own snapshots.
	SDKCreateS  float64 `json:"sdk_create_s"`
	SDKRestoreS float64 `json:"sdk_restore_s"`
	SDKCPUS     float64 `json:"sdk_cpu_s"` // both together
	Times       float64 `json:"times"`     // create and restore over join
	Overhead    float64 `json:"overhead_bytes_per_leaf"`
	// Bytes is the length of the manifest and of the chunks as they are sent, PlainBytes before
	// compression, and SDKBytes that of the SDK's snapshot, which is compressed.
	Bytes      int64   `json:"bytes"`
	PlainBytes int64   `json:"plain_bytes"`
	SDKBytes   int64   `json:"sdk_bytes"`
	BytesX     float64 `json:"bytes_x"` // Bytes over SDKBytes
	Chunks     int     `json:"chunks"`
	// CommitP99 is the 99th percentile of a commit while a joiner reads chunks all the time,
	// relative to a node that does not serve. ServedP99 is the same without the joiner.
	CommitP99 float64                 `json:"commit_p99_ratio,omitempty"`
	ServedP99 float64                 `json:"served_commit_p99_ratio,omitempty"`
	Commits   map[string]CommitFigure `json:"commits,omitempty"` // plain, served, joined
}

// RunCosmos measures how a new node of a Cosmos SDK chain gets its state.
func RunCosmos(ctx context.Context, o CosmosOptions, progress *harness.Progress) (*CosmosResult, error) {
	result := &CosmosResult{Keys: o.Keys, Repeat: o.Repeat, Commits: o.Commits, Records: o.Records, Seed: o.Seed, Engines: map[string]CosmosFigure{}, Machine: harness.ThisMachine()}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		r := &runner{dir: dir, progress: progress}
		program, err := harness.Build(ctx, o.SDK, "bench/sdk", ".", progress)
		if err != nil {
			return err
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
		result.Stores, err = opsbench.Run(ctx, opsbench.Options{Keys: o.Keys, Seed: o.Seed, Program: program, Only: o.Stores}, dir, progress)
		return err
	})
	if err != nil {
		return nil, err
	}
	result.Targets = result.targets()
	return result, nil
}

func (r *runner) cosmos(ctx context.Context, o CosmosOptions, program, engine string) (f CosmosFigure, err error) {
	dir, err := r.folder(engine)
	if err != nil {
		return f, err
	}
	store, err := startSDK(ctx, program, sdkBegin{Dir: dir, Backend: engine, Records: o.Records})
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
	// Each later garbage collection would scan what the load has left in memory.
	store.End()
	if store, err = startSDK(ctx, program, sdkBegin{Dir: dir, Backend: engine, Records: o.Records}); err != nil {
		return f, err
	}
	r.progress.Begin("join", "turns", 1+2*o.Repeat)
	r.progress.Working(engine)
	created, err := store.create()
	if err != nil {
		return f, err
	}
	r.progress.Add(1)
	var joins, restores []sdkAnswer
	for range o.Repeat {
		harness.SyncDisk()
		a, err := store.join()
		if err != nil {
			return f, err
		}
		r.progress.Add(1)
		harness.SyncDisk()
		b, err := store.restore()
		if err != nil {
			return f, err
		}
		r.progress.Add(1)
		joins, restores = append(joins, a), append(restores, b)
		f.Overhead, f.Bytes, f.PlainBytes, f.SDKBytes, f.Chunks = a.Overhead, a.Bytes, a.PlainBytes, b.Bytes, a.Chunks
	}
	f.BytesX = harness.Ratio(float64(f.Bytes), float64(f.SDKBytes))
	join := func(of func(sdkAnswer) float64) float64 { return harness.MedianOf(joins, of) }
	f.ManifestMS, f.ServeCPUS = join(func(a sdkAnswer) float64 { return a.ManifestMS }), join(func(a sdkAnswer) float64 { return a.ServeCPUS })
	f.PackCPUS, f.UnpackCPUS = join(func(a sdkAnswer) float64 { return a.PackCPUS }), join(func(a sdkAnswer) float64 { return a.UnpackCPUS })
	f.VerifyCPUS, f.WriteCPUS = join(func(a sdkAnswer) float64 { return a.VerifyCPUS }), join(func(a sdkAnswer) float64 { return a.WriteCPUS })
	f.JoinS, f.JoinCPUS = join(func(a sdkAnswer) float64 { return a.Seconds }), join(func(a sdkAnswer) float64 { return a.CPUS })
	f.AgainS, f.AgainCPUS = join(func(a sdkAnswer) float64 { return a.AgainS }), join(func(a sdkAnswer) float64 { return a.AgainCPUS })
	f.SDKCreateS, f.SDKRestoreS = created.Seconds, harness.MedianOf(restores, func(a sdkAnswer) float64 { return a.Seconds })
	f.SDKCPUS = created.CPUS + harness.MedianOf(restores, func(a sdkAnswer) float64 { return a.CPUS })
	f.Times = harness.Ratio(f.SDKCreateS+f.SDKRestoreS, f.JoinS)
	if o.Commits == 0 {
		return f, nil
	}
	store.End() // releases the database
	if f.Commits, err = r.commits(ctx, o, program, engine, filepath.Join(dir, "source"), w); err != nil {
		return f, err
	}
	plain := f.Commits[commitModes[0]].P99MS
	f.ServedP99, f.CommitP99 = harness.Ratio(f.Commits[commitModes[1]].P99MS, plain), harness.Ratio(f.Commits[commitModes[2]].P99MS, plain)
	return f, nil
}

// Print writes a table with a column for each engine, and explains it.
func (r *CosmosResult) Print(out io.Writer) {
	if len(r.Engines) > 0 {
		r.printJoins(out)
	}
	r.printCommits(out)
	if len(r.Stores) > 0 {
		opsbench.Print(out, r.Keys, r.Stores)
	}
	harness.PrintTargets(out, "1,000,000 keys", r.Targets)
}

func (r *CosmosResult) printJoins(out io.Writer) {
	head := []string{harness.Count(r.Keys, "key")}
	rows := [][]string{{"manifest, ms"}, {"serve, CPU s"}, {"compress, CPU s"}, {"decompress, CPU s"}, {"verify, CPU s"}, {"write, CPU s"}, {"join, s"}, {"join, CPU s"}, {"join from a server that has served before, s"}, {"the same, CPU s"}, {"SDK create, s"}, {"SDK restore, s"}, {"SDK both, CPU s"},
		{"create + restore over join"}, {"overhead, bytes per leaf"}, {"sent, MB"}, {"before compression, MB"}, {"SDK snapshot, MB"}, {"sent over SDK snapshot"}}
	for _, engine := range Engines {
		f, measured := r.Engines[engine]
		if !measured {
			continue
		}
		head = append(head, engine)
		for i, v := range []float64{f.ManifestMS, f.ServeCPUS, f.PackCPUS, f.UnpackCPUS, f.VerifyCPUS, f.WriteCPUS, f.JoinS, f.JoinCPUS, f.AgainS, f.AgainCPUS, f.SDKCreateS, f.SDKRestoreS, f.SDKCPUS, f.Times, f.Overhead,
			mb(f.Bytes), mb(f.PlainBytes), mb(f.SDKBytes), f.BytesX} {
			rows[i] = append(rows[i], fmt.Sprintf("%.2f", v))
		}
	}
	harness.PrintAligned(out, append([][]string{head}, rows...))
	fmt.Fprintf(out, `
The SDK's source, its snapshot, and all homes are databases of the engine on this machine's disk; there is no network.
Their process was started after the state was loaded. Stages are measured alone, one after another. join is all of them together
on all processors, until the SDK has opened the home and has the same hash. Medians of %s; the snapshot is created once.
`, harness.Count(r.Repeat, "turn"))
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }
