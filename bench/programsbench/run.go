package programsbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// run is the state of one run.
type run struct {
	o        Options
	progress *harness.Progress
	result   *Result
}

// Run runs the benchmark, and reports to progress. Its processes have ended when it returns.
func Run(ctx context.Context, o Options, progress *harness.Progress) (*Result, error) {
	r := &run{o: o, progress: progress, result: &Result{
		Accounts: o.Accounts, Keys: o.Keys, Retain: o.Retain, NetKeys: o.NetKeys, Items: o.Items, DelayMS: float64(o.Delay) / float64(time.Millisecond), Seed: o.Seed, Quick: o.Quick, Phases: o.Phases, Machine: harness.ThisMachine(),
	}}
	if err := harness.InFolder(ctx, progress, func(dir string) error { return r.phases(ctx, dir) }); err != nil {
		return nil, err
	}
	r.result.summarize()
	return r.result, nil
}

func (r *run) phases(ctx context.Context, dir string) error {
	if r.o.has(phaseApp) {
		if err := r.runApp(ctx); err != nil {
			return err
		}
	}
	if r.o.has(phasePaged) {
		if err := r.runPaged(ctx, filepath.Join(dir, "paged")); err != nil {
			return err
		}
	}
	if err := r.runNetworks(ctx, dir); err != nil {
		return err
	}
	if !r.o.has(phaseGrid) {
		return nil
	}
	err := r.runGrid(ctx, filepath.Join(dir, "grid"))
	if ctx.Err() != nil || err == nil {
		return err
	}
	r.progress.Say("the grid failed: %v", err) // the figures of the others count
	r.result.Failed = append(r.result.Failed, "grid: "+err.Error())
	return nil
}

// runNetworks measures the same load on a network of sharded validators, on one of validators with
// the whole state, and on a sharded one with delays, one after the other. The first one also serves
// the phases gets and reads.
func (r *run) runNetworks(ctx context.Context, dir string) error {
	var modes []string
	if r.o.has(phaseNetwork) || r.o.has(phaseReads) || r.o.has(phaseGets) {
		modes = append(modes, ModeSharded)
	}
	if r.o.has(phaseNetwork) {
		modes = append(modes, ModeLocal)
	}
	if r.o.has(phaseWAN) {
		modes = append(modes, ModeWAN)
	}
	if len(modes) == 0 {
		return nil
	}
	program, err := network.Starlingd(ctx, r.o.Starlingd, r.progress)
	if err != nil {
		return err
	}
	for i, mode := range modes {
		err := r.runNetwork(ctx, mode, program, filepath.Join(dir, fmt.Sprint("network-", i)))
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // the figures of the others count
			r.progress.Say("the network %q failed: %v", mode, err)
			r.result.Failed = append(r.result.Failed, fmt.Sprintf("%s: %v", mode, err))
		}
	}
	return nil
}

func (r *run) runNetwork(ctx context.Context, mode, program, dir string) (err error) {
	c, err := startCluster(ctx, r.o, mode, program, dir, r.progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if r.o.has(phaseNetwork) || mode == ModeWAN {
		if err := r.loads(c); err != nil {
			return err
		}
	}
	if r.o.has(phaseGets) && mode == ModeSharded {
		r.progress.Begin("gets", "gateways", 1)
		r.progress.Working("one gateway")
		if r.result.Gets, err = c.gets(c.net.Context(), r.o); err != nil {
			return err
		}
	}
	// This phase comes last, because it may leave accounts blocked.
	if r.o.has(phaseReads) && mode == ModeSharded {
		if err := r.reads(c); err != nil {
			return fmt.Errorf("reads: %w", err)
		}
	}
	return nil
}

// loads measures every share on a network.
func (r *run) loads(c *cluster) error {
	samples, number := map[int][]netSample{}, uint64(0)
	shares := r.o.NetShares
	if c.mode == ModeWAN {
		shares = shares[:1]
	}
	r.progress.Begin("network", "rounds", (1+r.o.NetRounds)*len(shares))
	r.progress.Working(c.mode)
	// The first round does not count.
	err := harness.InTurns(1+r.o.NetRounds, shares, func(round, percent int) error {
		number++
		s, err := c.round(c.net.Context(), r.o, percent, number)
		if err == nil && round > 0 {
			samples[percent] = append(samples[percent], s)
		}
		r.progress.Add(1)
		return err
	})
	if err != nil {
		return err
	}
	for _, percent := range shares {
		r.result.Network = append(r.result.Network, newNetRow(c.mode, percent, samples[percent]))
	}
	return nil
}

// runApp measures the application alone.
func (r *run) runApp(ctx context.Context) error {
	b, err := newBank(ctx, r.o)
	if err != nil {
		return err
	}
	r.progress.Begin("prepare", "transactions", b.steps(len(b.accounts)))
	r.progress.Working("one application")
	s, err := newSolo(ctx, b, &appstore.Memory{}, r.progress.Add)
	if err != nil {
		return err
	}
	defer s.app.Stop()
	rows, err := r.measure(ctx, s)
	r.result.App = rows
	r.result.GasUsed, r.result.GasNamed, r.result.GasLimit = b.gas, b.named, b.limit()
	return err
}

// measure measures every share in rounds, after one round that does not count.
func (r *run) measure(ctx context.Context, s *solo) (rows []AppRow, err error) {
	type sample struct{ checked, signed []took }
	samples := map[int]*sample{}
	for _, percent := range r.o.Shares {
		samples[percent] = &sample{}
	}
	r.progress.Begin("app", "rounds", (1+r.o.Rounds)*len(r.o.Shares))
	r.progress.Working("one application")
	err = harness.InTurns(1+r.o.Rounds, r.o.Shares, func(round, percent int) error {
		checked, err := s.blocks(ctx, r.o.Blocks, percent, true)
		if err != nil {
			return err
		}
		signed, err := s.blocks(ctx, r.o.Blocks, percent, false)
		if err != nil {
			return err
		}
		if round > 0 {
			of := samples[percent]
			of.checked, of.signed = append(of.checked, checked), append(of.signed, signed)
		}
		r.progress.Add(1)
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	for _, percent := range r.o.Shares {
		of := samples[percent]
		txs, transfers := s.bank.sizes(percent)
		rows = append(rows, AppRow{
			Percent: percent, BlockTxs: txs, BlockTransfers: transfers,
			TPS:       harness.MedianInterval(harness.Each(of.checked, took.rate)),
			Transfers: harness.MedianInterval(harness.Each(of.checked, took.transferRate)),
			Signed:    harness.MedianInterval(harness.Each(of.signed, took.rate)),
			CPUMicros: harness.MedianOf(of.checked, func(t took) float64 { return harness.Ratio(t.cpu.Seconds()*1e6, float64(t.txs)) }),
		})
	}
	return rows, nil
}
