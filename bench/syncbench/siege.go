package syncbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/harness"
)

// SiegeOptions are the options of a run among attackers.
type SiegeOptions struct {
	Keys   int
	Seed   uint64
	Kinds  []string // of attackers, one row each; see JoinKinds and ServeKinds
	Repeat int      // joins of each row, whose median counts; rounds of a besieged validator
	Blocks int      // of a besieged validator, in each round
	Limit  float64  // seconds after which a join counts as one that does not end
	Dir    string
}

// honest is the row without attackers, which every run has.
const honest = "honest"

// mixed are all attackers of a side at once. Every run with attackers of a side can have it.
const mixed = "mixed"

// transactions are the attackers who are granted keys: a network takes their transactions.
const transactions = "transactions"

const (
	siegeValidators   = 4
	siegeTransactions = 26 // 3.6 MB
	siegePatience     = 15 * time.Minute
)

// siegePauseMS is the time between the starts of two blocks of a besieged validator.
const siegePauseMS = 100

// Kinds are all kinds of attackers: those among which a node joins, then those of a server, and of
// a network.
func Kinds() []string {
	return slices.Concat(JoinKinds, ServeKinds, []string{mixed, transactions})
}

// Check returns an error that names the flag that is out of range, and the range.
func (o SiegeOptions) Check() error {
	if err := checkKeys(o.Keys); err != nil {
		return err
	}
	switch {
	case o.Repeat < 1 || o.Repeat > maxRepeat:
		return fmt.Errorf("--repeat is %d, it must be from 1 to %d", o.Repeat, maxRepeat)
	case o.Blocks < 1 || o.Blocks > maxBlocks:
		return fmt.Errorf("--blocks is %d, it must be from 1 to %d", o.Blocks, maxBlocks)
	case !(o.Limit >= 1 && o.Limit <= maxLimit):
		return fmt.Errorf("--limit is %v s, it must be from 1 to %d", o.Limit, maxLimit)
	case len(o.Kinds) == 0:
		return fmt.Errorf("--kinds names none, it knows %q", Kinds())
	}
	for i, kind := range o.Kinds {
		if !slices.Contains(Kinds(), kind) {
			return fmt.Errorf("--kinds names %q, it knows %q", kind, Kinds())
		}
		if slices.Contains(o.Kinds[:i], kind) {
			return fmt.Errorf("--kinds names %s twice, once is enough", kind)
		}
	}
	return nil
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
	Goals   []Goal              `json:"targets"`

	order []string
}

// SiegeRow are the figures with attackers of one kind, zero where they do not apply. Ratios are to
// the row without attackers.
type SiegeRow struct {
	// Of a node that joins.
	JoinX      float64   `json:"join_x,omitempty"`
	JoinS      float64   `json:"join_s,omitempty"`
	JoinsS     []float64 `json:"joins_s,omitempty"`
	Unended    int       `json:"unended,omitempty"`
	Banned     int       `json:"banned,omitempty"`
	WastedMB   float64   `json:"wasted_mb,omitempty"`
	JoinRSSMB  float64   `json:"join_rss_mb,omitempty"` // peak of the joiner
	JoinCPUX   float64   `json:"join_cpu_x,omitempty"`  // of the joiner
	joinCPU    float64
	downloaded []float64 // MB/s in each round

	// Of a validator that commits and serves.
	RateX     float64 `json:"rate_x,omitempty"`    // what an honest joiner downloads
	RateMBS   float64 `json:"rate_mb_s,omitempty"` // the same, in MB/s
	StatusMS  float64 `json:"status_ms,omitempty"` // slowest dial and answer of a newcomer
	Kept      int     `json:"kept_out,omitempty"`  // newcomers that were not served
	RSSMB     float64 `json:"rss_mb,omitempty"`    // peak of the validator
	BlockX    float64 `json:"block_p99_x,omitempty"`
	BlockMS   float64 `json:"block_p99_ms,omitempty"`
	AttackCPU float64 `json:"attackers_cores,omitempty"` // cores that the attackers used meanwhile

	// Of a network that takes transactions which touch most keys for their bytes.
	TxBlocks int     `json:"blocks,omitempty"`  // that took all of them
	TxRound  int     `json:"round,omitempty"`   // the greatest in which one of these was decided
	TxTimeS  float64 `json:"block_s,omitempty"` // the longest time between two of these
}

// siege makes one run.
type siege struct {
	o        SiegeOptions
	r        *runner
	progress *harness.Progress
	rows     map[string]*SiegeRow
}

