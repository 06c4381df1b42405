package programsbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
)

// The phase paged executes the same blocks of transfers with two applications in this process, in
// turns: one has the state in memory, the other on disk, with a quarter of that memory for its
// caches. The file cache of the kernel is not limited, so reads rarely wait for the disk.
const (
	overMemory = 4
	// leastPaged is the least memory with which a paged state is tested.
	leastPaged = 16 << 20
)

// PagedRow has the figures of the phase paged.
type PagedRow struct {
	Accounts    int              `json:"accounts"`
	StateBytes  uint64           `json:"state_bytes"`  // of the tree in memory
	CacheBytes  int64            `json:"cache_bytes"`  // of the paged state
	Transfers   harness.Interval `json:"transfers_s"`  // in memory, by round
	Paged       harness.Interval `json:"paged_s"`      // on disk
	Ratio       harness.Interval `json:"ratio"`        // in memory over on disk
	MemoryTimes float64          `json:"memory_times"` // StateBytes over CacheBytes
}

func (r *run) runPaged(ctx context.Context, dir string) (err error) {
	o := r.o
	o.Accounts, o.Keys = o.PagedAccounts, 2000
	b, err := newBank(ctx, o)
	if err != nil {
		return err
	}
	r.progress.Begin("prepare", "transactions", b.steps(len(b.accounts)))
	r.progress.Working("a large state")
	s, err := newSolo(ctx, b, &appstore.Memory{}, r.progress.Add)
	if err != nil {
		return err
	}
	defer s.app.Stop()
	height, v := s.app.Latest()
	memory := v.Memory()
	row := &PagedRow{Accounts: o.Accounts, StateBytes: memory.NodeBytes + memory.LeafBytes}
	row.CacheBytes = max(int64(row.StateBytes/overMemory), leastPaged)
	row.MemoryTimes = float64(row.StateBytes) / float64(row.CacheBytes)
	store, zone, err := appstore.Page(dir, chainID, height, v, row.CacheBytes)
	v.Release()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, zone.Close()) }()
	p, err := openSolo(b, store, height)
	if err != nil {
		return err
	}
	defer p.app.Stop()
	var inMemory, paged, ratios []float64
	r.progress.Begin("paged", "rounds", 1+o.Rounds)
	r.progress.Working("both")
	for round := range 1 + o.Rounds {
		var clock [2]time.Duration
		transfers := 0
		for range o.Blocks {
			txs, n, err := b.block(100)
			if err != nil {
				return err
			}
			transfers += n
			for i, a := range []*solo{s, p} {
				took, _, err := a.block(ctx, txs, true)
				if err != nil {
					return err
				}
				clock[i] += took
			}
		}
		if round > 0 { // the first round fills the caches
			rate := func(d time.Duration) float64 { return float64(transfers) / d.Seconds() }
			inMemory, paged = append(inMemory, rate(clock[0])), append(paged, rate(clock[1]))
			ratios = append(ratios, clock[1].Seconds()/clock[0].Seconds())
		}
		r.progress.Add(1)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := sameState(s, p); err != nil {
		return err
	}
	row.Transfers, row.Paged, row.Ratio = harness.MedianInterval(inMemory), harness.MedianInterval(paged), harness.MedianInterval(ratios)
	r.result.Paged = row
	return nil
}

func sameState(a, b *solo) error {
	height, v := a.app.Latest()
	defer v.Release()
	other, w := b.app.Latest()
	defer w.Release()
	if height != other || v.AppHash() != w.AppHash() {
		return fmt.Errorf("the paged application has another state: app hash %s at %d, in memory %s at %d", w.AppHash(), other, v.AppHash(), height)
	}
	return nil
}

func (r *Result) printPaged(out io.Writer) {
	p := r.Paged
	if p == nil {
		return
	}
	fmt.Fprintf(out, `
paged       %s transfers per second with the state in memory, %s with a state of %.1f times the caches' memory (%.0f of %.0f MB) on disk: %s×.
            %s accounts; the same blocks, in turns
`, p.Transfers.Text("%.0f"), p.Paged.Text("%.0f"), p.MemoryTimes, float64(p.CacheBytes)/1e6, float64(p.StateBytes)/1e6, p.Ratio.Text("%.2f"), harness.Group(p.Accounts))
}
