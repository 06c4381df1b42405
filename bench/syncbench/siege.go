package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
)

// SiegeOptions configure a run under attack.
type SiegeOptions struct {
	Keys  int
	Seed  uint64
	Kinds []string // kinds of attackers, one row each; see JoinKinds, ServeKinds and ShardedKinds
	// Repeat is the number of joins per row, and of rounds of an attacked validator. A row has the
	// join of median time.
	Repeat int
	Blocks int     // blocks of an attacked validator in each round
	Limit  float64 // time limit of a join in seconds; later it counts as unended

	Sharded   bool   // attack a sharded network instead
	Seconds   int    // of each round of a sharded network
	Starlingd string // path of the built program
	// Quick makes a run with a sharded network so short that it takes seconds. It tests the
	// program; its figures mean nothing.
	Quick bool
}

// honest is the row without attackers, which every run has.
const honest = "honest"

// mixed is the row with all attackers of a side at the same time.
const mixed = "mixed"

// transactions are attackers with granted keys, whose transactions a network accepts.
const transactions = "transactions"

const (
	siegeValidators   = 4
	siegeTransactions = 26 // 3.6 MB
	siegePatience     = 15 * time.Minute
)

// siegePauseMS is the time between the starts of two blocks of an attacked validator.
const siegePauseMS = 100

// Kinds returns all kinds of attackers of full-state nodes: those of a joiner, of a server, of
// both, and of a network.
func Kinds() []string {
	return slices.Concat(JoinKinds, ServeKinds, []string{mixed, transactions})
}

// kinds returns all kinds of attackers that a run can have.
func (o *SiegeOptions) kinds() []string {
	if o.Sharded {
		return append(slices.Clone(ShardedKinds), mixed)
	}
	return Kinds()
}

// Flags adds the flags of siege.
func (o *SiegeOptions) Flags(f *harness.Flags) {
	keys(f, &o.Keys)
	everything := append(Kinds(), ShardedKinds...)
	f.BoolVar(&o.Sharded, "sharded", false, "attack 4 sharded validators with 6 storage nodes instead")
	f.Names(&o.Kinds, "kinds", nil, everything, "kinds of attackers, one row each (default: all)")
	f.Int(&o.Repeat, "repeat", 3, 1, 100, "joins per row (the row has the one of median time), and rounds of blocks; --sharded: 1")
	f.Int(&o.Blocks, "blocks", 100, 1, maxBlocks, "number of blocks of an attacked validator in each round")
	f.Int(&o.Seconds, "seconds", 30, 1, 3600, "--sharded: duration of each round")
	f.Float(&o.Limit, "limit", 120, 1, 100_000, "time limit of a join in seconds; later it counts as unended")
	f.Seed(&o.Seed)
	f.Program(&o.Starlingd, "starlingd")
	f.BoolVar(&o.Quick, "quick", false, "--sharded: run for seconds on a few keys, as a test: the figures mean nothing")
	f.Also(func() error {
		if o.Quick {
			f.Unless("keys", "2000", "seconds", "4")
		}
		if o.Sharded {
			f.Unless("keys", "20000", "repeat", "1")
		}
		if !f.Changed("kinds") {
			o.Kinds = o.kinds()
		}
		for _, kind := range o.Kinds {
			if !slices.Contains(o.kinds(), kind) {
				return fmt.Errorf("--kinds has %q, it takes %s", kind, strings.Join(o.kinds(), ", "))
			}
		}
		switch {
		case o.Quick && !o.Sharded:
			return errors.New("--quick needs --sharded")
		case len(o.Kinds) == 0:
			return fmt.Errorf("--kinds is empty, it takes %s", strings.Join(o.kinds(), ", "))
		}
		return nil
	})
}

// SiegeResult is the outcome of a run.
type SiegeResult struct {
	Keys    int                 `json:"keys"`
	Kinds   map[string]SiegeRow `json:"kind"`
	Seed    uint64              `json:"seed"`
	Repeat  int                 `json:"repeat"`
	Blocks  int                 `json:"blocks"`
	Limit   float64             `json:"limit_s"`
	Machine harness.Machine     `json:"machine"`
	Targets []harness.Target    `json:"targets"`

	order []string
}

