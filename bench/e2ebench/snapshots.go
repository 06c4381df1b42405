package e2ebench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/bench/workload"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// Names of the networks of snapshots.
const (
	nameIAVL           = "iavl"            // of bench/iavlnode
	nameIAVLPausing    = "iavl-pausing"    // a commit waits for the snapshot
	nameIAVLBackground = "iavl-background" // blocks go on
	nameSnapshots      = "starling-snapshots"
)

var snapshotNames = []string{nameIAVL, nameIAVLPausing, nameIAVLBackground, nameStarling, nameSnapshots}

func makesSnapshots(name string) bool { return name != nameIAVL && name != nameStarling }

// State is the state of a network that a run needs, and the network's programs.
type State struct {
	Keys       int
	Interval   int // snapshot interval in blocks
	ChunkBytes int // limit of a chunk, of both programs
	IAVLNode   string
	Seed       uint64
}

// flags adds the flags. least is the minimum snapshot interval.
func (s *State) flags(f *harness.Flags, least int) {
	f.Int(&s.Keys, "keys", 300_000, workload.MinKeys, 10_000_000, "number of keys in the state")
	f.Int(&s.Interval, "snapshot-interval", 10, least, 100_000, "blocks between snapshots (the paper's: 10)")
	f.Int(&s.ChunkBytes, "chunk-bytes", avlstar.DefaultChunkBytes, 1<<10, avlstar.MaxChunkBytes, "chunk limit of both programs in bytes")
	f.Seed(&s.Seed)
	f.Program(&s.IAVLNode, "iavlnode")
}

// patience is the time limit for what IAVL's application does with the whole state at once.
func (s *State) patience() time.Duration {
	return network.StartPatience + time.Duration(s.Keys)*time.Millisecond
}

// spreadBytes is the length of a transaction of loadSpread: the paper's keys and values.
const spreadBytes = workload.KeyBytes + 1 + workload.ValueBytes

// mempoolTxs is the capacity of a mempool. A validator that is behind the others also has
// transactions that are in their blocks.
const mempoolTxs = 3 * maxInFlight

// never is an interval that no run reaches.
const never = 1_000_000_000

// SnapshotsOptions configure a run with and without snapshots.
type SnapshotsOptions struct {
	State
	Network
	Networks []string
	Delay    time.Duration // one way, between every two validators
	Rounds   int
	Seconds  int
}

// Flags adds the flags of snapshots.
func (o *SnapshotsOptions) Flags(f *harness.Flags) {
	o.State.flags(f, 1)
	f.Time(&o.Delay, "delay", 0, 0, time.Second, "delay between every two validators, one way")
	f.Names(&o.Networks, "networks", snapshotNames, snapshotNames, "networks to measure")
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; each runs every network")
	f.Int(&o.Seconds, "seconds", 60, 1, 3600, "seconds of the load in each round")
	o.Network.flags(f, 1)
	o.inFlight(f, mempoolTxs)
	o.TxBytes = spreadBytes
	f.Also(func() error {
		if len(o.Networks) == 0 {
			return errors.New("--networks names no network")
		}
		return nil
	})
}

// SnapshotsResult is the outcome of a run.
type SnapshotsResult struct {
	Networks []SnapshotsNetwork `json:"networks"`
	// Gain is what Starling keeps of its transactions per second with snapshots, over what IAVL
	// keeps whose commits wait for snapshots, round by round: each program is compared with itself
	// without snapshots.
	Gain        harness.Interval `json:"gain"`
	GainLatency harness.Interval `json:"latency_gain"` // of the means, as Gain
	// Ratio is Starling's transactions per second over those of IAVL whose commits wait for
	// snapshots, both with snapshots, round by round. It compares whole nodes.
	Ratio   harness.Interval `json:"ratio"`
	Latency harness.Interval `json:"latency_ratio"` // of the means, as Ratio
	Plain   harness.Interval `json:"plain_ratio"`   // as Ratio, both without snapshots
	// Kept are the transactions per second with snapshots over those of the same program without,
	// round by round.
	Kept           harness.Interval `json:"kept"`
	KeptPausing    harness.Interval `json:"iavl_pausing_kept"`
	KeptBackground harness.Interval `json:"iavl_background_kept"`

	Keys            int              `json:"keys"`
	Interval        int              `json:"snapshot_interval"`
	Validators      int              `json:"validators"`
	DelayMS         float64          `json:"delay_ms"`
	TimeoutCommitMS float64          `json:"timeout_commit_ms"`
	InFlight        int              `json:"in_flight"`
	TxBytes         int              `json:"tx_bytes"`
	Seconds         int              `json:"seconds"`
	Rounds          int              `json:"rounds"`
	Seed            uint64           `json:"seed"`
	Machine         harness.Machine  `json:"machine"`
	Targets         []harness.Target `json:"targets"`
}

