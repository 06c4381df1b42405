package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// HiccupOptions are the options of a run of a validator that serves.
type HiccupOptions struct {
	Keys      int
	Seed      uint64
	Blocks    int     // of each row
	PauseMS   int     // between the starts of two blocks
	Joiners   []int   // numbers of joiners that download meanwhile, one row each
	Rate      float64 // MB/s, the limit of each joiner
	Against   []string
	SDKBlocks int // of each row of the SDK's store
	Dir       string
	SDK       string // see Options
}

const (
	maxBlocks  = 100_000
	maxJoiners = 16
	// blockSlice is the number of blocks in a turn. Rows take turns so that noise affects all
	// alike.
	blockSlice = 25
	// warmBlocks at the beginning of a turn are not measured: the other rows' turns have emptied
	// caches.
	warmBlocks = 2
)

// Check returns an error that names the flag that is out of range, and the range.
func (o HiccupOptions) Check() error {
	if err := checkKeys(o.Keys); err != nil {
		return err
	}
	switch {
	case o.Blocks < 1 || o.Blocks > maxBlocks:
		return fmt.Errorf("--blocks is %d, it must be from 1 to %d (use 500 for meaningful percentiles)", o.Blocks, maxBlocks)
	case o.SDKBlocks < 1 || o.SDKBlocks > maxBlocks:
		return fmt.Errorf("--sdk-blocks is %d, it must be from 1 to %d", o.SDKBlocks, maxBlocks)
	case o.PauseMS < 0 || o.PauseMS > 60_000:
		return fmt.Errorf("--interval is %d ms, it must be from 0 to 60000", o.PauseMS)
	case !(o.Rate >= 0.1 && o.Rate <= 10_000):
		return fmt.Errorf("--rate is %v MB/s, it must be from 0.1 to 10000", o.Rate)
	case len(o.Joiners) == 0:
		return errors.New("--joiners names no number of joiners")
	}
	for i, n := range o.Joiners {
		switch {
		case n < 0 || n > maxJoiners:
			return fmt.Errorf("--joiners names %d, it must be from 0 to %d", n, maxJoiners)
		case slices.Contains(o.Joiners[:i], n):
			return fmt.Errorf("--joiners names %d twice, once is enough", n)
		}
	}
	for _, name := range o.Against {
		if name != nameSDK {
			return fmt.Errorf("--against names %q, it knows %s (empty: measure Starling alone)", name, nameSDK)
		}
	}
	return nil
}

// HiccupResult is the outcome of a run.
type HiccupResult struct {
	Keys      int             `json:"keys"`
	Blocks    int             `json:"blocks"`
	PauseMS   int             `json:"interval_ms"`
	RateMBPS  float64         `json:"rate_mb_s"` // limit of each joiner
	Starling  []HiccupRow     `json:"starling"`
	SDK       []HiccupRow     `json:"sdk_iavl,omitempty"`
	SDKBlocks int             `json:"sdk_blocks"`
	Seed      uint64          `json:"seed"`
	Machine   harness.Machine `json:"machine"`
	Goals     []Goal          `json:"targets"`
}

// HiccupRow are the commit times with one number of joiners.
type HiccupRow struct {
	Joiners   int     `json:"joiners"`
	Snapshots int     `json:"snapshots"` // of the SDK, finished meanwhile; 0 for Starling
	P50MS     float64 `json:"p50_ms"`
	P99MS     float64 `json:"p99_ms"`
	MaxMS     float64 `json:"max_ms"`
	P99Ratio  float64 `json:"p99_ratio"` // to the first row
	MaxRatio  float64 `json:"max_ratio"`
	ServedMBS float64 `json:"served_mb_s"`
	Blocks    int     `json:"blocks"`
}

// hiccups makes one run.
type hiccups struct {
	o        HiccupOptions
	r        *runner
	progress *harness.Progress
	result   HiccupResult
}