// SiegeRow has the figures with attackers of one kind; they are zero if they do not apply. Ratios
// are relative to the row without attackers.
type SiegeRow struct {
	// Figures of a node that joins.
	JoinX      float64   `json:"join_x,omitempty"`
	JoinS      float64   `json:"join_s,omitempty"`
	JoinsS     []float64 `json:"joins_s,omitempty"`
	Unended    int       `json:"unended,omitempty"`
	Banned     int       `json:"banned,omitempty"`
	WastedMB   float64   `json:"wasted_mb,omitempty"`
	JoinRSSMB  float64   `json:"join_rss_mb,omitempty"` // peak memory of the joiner
	JoinCPUX   float64   `json:"join_cpu_x,omitempty"`  // CPU time of the joiner
	joinCPU    float64
	downloaded []float64 // MB/s in each round

	// Figures of a validator that commits and serves.
	RateX     float64 `json:"rate_x,omitempty"`    // download rate of an honest joiner
	RateMBS   float64 `json:"rate_mb_s,omitempty"` // the same, in MB/s
	StatusMS  float64 `json:"status_ms,omitempty"` // slowest dial and response of a newcomer
	Kept      int     `json:"kept_out,omitempty"`  // newcomers that were not served
	RSSMB     float64 `json:"rss_mb,omitempty"`    // peak memory of the validator
	BlockX    float64 `json:"block_p99_x,omitempty"`
	BlockMS   float64 `json:"block_p99_ms,omitempty"`
	AttackCPU float64 `json:"attackers_cores,omitempty"` // cores used by the attackers

	// Figures of a network that executes the transactions that touch the most keys per byte.
	TxBlocks int     `json:"blocks,omitempty"`  // blocks with these transactions
	TxRound  int     `json:"round,omitempty"`   // highest round that decided one of these blocks
	TxTimeS  float64 `json:"block_s,omitempty"` // longest time between two of these blocks
}

// siege is the state of one run.
type siege struct {
	o        SiegeOptions
	r        *runner
	progress *harness.Progress
	rows     map[string]*SiegeRow
}

// RunSiege measures joins, and a serving validator, under attack, or a sharded network. The result
// is a *SiegeResult or a *ShardedResult.
func RunSiege(ctx context.Context, o SiegeOptions, progress *harness.Progress) (interface{ Print(out io.Writer) }, error) {
	if o.Sharded {
		return runShardedSiege(ctx, o, progress)
	}
	return runSiege(ctx, o, progress)
}

// runSiege measures full-state nodes. The attackers run in a separate process and use separate
// loopback addresses.
func runSiege(ctx context.Context, o SiegeOptions, progress *harness.Progress) (*SiegeResult, error) {
	if err := manyLoopbacks(); err != nil {
		return nil, err
	}
	s := &siege{o: o, progress: progress, rows: map[string]*SiegeRow{honest: {}}}
	err := harness.InFolder(ctx, progress, func(dir string) error {
		if slices.Equal(o.Kinds, []string{transactions}) {
			return nil
		}
		s.r = &runner{o: Options{Keys: o.Keys, Seed: o.Seed}, dir: dir, progress: progress}
		attackers, err := s.r.startLoaded(ctx, roleBesieger)
		if err != nil {
			return err
		}
		defer attackers.End()
		return errors.Join(s.joins(ctx, attackers), s.serves(ctx, attackers))
	})
	if err != nil {
		return nil, err
	}
	if err := s.network(ctx); err != nil {
		return nil, err
	}
	return s.result(), nil
}

// network measures a network of paged validators that executes transactions of deletes of absent
// keys.
func (s *siege) network(ctx context.Context) error {
	if !slices.Contains(s.o.Kinds, transactions) {
		return nil
	}
	r, err := e2ebench.RunPathological(ctx, e2ebench.PathologicalOptions{
		Validators: siegeValidators, Transactions: siegeTransactions, Keys: s.o.Keys, Seed: s.o.Seed, Patience: siegePatience,
	}, s.progress)
	if err != nil {
		return fmt.Errorf("with attackers of kind %s: %w", transactions, err)
	}
	row := s.row(transactions)
	row.TxBlocks, row.TxRound, row.TxTimeS = r.Blocks, int(r.Round), r.LongestS
	return nil
}

// row returns the row of a kind.
func (s *siege) row(kind string) *SiegeRow {
	if s.rows[kind] == nil {
		s.rows[kind] = &SiegeRow{}
	}
	return s.rows[kind]
}