// SnapshotsNetwork has the rounds of a network, and the medians over them.
type SnapshotsNetwork struct {
	Name           string `json:"name"`
	MakesSnapshots bool   `json:"makes_snapshots"`

	TPS    harness.Interval `json:"tps"`
	MeanMS harness.Interval `json:"latency_mean_ms"`
	CDF    []float64        `json:"latency_ms"` // at the percentiles of Percentiles
	Rounds []SnapshotsRound `json:"rounds"`
}

// Percentiles are those of SnapshotsNetwork.CDF.
var Percentiles = []float64{1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100}

// SnapshotsRound has the figures of a network in a round.
type SnapshotsRound struct {
	TPS       float64   `json:"tps"`
	TPSDev    float64   `json:"tps_deviation"` // standard deviation over the blocks
	MeanMS    float64   `json:"latency_mean_ms"`
	DevMS     float64   `json:"latency_deviation_ms"`
	LongestMS float64   `json:"longest_ms"` // between two blocks
	CPUMicros float64   `json:"cpu_us"`     // of all validators, per transaction
	CDF       []float64 `json:"latency_ms"`
	// Snapshots is the number of snapshots made: by the first validator of IAVL, which in the
	// background leaves some out, and by Starling one at each height at which it is due.
	Snapshots int           `json:"snapshots"`
	EachS     float64       `json:"snapshot_s,omitempty"` // mean time of one, IAVL only
	Blocks    []SeriesBlock `json:"blocks"`
}

// SeriesBlock is a block of a time line.
type SeriesBlock struct {
	AtS      float64 `json:"at_s"`               // since the beginning
	TPS      float64 `json:"tps"`                // transactions over the time since the last block
	Snapshot bool    `json:"snapshot,omitempty"` // due
}

// network returns the network of a name.
func (s *State) network(n *Network, name, starlingd, iavlnode string) kind {
	configure := func(c *cfg.Config) {
		n.configure(c)
		c.Mempool.CacheSize = 50_000 // the paper's
		c.Mempool.Size = mempoolTxs
	}
	if name == nameStarling || name == nameSnapshots {
		interval := s.Interval
		if !makesSnapshots(name) {
			interval = never
		}
		account := hex.EncodeToString(filler.PubKey().Bytes())
		k := n.starling(starlingd, map[string]any{
			"open": true, "chunk_bytes": s.ChunkBytes, "snapshot_interval": interval, "admins": []string{account}, "grants": []map[string]string{{"grantee": account, "prefix": ""}},
		})
		k.name, k.Edit = name, configure
		return k
	}
	interval := s.Interval
	if !makesSnapshots(name) {
		interval = 0
	}
	return kind{name, network.Options{
		Program: iavlnode, Validators: n.Validators, StartPatience: s.patience(), Edit: configure,
		AppState: map[string]any{
			"keys": s.Keys, "seed": s.Seed, "snapshot_interval": interval, "chunk_bytes": s.ChunkBytes, "background": name == nameIAVLBackground,
		},
		Init: func(_, dir string) []string { return []string{"init", "--home", dir} },
	}}
}

// programs builds the programs of the networks.
func (s *State) programs(ctx context.Context, n *Network, progress *harness.Progress) (starlingd, iavlnode string, err error) {
	if starlingd, err = network.Starlingd(ctx, n.Starlingd, progress); err != nil {
		return "", "", err
	}
	iavlnode, err = harness.Build(ctx, s.IAVLNode, "bench", "./iavlnode", progress)
	return starlingd, iavlnode, err
}

// filler is the key that fills Starling, and the admin who then opens it for text transactions.
var filler = ed25519.GenPrivKeyFromSecret([]byte("fill"))

const (
	// fillPuts is the number of keys in a transaction, fillWindow that of transactions underway.
	fillPuts, fillWindow = 500, 100
)