// RunHiccup measures the commits of a validator, alone and while joiners download from it.
func RunHiccup(ctx context.Context, o HiccupOptions, progress *harness.Progress) (*HiccupResult, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	h := &hiccups{o: o, progress: progress, result: HiccupResult{
		Keys: o.Keys, Blocks: o.Blocks, PauseMS: o.PauseMS, RateMBPS: o.Rate, SDKBlocks: o.SDKBlocks, Seed: o.Seed, Machine: harness.ThisMachine(),
	}}
	err := harness.InFolder(ctx, o.Dir, "databases", progress, func(dir string) error {
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
	times, served, seconds := map[int][]int64{}, map[int]int64{}, map[int]float64{}
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
		h.progress.Add(n)
		return err
	})
	for _, joiners := range h.o.Joiners {
		row := hiccupRow(times[joiners])
		row.Joiners = joiners
		row.ServedMBS = harness.Ratio(float64(served[joiners])/1e6, seconds[joiners])
		h.result.Starling = append(h.result.Starling, row)
	}
	return err
}

// sdk makes all blocks without snapshots first, then as many with: a snapshot is made in the
// background, and would reach into the next turn.
func (h *hiccups) sdk(ctx context.Context) (err error) {
	program := h.o.SDK
	if program == "" {
		if program, err = h.r.build(ctx); err != nil {
			return err
		}
	}
	dir, err := h.r.folder(nameSDK)
	if err != nil {
		return err
	}
	store, err := startSDK(ctx, program, dir)
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

// judge compares the rows with the first of their kind.
func (r *HiccupResult) judge() {
	for _, rows := range [][]HiccupRow{r.Starling, r.SDK} {
		for i := range rows {
			rows[i].P99Ratio, rows[i].MaxRatio = harness.Ratio(rows[i].P99MS, rows[0].P99MS), harness.Ratio(rows[i].MaxMS, rows[0].MaxMS)
		}
	}
	for _, row := range r.Starling {
		switch {
		case row.Joiners == 0:
			r.Goals = append(r.Goals, atMost("p99 of a commit without joiners at most 2.5× the median", 2.5, harness.Ratio(row.P99MS, row.P50MS)))
		case row.Joiners == 4 && r.Starling[0].Joiners == 0:
			g := atMost("p99 of a commit with 4 joiners at most 1.5× that without", 1.5, row.P99Ratio)
			if offered := 4 * r.RateMBPS; row.ServedMBS < fullRate*offered {
				g.Met = false
				g.Measure += fmt.Sprintf(", but they got %.1f MB/s, not %.1f", row.ServedMBS, offered)
			}
			r.Goals = append(r.Goals, g)
		}
	}
}

// fullRate is the share of what joiners may get that they must get at least: whoever serves less
// disturbs less.
const fullRate = 0.9

// Print writes the table, notes on how to read it, and the targets.
func (r *HiccupResult) Print(out io.Writer) {
	cells := [][]string{{harness.Group(r.Keys) + " keys, commit", "p50, ms", "p99, ms", "×", "max, ms", "×", "served, MB/s", "blocks"}}
	add := func(name string, row HiccupRow) {
		cells = append(cells, []string{
			name, fmt.Sprintf("%.2f", row.P50MS), fmt.Sprintf("%.2f", row.P99MS), show("%.3g", row.P99Ratio), fmt.Sprintf("%.2f", row.MaxMS),
			show("%.3g", row.MaxRatio), show("%.1f", row.ServedMBS), fmt.Sprint(row.Blocks),
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
commit    2,000 operations, from the changes until the block is committed. Starling's: the tree, the queue of the state zone and, in all
          rows, a snapshot every %d blocks; a block every %d ms, the SDK's one after another
joiners   download the newest snapshot over loopback, at %g MB/s each at most, and drop it: only the validator's work is measured
snapshots of the SDK start every %d blocks, unless one is running
×         over the first row of the kind
`, snapshotEvery, r.PauseMS, r.RateMBPS, snapshotEvery)
	printGoals(out, "1,000,000 keys", r.Goals)
}
