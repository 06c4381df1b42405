package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	e2e "github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/tx"
)

const (
	shardedStorage = 6
	shardedRanges  = 3
	shardedPrefix  = "siege/"
	shardedBatch   = 500 // keys per transaction of the load
	valueBytes     = 100

	// blockPause is the time between a block and the next height of consensus.
	blockPause = 200 * time.Millisecond
	// The clients of the constant load send writers transactions at once, each every writeEvery.
	writers    = 4
	writeEvery = 400 * time.Millisecond
	// calm is the time limit for a few blocks after an attack.
	calm = 2 * time.Minute
	// otherAccounts have rights in the genesis state: no validator keeps the records of so many
	// accounts in memory.
	otherAccounts = 4096
	// uncheckedEvery is the interval of reading how many transactions wait unchecked.
	uncheckedEvery = 500 * time.Millisecond
	uncheckedName  = "starling_app_witness_unchecked"
	// strangersMB is the largest budget of a node for strangers: updates that wait at a storage
	// node, and answers that no stranger reads (256 MiB each).
	strangersMB = 256 * 1.048576
	longestHalt = 5.0 // seconds
)

// ShardedResult is the outcome of a run against a sharded network.
type ShardedResult struct {
	Keys    int                   `json:"keys"`
	Kinds   map[string]ShardedRow `json:"kind"`
	Seed    uint64                `json:"seed"`
	Repeat  int                   `json:"repeat"`
	Seconds int                   `json:"seconds"`
	Limit   float64               `json:"limit_s"`
	Machine harness.Machine       `json:"machine"`
	Targets []harness.Target      `json:"targets"`

	order []string
}

// ShardedRow has the figures with attackers of one kind. Ratios are relative to the row without
// attackers.
type ShardedRow struct {
	BlockX  float64 `json:"block_p99_x"`
	BlockMS float64 `json:"block_p99_ms"` // between two blocks
	Blocks  int     `json:"blocks"`
	HaltS   float64 `json:"halt_s"` // longest time without a block

	WitnessX      float64 `json:"witness_p99_x"`
	WitnessMS     float64 `json:"witness_p99_ms"`
	Witnesses     int     `json:"witnesses"`
	WitnessFailed int     `json:"witnesses_failed"`

	JoinX   float64   `json:"join_x"`
	JoinS   float64   `json:"join_s"`
	JoinsS  []float64 `json:"joins_s"`
	Unended int       `json:"unended"`

	RSSMB float64 `json:"rss_mb"` // highest peak of all nodes' memory

	PutMS     float64 `json:"put_p99_ms"` // an honest client's transaction
	PutFailed int     `json:"puts_failed"`
	BlockedS  float64 `json:"blocked_s"`       // the longest wait of a validator for storage nodes
	NodeCPU   float64 `json:"nodes_cores"`     // cores used by all nodes
	AttackCPU float64 `json:"attackers_cores"` // cores used by the attackers

	// Of transactions of accounts: answered and refused as busy in a second, and the most that a
	// validator had let in unchecked.
	TxRate    float64 `json:"transactions_s,omitempty"`
	BusyRate  float64 `json:"busy_s,omitempty"`
	Unchecked float64 `json:"unchecked,omitempty"`

	intervals, witnesses, puts []float64
}

// samples are measurements of goroutines.
type samples struct {
	// patience is how long a failure counts at least: a request that fails early is not a fast one.
	patience time.Duration

	mu     sync.Mutex
	millis []float64
	failed int
}

func (s *samples) add(began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := time.Since(began)
	if err != nil {
		s.failed++
		took = max(took, s.patience)
	}
	s.millis = append(s.millis, took.Seconds()*1000)
}

// take returns the samples since the last call.
func (s *samples) take() (millis []float64, failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	millis, failed = s.millis, s.failed
	s.millis, s.failed = nil, 0
	return millis, failed
}