// fill writes the state into Starling. A network of IAVL has it from its genesis file.
func (s *State) fill(ctx context.Context, n *network.Network) error {
	c, err := client.Dial(ctx, n.Endpoints(), client.WithKey(filler), client.WithChainID(network.ChainID))
	if err != nil {
		return err
	}
	w, err := workload.New(workload.Spec{Seed: s.Seed, Keys: s.Keys, Batch: fillPuts}, 0)
	if err != nil {
		return err
	}
	var sent []*client.Sent
	for !w.Loaded() {
		var puts []tx.Operation
		for _, change := range w.Next() {
			change.Key[0] = max(change.Key[0], 1) // 0 is reserved for system keys
			puts = append(puts, tx.NewPut(change.Key, change.Value))
		}
		one, err := c.Send(ctx, puts...)
		if err != nil {
			return err
		}
		if sent = append(sent, one); len(sent) == fillWindow {
			if _, err := sent[0].Wait(ctx); err != nil {
				return err
			}
			sent = sent[1:]
		}
	}
	for _, one := range sent {
		if _, err := one.Wait(ctx); err != nil {
			return err
		}
	}
	// Text transactions may not write what a grant covers.
	done, err := c.Submit(ctx, tx.NewRevoke(filler.PubKey().Bytes(), nil))
	if err != nil {
		return err
	}
	return n.Reach(ctx, done.Height)
}

// RunSnapshots measures networks under load, with and without snapshots. It reports to progress,
// and always stops its processes.
func RunSnapshots(ctx context.Context, o SnapshotsOptions, progress *harness.Progress) (*SnapshotsResult, error) {
	result := &SnapshotsResult{
		Keys: o.Keys, Interval: o.Interval, Validators: o.Validators, DelayMS: millis(o.Delay), TimeoutCommitMS: millis(o.TimeoutCommit), InFlight: o.InFlight,
		TxBytes: o.TxBytes, Seconds: o.Seconds, Rounds: o.Rounds, Seed: o.Seed, Machine: harness.ThisMachine(),
	}
	for _, name := range o.Networks {
		result.Networks = append(result.Networks, SnapshotsNetwork{Name: name, MakesSnapshots: makesSnapshots(name)})
	}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		starlingd, iavlnode, err := o.programs(ctx, &o.Network, progress)
		if err != nil {
			return err
		}
		turn := 0
		progress.Begin("load", "networks", o.Rounds*len(o.Networks))
		return harness.InTurns(o.Rounds, o.Networks, func(_ int, name string) error {
			progress.Working(name)
			turn++
			k := o.State.network(&o.Network, name, starlingd, iavlnode)
			k.Delay = o.Delay
			r, err := o.turn(ctx, k, filepath.Join(dir, fmt.Sprintf("network-%d", turn)))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			n := result.of(name)
			n.Rounds = append(n.Rounds, r)
			progress.Add(1)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	result.judge()
	return result, nil
}

// turn measures a new network.
func (o *SnapshotsOptions) turn(ctx context.Context, k kind, dir string) (r SnapshotsRound, err error) {
	n, err := k.start(ctx, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, n.Discard()) }()
	if k.name == nameStarling || k.name == nameSnapshots {
		if err := o.fill(n.Context(), n); err != nil {
			return r, fmt.Errorf("fill: %w", err)
		}
	}
	s, err := openSession(n, k.name, loadSpread, o.Network)
	if err != nil {
		return r, err
	}
	defer s.close()
	s.patience = o.patience() // a commit may wait for a snapshot
	m, err := s.measureSpan(warm, time.Duration(o.Seconds)*time.Second, s.saturating())
	if err != nil {
		return r, err
	}
	interval := int64(o.Interval)
	if !makesSnapshots(k.name) {
		interval = never
	}
	r = s.ledger.series(m.from, m.until, interval)
	r.TPS, r.CPUMicros = m.TPS, m.CPUMicros
	if k.name != nameSnapshots {
		r.Snapshots = int(m.snapshots)
	}
	values, err := n.Validators[0].Scrape(ctx)
	r.EachS = harness.Ratio(values["iavlnode_snapshot_seconds"], values["iavlnode_snapshots"])
	return r, err
}

// series returns the blocks, and the latencies of the transactions sent, between two times. All due
// snapshots count as made.
func (l *ledger) series(from, until time.Time, interval int64) (r SnapshotsRound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var tps []float64
	var last block
	for _, b := range l.blocksIn(from, until) {
		if last.height > 0 {
			took := b.at.Sub(last.at)
			s := SeriesBlock{b.at.Sub(from).Seconds(), harness.Ratio(float64(b.txs), took.Seconds()), b.height%interval == 0}
			r.Blocks, tps, r.LongestMS = append(r.Blocks, s), append(tps, s.TPS), max(r.LongestMS, millis(took))
			if s.Snapshot {
				r.Snapshots++
			}
		}
		last = b
	}
	latencies := l.latenciesIn(from, until)
	_, r.TPSDev = meanAndDeviation(tps)
	r.MeanMS, r.DevMS = meanAndDeviation(latencies)
	for _, p := range Percentiles {
		r.CDF = append(r.CDF, harness.Percentile(latencies, p))
	}
	return r
}

func meanAndDeviation(values []float64) (mean, deviation float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(deviation)
}

// of returns the network of a name, or nil.
func (r *SnapshotsResult) of(name string) *SnapshotsNetwork {
	if i := slices.IndexFunc(r.Networks, func(n SnapshotsNetwork) bool { return n.Name == name }); i >= 0 {
		return &r.Networks[i]
	}
	return nil
}

// ran reports whether all networks were measured.
func (r *SnapshotsResult) ran(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return r.of(name) == nil })
}