// of returns the requested kinds of a side, after the row without attackers, or nil if none of its
// kinds is requested. mixed counts for each side with a requested kind, or for both sides if it is
// requested alone.
func (s *siege) of(side []string) []string {
	sides := map[bool][]string{} // key: whether the kinds belong to this side
	for _, kind := range s.o.Kinds {
		if kind != mixed && kind != transactions {
			this := slices.Contains(side, kind)
			sides[this] = append(sides[this], kind)
		}
	}
	everybody := slices.Contains(s.o.Kinds, mixed)
	if len(sides[true]) == 0 && (len(sides[false]) > 0 || !everybody) {
		return nil
	}
	kinds := append([]string{honest}, sides[true]...)
	if everybody {
		kinds = append(kinds, mixed)
	}
	return kinds
}

// joins measures joins. Each join has new peers, so that none is known as an attacker.
func (s *siege) joins(ctx context.Context, attackers *harness.Process) error {
	kinds := s.of(JoinKinds)
	if kinds == nil {
		return nil
	}
	server, err := s.r.startLoaded(ctx, roleServer)
	if err != nil {
		return err
	}
	defer server.End()
	s.progress.Begin("join", "joins", len(kinds)*s.o.Repeat)
	joins := map[string][]joined{}
	err = harness.InTurns(s.o.Repeat, kinds, func(round int, kind string) error {
		s.progress.Working(kind)
		defer s.progress.Add(1)
		var serving, besieging answer
		if err := server.Ask(request{Op: opServe, Peers: 1}, &serving); err != nil {
			return err
		}
		q := request{Op: opBesiege, Kind: kind, Target: serving.Target, Seed: s.o.Seed + uint64(round)}
		if err := attackers.Ask(q, &besieging); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		j, err := s.r.join(ctx, server, request{Op: opJoin, Target: besieging.Target, LimitS: s.o.Limit}, kind)
		if err != nil {
			return fmt.Errorf("with attackers of kind %s: %w", kind, err)
		}
		joins[kind] = append(joins[kind], j)
		return attackers.Ask(request{Op: opBesiege}, nil) // stop the attackers
	})
	for kind, list := range joins {
		s.row(kind).joined(list)
	}
	return err
}

// joined takes the figures of the join of median time.
func (r *SiegeRow) joined(joins []joined) {
	for _, j := range joins {
		r.JoinsS = append(r.JoinsS, j.Seconds)
		if !j.Ended {
			r.Unended++
		}
		r.JoinRSSMB = max(r.JoinRSSMB, float64(j.RSS)/1e6)
	}
	r.JoinS = harness.LowerMedian(r.JoinsS)
	m := joins[slices.Index(r.JoinsS, r.JoinS)]
	r.Banned, r.WastedMB, r.joinCPU = m.Stats.Banned, float64(m.Stats.Wasted)/1e6, m.CPU
}

// serves measures a validator that commits blocks and serves one honest joiner, with each kind of
// attackers in turn.
func (s *siege) serves(ctx context.Context, attackers *harness.Process) error {
	kinds := s.of(ServeKinds)
	if kinds == nil {
		return nil
	}
	s.r.blocks = s.o.Repeat * (s.o.Blocks + warmBlocks) * len(kinds)
	validator, err := s.r.startLoaded(ctx, roleValidator)
	if err != nil {
		return err
	}
	defer validator.End()
	var serving answer
	if err := validator.Ask(request{Op: opServe}, &serving); err != nil {
		return err
	}
	joiner, err := startSelf(ctx, begin{Role: roleDownload, Spec: specOf(s.o.Keys, s.o.Seed)})
	if err != nil {
		return err
	}
	defer joiner.End()
	b := besieged{validator: validator, joiner: joiner, attackers: attackers, target: serving.Target, nanos: map[string][]int64{}}
	s.progress.Begin("siege", "blocks", s.o.Repeat*s.o.Blocks*len(kinds))
	err = harness.InTurns(s.o.Repeat, kinds, func(_ int, kind string) error {
		s.progress.Working(kind)
		defer s.progress.Add(s.o.Blocks)
		if err := b.round(kind, s.o.Blocks, s.row(kind)); err != nil {
			return fmt.Errorf("attacked by kind %s: %w", kind, err)
		}
		return nil
	})
	for _, kind := range kinds {
		row := s.row(kind)
		row.BlockMS = harness.Percentile(millis(b.nanos[kind]), 99)
		row.RateMBS = harness.Median(row.downloaded)
	}
	return err
}