// shardedSiege is the state of one run.
type shardedSiege struct {
	o         SiegeOptions
	dir       string
	progress  *harness.Progress
	key       ed25519.PrivKey
	net       *network.Network
	attackers *harness.Process
	victims   victims
	rows      map[string]*ShardedRow

	puts      samples
	witnesses samples
	joiners   int
}

// runShardedSiege measures a sharded network under attack. The attackers run in a separate process
// and use separate loopback addresses.
func runShardedSiege(ctx context.Context, o SiegeOptions, progress *harness.Progress) (*ShardedResult, error) {
	if err := manyLoopbacks(); err != nil {
		return nil, err
	}
	program, err := network.Starlingd(ctx, o.Starlingd, progress)
	if err != nil {
		return nil, err
	}
	s := &shardedSiege{o: o, progress: progress, key: ed25519.GenPrivKeyFromSecret([]byte("siege")), rows: map[string]*ShardedRow{}}
	s.witnesses.patience = witnessPatience
	err = harness.InFolder(ctx, progress, func(dir string) error {
		s.dir = dir
		return s.run(ctx, program)
	})
	if err != nil {
		return nil, err
	}
	return s.result(), nil
}

func (s *shardedSiege) run(ctx context.Context, program string) (err error) {
	if s.attackers, err = startSelf(ctx, begin{Role: roleStrangers}); err != nil {
		return err
	}
	defer s.attackers.End()
	var relay answer
	if err := s.attackers.Ask(request{Op: opServe}, &relay); err != nil {
		return err
	}
	probe, err := newWitnessProbe()
	if err != nil {
		return err
	}
	env := []string{"STARLINGD_JOIN_PEERS=" + relay.Target.Peers[0]}
	s.progress.Begin("start", "nodes", 1)
	s.net, err = network.Start(ctx, network.Options{
		Program: program, Dir: s.dir, Validators: siegeValidators,
		AppState: map[string]any{
			"chunk_bytes": 4096, "snapshot_interval": 25, "open": false, "admins": []string{},
			"grants": s.grants(),
		},
		Edit: func(c *cfg.Config) {
			c.Consensus.TimeoutCommit = blockPause
			// A peer that the operator has named, as validators are.
			c.P2P.UnconditionalPeerIDs = string(probe.id)
			c.LogLevel = "*:error"
		},
		Env: slices.Concat(env, []string{"STARLINGD_STATE_RETAIN_DEPTH=3", "STARLINGD_STATE_RETAIN_WINDOW_BLOCKS=16", "STARLINGD_STATE_PRUNING_KEEP_RECENT=40"}),
		Sharded: network.Sharded{
			Nodes: shardedStorage, Ranges: shardedRanges, Env: env,
			First: func(i int) string { return fmt.Sprintf("%s%02x", shardedPrefix, i*256/shardedRanges) },
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.net.Stop()) }()
	s.progress.Add(1)
	for _, h := range s.net.Storage {
		address, err := h.Transport()
		if err != nil {
			return err
		}
		s.victims.Storage = append(s.victims.Storage, address)
	}
	for _, h := range s.net.Validators {
		address, err := h.Transport()
		if err != nil {
			return err
		}
		s.victims.Validators = append(s.victims.Validators, address)
	}
	s.victims.RPCs = s.net.RPCs()
	ctx, cancel := context.WithCancel(s.net.Context())
	defer cancel()
	c, err := client.Dial(ctx, s.net.RPCs(), client.WithKey(s.key), client.WithChainID(network.ChainID))
	if err != nil {
		return err
	}
	if err := s.load(ctx, c); err != nil {
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	for i := range writers {
		background.Go(func() { s.write(ctx, c, rand.New(rand.NewPCG(s.o.Seed, uint64(i)))) }) //nolint:gosec // reproducible by its seed
	}
	for _, address := range s.victims.Storage {
		background.Go(func() { probe.watch(ctx, address, &s.witnesses) })
	}
	kinds := append([]string{honest}, s.o.Kinds...)
	s.progress.Begin("siege", "rounds", s.o.Repeat*len(kinds))
	err = harness.InTurns(s.o.Repeat, kinds, func(_ int, kind string) error {
		s.progress.Working(kind)
		defer s.progress.Add(1)
		if err := s.round(ctx, kind); err != nil {
			return fmt.Errorf("with attackers of kind %s: %w", kind, err)
		}
		return nil
	})
	if died := new(e2e.DiedError); errors.As(context.Cause(ctx), &died) {
		err = errors.Join(died, err)
	}
	return err
}

// grants returns the rights of the load, of an attacker, and of accounts that do nothing.
func (s *shardedSiege) grants() (all []map[string]any) {
	all = append(all, map[string]any{"grantee": fmt.Sprintf("%x", s.key.PubKey().Bytes()), "prefix": shardedPrefix})
	all = append(all, map[string]any{"grantee": fmt.Sprintf("%x", quotaAccount().PubKey().Bytes()), "prefix": shardedPrefix, "quota": quotaBytes})
	random := rand.New(rand.NewPCG(s.o.Seed, 0)) //nolint:gosec // reproducible by its seed
	for range otherAccounts {
		account := fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
		all = append(all, map[string]any{"grantee": account, "prefix": "other/"})
	}
	return all
}

// shardedKey returns key i, below n keys that are spread evenly over the ranges.
func shardedKey(i int) []byte {
	// The multiplicative hash of Knuth, TAOCP 6.4.
	return fmt.Appendf(nil, shardedPrefix+"%08x", uint32(i)*2654435761)
}

// load writes all keys.
func (s *shardedSiege) load(ctx context.Context, c *client.Client) error {
	s.progress.Begin("load", "keys", s.o.Keys)
	value := make([]byte, valueBytes)
	for from := 0; from < s.o.Keys; from += shardedBatch {
		var puts []tx.Operation
		for i := from; i < min(from+shardedBatch, s.o.Keys); i++ {
			puts = append(puts, tx.NewPut(shardedKey(i), value))
		}
		if _, err := c.Submit(ctx, puts...); err != nil {
			return err
		}
		s.progress.Add(len(puts))
	}
	return nil
}

// write is one writer of the constant load.
func (s *shardedSiege) write(ctx context.Context, c *client.Client, random *rand.Rand) {
	key := func(random *rand.Rand) []byte { return shardedKey(random.IntN(s.o.Keys)) }
	network.Write(ctx, c, writeEvery, random, key, make([]byte, valueBytes), s.puts.add)
}

// round measures the network with attackers of one kind.
func (s *shardedSiege) round(ctx context.Context, kind string) error {
	var pids []int
	for _, h := range slices.Concat(s.net.Validators, s.net.Storage) {
		pids = append(pids, s.net.Pid(h))
		harness.ResetPeak(s.net.Pid(h))
	}
	blocked, err := s.blocked(ctx)
	if err != nil {
		return err
	}
	if err := s.attackers.Ask(request{Op: opPrepare, Kind: kind}, nil); err != nil {
		return err
	}
	s.puts.take()
	s.witnesses.take()
	attack := request{Op: opAttack, Kind: kind, Victims: s.victims}
	if kind == honest {
		attack.Kind = ""
	}
	var before, after answer
	began, cpu := time.Now(), harness.CPUOf(pids...)
	if err := errors.Join(s.attackers.Ask(request{Op: opUsage}, &before), s.attackers.Ask(attack, nil)); err != nil {
		return err
	}
	row := s.row(kind)
	if err := s.wait(ctx, row); err != nil {
		return err
	}
	ended := time.Now()
	row.NodeCPU = max(row.NodeCPU, (harness.CPUOf(pids...)-cpu)/ended.Sub(began).Seconds())
	witnesses, failed := s.witnesses.take()
	row.witnesses, row.WitnessFailed = append(row.witnesses, witnesses...), row.WitnessFailed+failed
	puts, failed := s.puts.take()
	row.puts, row.PutFailed = append(row.puts, puts...), row.PutFailed+failed
	if err := s.attackers.Ask(request{Op: opUsage}, &after); err != nil {
		return err
	}
	row.AttackCPU = max(row.AttackCPU, harness.Ratio(after.CPU-before.CPU, ended.Sub(began).Seconds()))
	row.TxRate = max(row.TxRate, float64(after.Done-before.Done)/ended.Sub(began).Seconds())
	row.BusyRate = max(row.BusyRate, float64(after.Refused-before.Refused)/ended.Sub(began).Seconds())
	seconds, err := s.join(ctx)
	if err != nil {
		return err
	}
	row.JoinsS = append(row.JoinsS, seconds)
	if seconds >= s.o.Limit {
		row.Unended++
	}
	for _, pid := range pids {
		row.RSSMB = max(row.RSSMB, float64(harness.MemoryOf(pid).Peak)/1e6)
	}
	if err := s.attackers.Ask(request{Op: opAttack}, nil); err != nil { // stop the attack
		return err
	}
	if err := s.recover(ctx); err != nil {
		return err
	}
	later, err := s.blocked(ctx)
	if err != nil {
		return err
	}
	for i := range later {
		row.BlockedS = max(row.BlockedS, later[i]-blocked[i])
	}
	times, err := network.BlockTimes(ctx, s.net.Validators[0], began)
	if err != nil {
		return err
	}
	intervals, halt := network.Intervals(times, began, ended)
	row.intervals, row.HaltS = append(row.intervals, intervals...), max(row.HaltS, halt)
	return nil
}

// wait lets a round pass, and notes the most transactions that a validator had unchecked.
func (s *shardedSiege) wait(ctx context.Context, row *ShardedRow) error {
	end := time.After(time.Duration(s.o.Seconds) * time.Second)
	for every := time.Tick(uncheckedEvery); ; {
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-every:
		}
		values, err := s.net.Validators[0].Scrape(ctx)
		if err == nil { // a busy node may not answer
			row.Unchecked = max(row.Unchecked, values[uncheckedName])
		}
	}
}

func (s *shardedSiege) row(kind string) *ShardedRow {
	if s.rows[kind] == nil {
		s.rows[kind] = &ShardedRow{}
	}
	return s.rows[kind]
}

// blocked returns how long blocks of each validator have waited for storage nodes, in seconds.
func (s *shardedSiege) blocked(ctx context.Context) (seconds []float64, err error) {
	for _, h := range s.net.Validators {
		values, err := h.Scrape(ctx)
		if err != nil {
			return nil, err
		}
		seconds = append(seconds, values["starling_dsm_blocked_seconds_total"])
	}
	return seconds, nil
}

// recover waits for a few blocks at each validator.
func (s *shardedSiege) recover(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, calm, fmt.Errorf("no blocks for %v after the attack", calm))
	defer cancel()
	highest := s.height(ctx)
	return e2e.Poll(ctx, "blocks after the attack", func() bool {
		return !slices.ContainsFunc(s.net.Validators, func(h *e2e.Home) bool {
			status, err := h.Status(ctx)
			return err != nil || status.Height < highest+3
		})
	})
}