func roundTPS(r SnapshotsRound) float64    { return r.TPS }
func roundMeanMS(r SnapshotsRound) float64 { return r.MeanMS }

// ratios returns a figure of one network over that of another, round by round. It returns none if
// one of the networks was not measured.
func (r *SnapshotsResult) ratios(name, over string, figure func(SnapshotsRound) float64) (all []float64) {
	a, b := r.of(name), r.of(over)
	if a == nil || b == nil {
		return nil
	}
	for i := range a.Rounds {
		all = append(all, harness.Ratio(figure(a.Rounds[i]), figure(b.Rounds[i])))
	}
	return all
}

func (r *SnapshotsResult) ratio(name, over string, figure func(SnapshotsRound) float64) harness.Interval {
	return harness.MedianInterval(r.ratios(name, over, figure))
}

// gainNetworks are the networks of Gain.
var gainNetworks = []string{nameIAVL, nameIAVLPausing, nameStarling, nameSnapshots}

// gain returns what Starling keeps of a figure with snapshots over what IAVL keeps, round by round.
func (r *SnapshotsResult) gain(figure func(SnapshotsRound) float64) harness.Interval {
	ours, theirs := r.ratios(nameSnapshots, nameStarling, figure), r.ratios(nameIAVLPausing, nameIAVL, figure)
	var gains []float64
	for i := range min(len(ours), len(theirs)) {
		gains = append(gains, harness.Ratio(ours[i], theirs[i]))
	}
	return harness.MedianInterval(gains)
}

func (r *SnapshotsResult) judge() {
	for i := range r.Networks {
		n := &r.Networks[i]
		n.TPS, n.MeanMS = harness.MedianInterval(harness.Each(n.Rounds, roundTPS)), harness.MedianInterval(harness.Each(n.Rounds, roundMeanMS))
		for p := range Percentiles {
			n.CDF = append(n.CDF, harness.MedianOf(n.Rounds, func(r SnapshotsRound) float64 { return r.CDF[p] }))
		}
	}
	r.Gain, r.GainLatency = r.gain(roundTPS), r.gain(roundMeanMS)
	r.Ratio, r.Latency = r.ratio(nameSnapshots, nameIAVLPausing, roundTPS), r.ratio(nameSnapshots, nameIAVLPausing, roundMeanMS)
	r.Plain = r.ratio(nameStarling, nameIAVL, roundTPS)
	r.Kept = r.ratio(nameSnapshots, nameStarling, roundTPS)
	r.KeptPausing, r.KeptBackground = r.ratio(nameIAVLPausing, nameIAVL, roundTPS), r.ratio(nameIAVLBackground, nameIAVL, roundTPS)
	gain := harness.MedianAtLeast("starling-snapshots keeps at least 1.05 times what iavl-pausing keeps of its transactions per second without snapshots", 1.05, r.Gain)
	if !r.ran(gainNetworks...) {
		gain.Undecided = "needs the networks " + strings.Join(gainNetworks, ", ")
	}
	r.Targets = append(r.Targets, gain)
	if r.ran(nameStarling, nameSnapshots) {
		r.Targets = append(r.Targets, harness.MedianAtLeast("starling-snapshots: at least 0.95 of starling's transactions per second", 0.95, r.Kept))
	}
	for i := range r.Targets {
		if t := &r.Targets[i]; t.Undecided == "" && r.Rounds < decidingRounds {
			t.Met, t.Undecided = false, fmt.Sprintf("%d of at least %d rounds", r.Rounds, decidingRounds)
		}
	}
}