// RunSiege measures joins among attackers, and a validator that attackers besiege. The attackers
// are a process of their own, on loopback addresses of their own.
func RunSiege(ctx context.Context, o SiegeOptions, progress *harness.Progress) (*SiegeResult, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if err := manyLoopbacks(); err != nil {
		return nil, err
	}
	s := &siege{o: o, progress: progress, rows: map[string]*SiegeRow{honest: {}}}
	err := harness.InFolder(ctx, o.Dir, "databases", progress, func(dir string) error {
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

// network has a network of paged validators take transactions of deletes of absent keys.
func (s *siege) network(ctx context.Context) error {
	if !slices.Contains(s.o.Kinds, transactions) {
		return nil
	}
	r, err := e2ebench.RunPathological(ctx, e2ebench.PathologicalOptions{
		Validators: siegeValidators, Transactions: siegeTransactions, Keys: s.o.Keys, Seed: s.o.Seed, Dir: s.o.Dir, Patience: siegePatience,
	}, s.progress)
	if err != nil {
		return fmt.Errorf("among attackers of the kind %s: %w", transactions, err)
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

// of returns the requested kinds of a side, after the row without attackers; nil if none of it is
// requested. Attackers of all kinds are of the sides of which some kind is requested, or of both.
func (s *siege) of(side []string) []string {
	sides := map[bool][]string{} // by whether it is this side
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

// joins measures joins. Each has new peers, so that none is known as an attacker.
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
			return fmt.Errorf("among attackers of the kind %s: %w", kind, err)
		}
		joins[kind] = append(joins[kind], j)
		return attackers.Ask(request{Op: opBesiege}, new(answer)) // nobody
	})
	for kind, list := range joins {
		s.row(kind).joined(list)
	}
	return err
}

// joined takes the figures of the join with the median time.
func (r *SiegeRow) joined(joins []joined) {
	for _, j := range joins {
		r.JoinsS = append(r.JoinsS, j.Seconds)
		if !j.Ended {
			r.Unended++
		}
		r.JoinRSSMB = max(r.JoinRSSMB, float64(j.RSS)/1e6)
	}
	r.JoinS = harness.Median(r.JoinsS)
	m := joins[slices.Index(r.JoinsS, r.JoinS)]
	r.Banned, r.WastedMB, r.joinCPU = m.Stats.Banned, float64(m.Stats.Wasted)/1e6, m.CPU
}

// serves measures a validator that commits blocks and serves one honest joiner, in turns.
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
			return fmt.Errorf("besieged by the kind %s: %w", kind, err)
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

// besieged are the processes of a validator under siege.
type besieged struct {
	validator, joiner, attackers *harness.Process
	target                       Target
	nanos                        map[string][]int64 // of the blocks, by kind
}

// round makes n blocks while attackers of one kind besiege the validator.
func (b *besieged) round(kind string, n int, row *SiegeRow) error {
	if err := b.attackers.Ask(request{Op: opAttack, Kind: kind, Target: b.target}, new(answer)); err != nil {
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
		{b.attackers, request{Op: opAttack}, new(answer)}, // nobody
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

// result compares the rows with the one without attackers.
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
	r.goal("p99 of a commit at most twice that without attackers", func(row SiegeRow) (float64, bool, string) {
		return row.BlockX, row.BlockX <= 2, fmt.Sprintf("%.3g×", row.BlockX)
	}, SiegeRow.ofBlocks)
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

// goal judges the row in which a figure is largest, of those for which it was measured.
func (r *SiegeResult) goal(name string, figure func(SiegeRow) (worst float64, met bool, measure string), measured func(SiegeRow) bool) {
	var g Goal
	for _, kind := range r.order {
		row := r.Kinds[kind]
		if kind == honest || !measured(row) {
			continue
		}
		if worst, met, measure := figure(row); g.Name == "" || worst > g.Figure {
			g = Goal{Name: name, Met: met, Figure: worst, Measure: measure + " with " + kind}
		}
	}
	if g.Name != "" {
		g.Figure = max(g.Figure, -g.Figure)
		r.Goals = append(r.Goals, g)
	}
}

// Print writes the table, notes on how to read it, and the targets.
func (r *SiegeResult) Print(out io.Writer) {
	cells := [][]string{{
		harness.Group(r.Keys) + " keys", "join, s", "×", "unended", "banned", "wasted, MB", "joiner, MB", "joiner's CPU, ×", "rate, MB/s", "×", "status, ms", "kept out",
		"validator, MB", "p99, ms", "×", "attackers, cores", "blocks", "round", "longest, s",
	}}
	for _, kind := range r.order {
		row := r.Kinds[kind]
		round := "" // 0 is a figure
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
×        over the row without attackers; they are a process of their own on the same cores, on loopback addresses of their own
join     from connecting to durable, verified state, the median of %d; the joiner knows relays only, which tell it of everybody in random order
unended  joins that were given up after %g s
rate     of one honest joiner that downloads the newest snapshot over and over; status: a newcomer dials and asks every 100 ms, the slowest
p99      of commits of 2,000 operations, a block every %d ms, %d rounds of %d blocks
blocks   of a network of %d validators, of whose states at most 16 MiB are in memory, that took %d transactions of 10,000 deletes of absent keys;
         the greatest round in which one was decided; the longest time between two
`, r.Repeat, r.Limit, siegePauseMS, r.Repeat, r.Blocks, siegeValidators, siegeTransactions)
	printGoals(out, "1,000,000 keys", r.Goals)
}