// height returns the greatest height of the validators.
func (s *shardedSiege) height(ctx context.Context) (highest int64) {
	for _, h := range s.net.Validators {
		if status, err := h.Status(ctx); err == nil {
			highest = max(highest, status.Height)
		}
	}
	return highest
}

// join measures the join of a new sharded node, until it follows the chain. It returns the limit if
// the join has not ended then.
func (s *shardedSiege) join(ctx context.Context) (seconds float64, err error) {
	s.joiners++
	homes, err := s.net.Homes(ctx, fmt.Sprintf("joiner-%d", s.joiners), 1)
	if err != nil {
		return 0, err
	}
	h := homes[0]
	defer func() { err = errors.Join(err, os.RemoveAll(h.Dir)) }()
	head := s.height(ctx)
	var trusted e2e.Header
	for _, v := range s.net.Validators {
		if trusted, err = v.Header(ctx, max(1, head-2)); err == nil {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.net.Join(h, trusted); err != nil {
		return 0, err
	}
	defer s.net.Kill(h)
	limit := time.Duration(s.o.Limit * float64(time.Second))
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = e2e.Poll(limited, "the join", func() bool {
		status, err := h.Status(limited)
		return err == nil && !status.CatchingUp && status.Height >= head
	})
	if ctx.Err() == nil && limited.Err() != nil {
		return s.o.Limit, nil //nolint:nilerr // the join has not ended
	}
	return time.Since(began).Seconds(), err
}

// result compares the rows with the row without attackers.
func (s *shardedSiege) result() *ShardedResult {
	r := &ShardedResult{
		Keys: s.o.Keys, Kinds: map[string]ShardedRow{}, Seed: s.o.Seed, Repeat: s.o.Repeat, Seconds: s.o.Seconds, Limit: s.o.Limit, Machine: harness.ThisMachine(),
	}
	for _, row := range s.rows {
		row.Blocks, row.Witnesses = len(row.intervals), len(row.witnesses)
		row.BlockMS, row.WitnessMS = harness.Percentile(row.intervals, 99), harness.Percentile(row.witnesses, 99)
		if row.Blocks == 0 {
			row.BlockMS = row.HaltS * 1000
		}
		row.PutMS, row.JoinS = harness.Percentile(row.puts, 99), harness.Median(row.JoinsS)
	}
	base := s.rows[honest]
	for _, kind := range append([]string{honest}, s.o.Kinds...) {
		row := *s.row(kind)
		row.BlockX, row.WitnessX, row.JoinX = harness.Ratio(row.BlockMS, base.BlockMS), harness.Ratio(row.WitnessMS, base.WitnessMS), harness.Ratio(row.JoinS, base.JoinS)
		r.Kinds[kind] = row
		r.order = append(r.order, kind)
	}
	r.judge()
	return r
}

// fewSieged is the number of blocks below which a siege of a sharded network does not judge their
// 99th percentile. It is less than harness.FewBlocks, because a kind lasts 30 s.
const fewSieged = 100

// judge compares the worst row of each figure with its target.
func (r *ShardedResult) judge() {
	base := r.Kinds[honest]
	joinS, memory := 3*base.JoinS+10, 1.2*(base.RSSMB+strangersMB)
	goal := func(name string, figure func(ShardedRow) (worst float64, met bool, measure string)) {
		if g, ok := worstOf(name, r.order, r.Kinds, figure, func(ShardedRow) bool { return true }); ok {
			r.Targets = append(r.Targets, g)
		}
	}
	// twice judges the ratio of a 99th percentile to that without attackers.
	twice := func(name string, ratio func(ShardedRow) float64) (harness.Target, bool) {
		g, ok := worstOf(name, r.order, r.Kinds, func(row ShardedRow) (float64, bool, string) {
			return ratio(row), ratio(row) <= 2, fmt.Sprintf("%.3g×", ratio(row))
		}, func(ShardedRow) bool { return true })
		for _, other := range r.order {
			if g.Met && other != honest && ratio(r.Kinds[other]) == 0 {
				g.Met, g.Undecided = false, harness.NotMeasured+" with "+other
			}
		}
		return g, ok
	}
	goal("no halt above 5 s", func(row ShardedRow) (float64, bool, string) {
		return row.HaltS, row.HaltS <= longestHalt, fmt.Sprintf("%.3g s", row.HaltS)
	})
	if g, ok := twice("p99 of blocks at most twice that without attackers", func(row ShardedRow) float64 { return row.BlockX }); ok {
		if g.Met { // a miss stays a miss: attackers who slow the chain make its blocks few
			for _, kind := range r.order {
				g = g.OfBlocks(r.Kinds[kind].Blocks, fewSieged)
			}
		}
		r.Targets = append(r.Targets, g)
	}
	if g, ok := twice("p99 of witnesses at most twice that without attackers", func(row ShardedRow) float64 { return row.WitnessX }); ok {
		r.Targets = append(r.Targets, g)
	}
	goal("no witness failed", func(row ShardedRow) (float64, bool, string) {
		if row.Witnesses == 0 {
			return 1, false, "none measured"
		}
		return float64(row.WitnessFailed), row.WitnessFailed == 0, fmt.Sprintf("%d of %d", row.WitnessFailed, row.Witnesses)
	})
	goal("a join within three times the honest time and 10 s", func(row ShardedRow) (float64, bool, string) {
		return row.JoinS, row.Unended == 0 && row.JoinS <= joinS, fmt.Sprintf("%.3g s, at most %.3g s", row.JoinS, joinS)
	})
	goal("memory of a node within its budget for strangers and 20 %", func(row ShardedRow) (float64, bool, string) {
		return row.RSSMB, row.RSSMB <= memory, fmt.Sprintf("%.0f MB, at most %.0f MB", row.RSSMB, memory)
	})
}

// Print writes the table, notes that explain it, and the targets.
func (r *ShardedResult) Print(out io.Writer) {
	cells := [][]string{{
		harness.Group(r.Keys) + " keys", "blocks", "p99, ms", "×", "halt, s", "waited, s", "witness p99, ms", "×", "failed", "join, s", "×", "unended", "node, MB",
		"put p99, ms", "failed", "nodes, cores", "attackers", "tx/s", "busy/s", "unchecked",
	}}
	for _, kind := range r.order {
		row := r.Kinds[kind]
		cells = append(cells, []string{
			kind, fmt.Sprint(row.Blocks), show("%.0f", row.BlockMS), show("%.3g", row.BlockX), show("%.2f", row.HaltS), show("%.1f", row.BlockedS), show("%.1f", row.WitnessMS),
			show("%.3g", row.WitnessX), show("%.0f", float64(row.WitnessFailed)), show("%.1f", row.JoinS), show("%.3g", row.JoinX), show("%.0f", float64(row.Unended)),
			show("%.0f", row.RSSMB), show("%.0f", row.PutMS), show("%.0f", float64(row.PutFailed)), show("%.2f", row.NodeCPU),
			show("%.2f", row.AttackCPU), show("%.1f", row.TxRate), show("%.0f", row.BusyRate), show("%.0f", row.Unchecked),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
×        relative to the row without attackers. The attackers are one process on the same cores, at low priority, with separate loopback addresses
p99      of the time between two blocks of %d validators with %d storage nodes in %d ranges, %d × %d s per kind; halt: the longest time without a block
waited   the longest time that a validator's blocks waited for storage nodes
witness  of one random key, requested from each storage node every %d ms by a peer that the operator has named; a failure
         counts as %g s
join     of a sharded node until it follows the chain, while the attack lasts; unended: after %g s
node     the highest peak of memory of a validator or storage node
put      of %d honest clients, a transaction each every %d ms
cores    used by all nodes, and by the attackers: on a machine with fewer cores than nodes, an attack on one node slows all
tx/s     the attackers' transactions that validators answered; busy/s: those that they refused because too many wait; unchecked: the most that
         a validator had let in without knowing their rights
`, siegeValidators, shardedStorage, shardedRanges, r.Repeat, r.Seconds, witnessEvery.Milliseconds(), witnessPatience.Seconds(), r.Limit, writers, writeEvery.Milliseconds())
	harness.PrintTargets(out, "30 s per kind on an idle machine", r.Targets)
}
