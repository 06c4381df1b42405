package syncbench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/statesync"
)

// HiccupOptions configure a run of a validator that serves.
type HiccupOptions struct {
	Keys      int
	Seed      uint64
	Blocks    int     // blocks per row
	PauseMS   int     // interval between the starts of two blocks
	Joiners   []int   // numbers of concurrent joiners, one row each
	Rate      float64 // limit of each joiner in MB/s
	Against   []string
	SDKBlocks int    // blocks per row of the SDK's store
	SDK       string // see Options
}

const (
	maxBlocks = 100_000
	// blockSlice is the number of blocks in a turn. Rows take turns, so that noise affects all
	// alike.
	blockSlice = 25
	// warmBlocks is the number of unmeasured blocks at the beginning of a turn, because other rows'
	// turns have evicted caches.
	warmBlocks = 2
)

// Flags adds the flags of hiccup.
func (o *HiccupOptions) Flags(f *harness.Flags) {
	keys(f, &o.Keys)
	f.Int(&o.Blocks, "blocks", 500, 1, maxBlocks, "number of blocks per row")
	f.Int(&o.PauseMS, "interval", 100, 0, 60_000, "milliseconds between the starts of two blocks; 0: one after another")
	f.Ints(&o.Joiners, "joiners", []int{0, 1, 4}, 0, 16, "numbers of concurrent joiners, one row each")
	f.Float(&o.Rate, "rate", 5.12, 0.1, 10_000, "rate limit of each joiner in MB/s (default: that of CometBFT's p2p)")
	f.Names(&o.Against, "against", []string{nameSDK}, []string{nameSDK}, "peers: sdk; empty for none")
	f.Int(&o.SDKBlocks, "sdk-blocks", 100, 1, maxBlocks, "number of blocks per row of the SDK's store, whose blocks take longer")
	f.Seed(&o.Seed)
	f.Program(&o.SDK, "sdk")
}

// HiccupResult is the outcome of a run.
type HiccupResult struct {
	Keys      int              `json:"keys"`
	Blocks    int              `json:"blocks"`
	PauseMS   int              `json:"interval_ms"`
	RateMBPS  float64          `json:"rate_mb_s"` // limit of each joiner
	Starling  []HiccupRow      `json:"starling"`
	SDK       []HiccupRow      `json:"sdk_iavl,omitempty"`
	SDKBlocks int              `json:"sdk_blocks"`
	Seed      uint64           `json:"seed"`
	Machine   harness.Machine  `json:"machine"`
	Targets   []harness.Target `json:"targets"`
}

// HiccupRow has the commit times with one number of joiners.
type HiccupRow struct {
	Joiners   int     `json:"joiners"`
	Snapshots int     `json:"snapshots"` // SDK snapshots finished meanwhile; 0 for Starling
	P50MS     float64 `json:"p50_ms"`
	P99MS     float64 `json:"p99_ms"`
	MaxMS     float64 `json:"max_ms"`
	P99Ratio  float64 `json:"p99_ratio"` // relative to the first row
	MaxRatio  float64 `json:"max_ratio"`
	ServedMBS float64 `json:"served_mb_s"`
	Blocks    int     `json:"blocks"`
	Kept      Kept    `json:"kept"` // Starling's: the most after a block
}

// Kept is what snapshots keep, in bytes: see statesync.Kept.
type Kept struct {
	Memory    int64 `json:"memory_bytes"`
	Disk      int64 `json:"disk_bytes"`
	Manifests int64 `json:"manifest_bytes"`
}

// most returns the larger of each figure.
func (k Kept) most(other Kept) Kept {
	return Kept{max(k.Memory, other.Memory), max(k.Disk, other.Disk), max(k.Manifests, other.Manifests)}
}

// hiccups is the state of one run.
type hiccups struct {
	o        HiccupOptions
	r        *runner
	progress *harness.Progress
	result   HiccupResult
}