// Print writes the table and the targets.
func (r *SnapshotsResult) Print(out io.Writer) {
	cells := [][]string{{
		harness.Group(r.Keys) + " keys", "tx/s", "deviation", "mean, ms", "deviation", "p50", "p99", "longest block, ms", "CPU, µs", "snapshots", "s each",
	}}
	at := func(n SnapshotsNetwork, p float64) string {
		return fmt.Sprintf("%.0f", n.CDF[slices.Index(Percentiles, p)])
	}
	for _, n := range r.Networks {
		median := func(format string, figure func(SnapshotsRound) float64) string {
			return fmt.Sprintf(format, harness.MedianOf(n.Rounds, figure))
		}
		each := ""
		if s := harness.MedianOf(n.Rounds, func(r SnapshotsRound) float64 { return r.EachS }); s > 0 {
			each = fmt.Sprintf("%.2f", s)
		}
		cells = append(cells, []string{
			n.Name, n.TPS.Text("%.0f"), median("%.0f", func(r SnapshotsRound) float64 { return r.TPSDev }), n.MeanMS.Text("%.0f"),
			median("%.0f", func(r SnapshotsRound) float64 { return r.DevMS }), at(n, 50), at(n, 99),
			median("%.0f", func(r SnapshotsRound) float64 { return r.LongestMS }), median("%.0f", func(r SnapshotsRound) float64 { return r.CPUMicros }),
			median("%.0f", func(r SnapshotsRound) float64 { return float64(r.Snapshots) }), each,
		})
	}
	harness.PrintAligned(out, cells)
	ratios := [][]string{{"over", "", "×"}}
	for _, row := range []struct {
		what, over, figure string
		ratio              harness.Interval
	}{
		{nameSnapshots, nameStarling, "tx/s", r.Kept},
		{nameIAVLPausing, nameIAVL, "tx/s", r.KeptPausing},
		{nameIAVLBackground, nameIAVL, "tx/s", r.KeptBackground},
		{nameSnapshots, nameIAVLPausing, "tx/s", r.Ratio},
		{nameSnapshots, nameIAVLPausing, "mean latency", r.Latency},
		{nameStarling, nameIAVL, "tx/s", r.Plain},
	} {
		if r.ran(row.what, row.over) {
			ratios = append(ratios, []string{row.what + " over " + row.over, row.figure, row.ratio.Text("%.3f")})
		}
	}
	if r.ran(gainNetworks...) {
		ratios = append(ratios, []string{"gain: starling-snapshots over starling, over iavl-pausing over iavl", "tx/s", r.Gain.Text("%.3f")}, []string{"  the same", "mean latency", r.GainLatency.Text("%.3f")})
	}
	if len(ratios) > 1 {
		fmt.Fprintln(out)
		harness.PrintAligned(out, ratios)
	}
	fmt.Fprintf(out, `
%s on one machine, %.0f ms apart, new networks each time; %s of %d s, the networks in turn; medians, with the interval of the
median (of fewer than six rounds: the least and the greatest)
iavl       bench/iavlnode: CometBFT's node with an application on cosmos/iavl and goleveldb; no snapshots, or one every %s,
           for which a commit waits (pausing) or not (background)
starling   starlingd without snapshots, or with one every %d blocks
tx/s       transactions of %d bytes with new keys in blocks, from a closed loop of %d clients; its deviation is over the blocks
latency    from when a transaction is sent until a client receives the event of its executed block; its mean and deviation
CPU        time of all validators, per transaction
config     CometBFT's defaults except timeout_commit %.0f ms, mempool.cache_size 50,000 and mempool.size %s; load average before the run: %.1f
`, harness.Count(r.Validators, "validator"), r.DelayMS, harness.Count(r.Rounds, "round"), r.Seconds, harness.Count(r.Interval, "block"), r.Interval, r.TxBytes, r.InFlight,
		r.TimeoutCommitMS, harness.Group(mempoolTxs), r.Machine.Load)
	harness.PrintTargets(out, "1,000,000 keys", r.Targets)
}