// besieged has the processes of a validator under attack.
type besieged struct {
	validator, joiner, attackers *harness.Process
	target                       Target
	nanos                        map[string][]int64 // time of each block, by kind
}

// round makes n blocks while attackers of one kind attack the validator.
func (b *besieged) round(kind string, n int, row *SiegeRow) error {
	if err := b.attackers.Ask(request{Op: opAttack, Kind: kind, Target: b.target}, nil); err != nil {
		return err
	}
	probe := request{Op: opDownload, N: 1, Target: b.target, Probe: true}
	warm := request{Op: opBlocks, N: warmBlocks, PauseMS: siegePauseMS, ResetPeak: true}
	var before, after, blocks, attacked, ended answer
	for _, step := range []struct {
		of *harness.Process
		q  request
		a  *answer
	}{
		{b.validator, warm, new(answer)},
		{b.joiner, probe, &before},
		{b.attackers, request{Op: opUsage}, &attacked},
		{b.validator, request{Op: opBlocks, N: n, PauseMS: siegePauseMS}, &blocks},
		{b.attackers, request{Op: opUsage}, &ended},
		{b.joiner, probe, &after},
		{b.attackers, request{Op: opAttack}, new(answer)}, // stop the attack
		{b.joiner, request{Op: opDownload}, new(answer)},
	} {
		if err := step.of.Ask(step.q, step.a); err != nil {
			return err
		}
	}
	b.nanos[kind] = append(b.nanos[kind], blocks.Nanos...)
	row.downloaded = append(row.downloaded, harness.Ratio(float64(after.Bytes-before.Bytes)/1e6, blocks.Seconds))
	row.StatusMS = max(row.StatusMS, after.StatusMS)
	row.Kept += after.Refused
	row.RSSMB = max(row.RSSMB, float64(blocks.RSS)/1e6)
	row.AttackCPU = max(row.AttackCPU, harness.Ratio(ended.CPU-attacked.CPU, blocks.Seconds))
	return nil
}

// result compares the rows with the row without attackers.
func (s *siege) result() *SiegeResult {
	r := &SiegeResult{
		Keys: s.o.Keys, Kinds: map[string]SiegeRow{}, Seed: s.o.Seed, Repeat: s.o.Repeat, Blocks: s.o.Blocks, Limit: s.o.Limit, Machine: harness.ThisMachine(),
	}
	base := s.rows[honest]
	for _, kind := range append([]string{honest}, s.o.Kinds...) {
		row := *s.row(kind)
		row.JoinX, row.JoinCPUX = harness.Ratio(row.JoinS, base.JoinS), harness.Ratio(row.joinCPU, base.joinCPU)
		row.RateX, row.BlockX = harness.Ratio(row.RateMBS, base.RateMBS), harness.Ratio(row.BlockMS, base.BlockMS)
		r.Kinds[kind] = row
		r.order = append(r.order, kind)
	}
	r.judge()
	return r
}

// judge compares the worst row of each figure with its target.
func (r *SiegeResult) judge() {
	limit := 3*r.Kinds[honest].JoinS + 10
	r.goal("a join within three times the honest time and 10 s", func(row SiegeRow) (float64, bool, string) {
		return row.JoinS, row.Unended == 0 && row.JoinS <= limit, fmt.Sprintf("%.3g s, at most %.3g s", row.JoinS, limit)
	}, SiegeRow.ofJoins)
	r.goal("an honest joiner keeps half of its rate", func(row SiegeRow) (float64, bool, string) {
		return -row.RateX, row.RateX >= 0.5, fmt.Sprintf("%.3g×", row.RateX)
	}, SiegeRow.ofBlocks)
	r.goal("a newcomer's status within 1 s", func(row SiegeRow) (float64, bool, string) {
		return row.StatusMS, row.StatusMS <= 1000, fmt.Sprintf("%.3g ms", row.StatusMS)
	}, SiegeRow.ofBlocks)
	r.goal("no newcomer is kept out", func(row SiegeRow) (float64, bool, string) {
		return float64(row.Kept), row.Kept == 0, fmt.Sprint(row.Kept)
	}, SiegeRow.ofBlocks)
	if g, ok := worstOf("p99 of a commit at most twice that without attackers", r.order, r.Kinds, func(row SiegeRow) (float64, bool, string) {
		return row.BlockX, row.BlockX <= 2, fmt.Sprintf("%.3g×", row.BlockX)
	}, SiegeRow.ofBlocks); ok {
		r.Targets = append(r.Targets, g.OfBlocks(r.Repeat*r.Blocks, harness.FewBlocks))
	}
	r.goal("transactions of 10,000 deletes: all in within ten blocks", func(row SiegeRow) (float64, bool, string) {
		return float64(row.TxBlocks), row.TxBlocks <= 10, fmt.Sprint(row.TxBlocks)
	}, SiegeRow.ofTransactions)
	r.goal("… every block in round 0", func(row SiegeRow) (float64, bool, string) {
		return float64(row.TxRound), row.TxRound == 0, fmt.Sprintf("round %d", row.TxRound)
	}, SiegeRow.ofTransactions)
}