// RunHiccup measures the commits of a validator, alone and while joiners download from it.
func RunHiccup(ctx context.Context, o HiccupOptions, progress *harness.Progress) (*HiccupResult, error) {
	h := &hiccups{o: o, progress: progress, result: HiccupResult{
		Keys: o.Keys, Blocks: o.Blocks, PauseMS: o.PauseMS, RateMBPS: o.Rate, SDKBlocks: o.SDKBlocks, Seed: o.Seed, Machine: harness.ThisMachine(),
	}}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		h.r = &runner{o: Options{Keys: o.Keys, Seed: o.Seed}, dir: dir, progress: progress}
		if err := h.starling(ctx); err != nil {
			return err
		}
		if slices.Contains(o.Against, nameSDK) {
			return h.sdk(ctx)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	h.result.judge()
	return &h.result, nil
}

func (h *hiccups) slices() int { return (h.o.Blocks + blockSlice - 1) / blockSlice }

func (h *hiccups) starling(ctx context.Context) error {
	h.r.blocks = h.slices() * (blockSlice + warmBlocks) * len(h.o.Joiners)
	validator, err := h.r.startLoaded(ctx, roleValidator)
	if err != nil {
		return err
	}
	defer validator.End()
	var serving answer
	if err := validator.Ask(request{Op: opServe, Rate: int64(h.o.Rate * 1e6)}, &serving); err != nil {
		return err
	}
	downloads, err := startSelf(ctx, begin{Role: roleDownload, Spec: specOf(h.o.Keys, h.o.Seed)})
	if err != nil {
		return err
	}
	defer downloads.End()
	times, served, seconds, kept := map[int][]int64{}, map[int]int64{}, map[int]float64{}, map[int]Kept{}
	h.progress.Begin("commits", "blocks", h.o.Blocks*len(h.o.Joiners))
	err = harness.InTurns(h.slices(), h.o.Joiners, func(round, joiners int) error {
		h.progress.Working(fmt.Sprintf("%d joiners", joiners))
		ask := func() (answer, error) {
			var a answer
			return a, downloads.Ask(request{Op: opDownload, N: joiners, Target: serving.Target}, &a)
		}
		if _, err := ask(); err != nil {
			return err
		}
		var a answer
		n := h.o.Blocks*(round+1)/h.slices() - h.o.Blocks*round/h.slices()
		if err := validator.Ask(request{Op: opBlocks, N: warmBlocks, PauseMS: h.o.PauseMS}, &a); err != nil {
			return err
		}
		before, err := ask()
		if err != nil {
			return err
		}
		a = answer{}
		if err := validator.Ask(request{Op: opBlocks, N: n, PauseMS: h.o.PauseMS}, &a); err != nil {
			return err
		}
		after, err := ask()
		times[joiners] = append(times[joiners], a.Nanos...)
		served[joiners] += after.Bytes - before.Bytes
		seconds[joiners] += a.Seconds
		kept[joiners] = kept[joiners].most(a.Kept)
		h.progress.Add(n)
		return err
	})
	for _, joiners := range h.o.Joiners {
		row := hiccupRow(times[joiners])
		row.Joiners, row.Kept = joiners, kept[joiners]
		row.ServedMBS = harness.Ratio(float64(served[joiners])/1e6, seconds[joiners])
		h.result.Starling = append(h.result.Starling, row)
	}
	return err
}

// sdk makes all blocks without snapshots first, then the same number with snapshots. Alternating
// would not work, because a snapshot is made in the background and would continue into the next
// turn.
func (h *hiccups) sdk(ctx context.Context) (err error) {
	program, err := harness.Build(ctx, h.o.SDK, "bench/sdk", ".", h.progress)
	if err != nil {
		return err
	}
	dir, err := h.r.folder(nameSDK)
	if err != nil {
		return err
	}
	store, err := startSDK(ctx, program, sdkBegin{Dir: dir, Backend: Engines[0]})
	if err != nil {
		return err
	}
	defer store.End()
	w, err := workload.New(specOf(h.o.Keys, h.o.Seed), 2*h.o.SDKBlocks*stepsABlock)
	if err != nil {
		return err
	}
	if err := loadSDK(store, w, h.o.Keys, h.progress); err != nil {
		return err
	}
	h.progress.Begin("commits", "blocks", 2*h.o.SDKBlocks)
	for _, snapshots := range []bool{false, true} {
		h.progress.Working(map[bool]string{false: "sdk", true: "sdk with snapshots"}[snapshots])
		var nanos []int64
		var last sdkAnswer
		for i := range h.o.SDKBlocks {
			if last, err = store.commit(blockOf(w), snapshots && i%snapshotEvery == 0); err != nil {
				return err
			}
			nanos = append(nanos, last.Nanos)
			h.progress.Add(1)
		}
		row := hiccupRow(nanos)
		row.Snapshots = last.Snapshots
		h.result.SDK = append(h.result.SDK, row)
	}
	return nil
}

func hiccupRow(nanos []int64) HiccupRow {
	ms := millis(nanos)
	return HiccupRow{P50MS: harness.Median(ms), P99MS: harness.Percentile(ms, 99), MaxMS: harness.Percentile(ms, 100), Blocks: len(ms)}
}

// judge compares the rows with the first row of the same store.
func (r *HiccupResult) judge() {
	for _, rows := range [][]HiccupRow{r.Starling, r.SDK} {
		for i := range rows {
			rows[i].P99Ratio, rows[i].MaxRatio = harness.Ratio(rows[i].P99MS, rows[0].P99MS), harness.Ratio(rows[i].MaxMS, rows[0].MaxMS)
		}
	}
	for _, row := range r.Starling {
		switch {
		case row.Joiners == 0:
			r.Targets = append(r.Targets, harness.AtMost("p99 of a commit without joiners at most 2.5× the median", 2.5, harness.Ratio(row.P99MS, row.P50MS)).
				OfBlocks(row.Blocks, harness.FewBlocks))
		case row.Joiners == 4 && r.Starling[0].Joiners == 0:
			g := harness.AtMost("p99 of a commit with 4 joiners at most 1.5× that without", 1.5, row.P99Ratio)
			if offered := 4 * r.RateMBPS; row.ServedMBS < fullRate*offered {
				g.Met = false
				g.Measure += fmt.Sprintf(", but the joiners got %.1f MB/s, not %.1f", row.ServedMBS, offered)
			}
			r.Targets = append(r.Targets, g.OfBlocks(min(row.Blocks, r.Starling[0].Blocks), harness.FewBlocks))
		}
	}
}

// fullRate is the minimum share of the offered rate that joiners must get: a validator that serves
// less is disturbed less.
const fullRate = 0.9

// Print writes the table, notes that explain it, and the targets.
func (r *HiccupResult) Print(out io.Writer) {
	cells := [][]string{{harness.Group(r.Keys) + " keys, commit", "p50, ms", "p99, ms", "×", "max, ms", "×", "served, MB/s", "blocks", "kept: memory, MB", "disk, MB"}}
	add := func(name string, row HiccupRow) {
		cells = append(cells, []string{
			name, fmt.Sprintf("%.2f", row.P50MS), fmt.Sprintf("%.2f", row.P99MS), show("%.3g", row.P99Ratio), fmt.Sprintf("%.2f", row.MaxMS),
			show("%.3g", row.MaxRatio), show("%.1f", row.ServedMBS), fmt.Sprint(row.Blocks),
			show("%.1f", float64(row.Kept.Memory)/1e6), show("%.1f", float64(row.Kept.Disk)/1e6),
		})
	}
	for _, row := range r.Starling {
		name := "starling, " + harness.Count(row.Joiners, "joiner")
		if row.Joiners == 1 {
			name = "starling, 1 joiner"
		}
		add(name, row)
	}
	for i, row := range r.SDK {
		name := "sdk-iavl"
		if i > 0 {
			name = "sdk-iavl, " + harness.Count(row.Snapshots, "snapshot")
		}
		add(name, row)
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
commit    2,000 operations, from the changes until the block is committed. Starling's: the tree, the queue of the state store and, in all
          rows, a snapshot every %d blocks; a block every %d ms. The SDK's blocks follow one another without a pause
joiners   download the newest snapshot over loopback, at most %g MB/s each, and discard it: only the validator's work is measured
snapshots of the SDK start every %d blocks, unless one is in progress
kept      the most that all of Starling's snapshots kept after a block of the row, with a node's defaults: each stays for %v after a joiner's
          last request, so rows share them
×         relative to the first row of the same store
`, snapshotEvery, r.PauseMS, r.RateMBPS, snapshotEvery, statesync.DefaultHold)
	harness.PrintTargets(out, "1,000,000 keys", r.Targets)
}