func (r SiegeRow) ofTransactions() bool { return r.TxBlocks > 0 }

func (r SiegeRow) ofJoins() bool { return r.JoinS > 0 }

func (r SiegeRow) ofBlocks() bool { return r.BlockMS > 0 }

// goal judges the worst of the rows for which the figure was measured.
func (r *SiegeResult) goal(name string, figure func(SiegeRow) (worst float64, met bool, measure string), measured func(SiegeRow) bool) {
	if g, ok := worstOf(name, r.order, r.Kinds, figure, measured); ok {
		r.Targets = append(r.Targets, g)
	}
}

// worstOf judges the row with the largest figure, among the rows with attackers for which the
// figure was measured. ok is false if there are none.
func worstOf[R any](
	name string, order []string, rows map[string]R, figure func(R) (worst float64, met bool, measure string), measured func(R) bool,
) (g harness.Target, ok bool) {
	for _, kind := range order {
		row := rows[kind]
		if kind == honest || !measured(row) {
			continue
		}
		if worst, met, measure := figure(row); !ok || worst > g.Figure {
			g, ok = harness.Target{Name: name, Met: met, Figure: worst, Measure: measure + " with " + kind}, true
		}
	}
	g.Figure = max(g.Figure, -g.Figure)
	return g, ok
}

// Print writes the table, notes that explain it, and the targets.
func (r *SiegeResult) Print(out io.Writer) {
	cells := [][]string{{
		harness.Group(r.Keys) + " keys", "join, s", "×", "unended", "banned", "wasted, MB", "joiner, MB", "joiner's CPU, ×", "rate, MB/s", "×", "status, ms", "kept out",
		"validator, MB", "p99, ms", "×", "attackers, cores", "blocks", "round", "longest, s",
	}}
	for _, kind := range r.order {
		row := r.Kinds[kind]
		round := "" // round 0 must be printed, too
		if row.ofTransactions() {
			round = fmt.Sprint(row.TxRound)
		}
		cells = append(cells, []string{
			kind, show("%.2f", row.JoinS), show("%.3g", row.JoinX), show("%.0f", float64(row.Unended)), show("%.0f", float64(row.Banned)), show("%.1f", row.WastedMB),
			show("%.0f", row.JoinRSSMB), show("%.3g", row.JoinCPUX), show("%.1f", row.RateMBS), show("%.3g", row.RateX), show("%.1f", row.StatusMS),
			show("%.0f", float64(row.Kept)), show("%.0f", row.RSSMB), show("%.2f", row.BlockMS), show("%.3g", row.BlockX), show("%.2f", row.AttackCPU),
			show("%.0f", float64(row.TxBlocks)), round, show("%.1f", row.TxTimeS),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
×        relative to the row without attackers. The attackers are one process on the same cores, with separate loopback addresses
join     from connecting to durable, verified state, the median of %d; the joiner knows only relays, which advertise all peers in random order
unended  joins that were aborted after %g s
rate     of one honest joiner that downloads the newest snapshot over and over; status: a newcomer dials and requests it every 100 ms, the slowest
p99      of commits of 2,000 operations, a block every %d ms, %d rounds of %d blocks
blocks   that a network of %d validators, each with at most 16 MiB of its state in memory, needed for %d transactions of 10,000 deletes of absent
         keys; the highest round in which one was decided; the longest time between two
`, r.Repeat, r.Limit, siegePauseMS, r.Repeat, r.Blocks, siegeValidators, siegeTransactions)
	harness.PrintTargets(out, "1,000,000 keys", r.Targets)
}
