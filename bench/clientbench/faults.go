package clientbench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/node/config"
)

// FaultsOptions configure a run of faults.
type FaultsOptions struct {
	Rounds     int
	Seconds    int // of puts in each network
	Workers    int // concurrent puts
	Validators int
	Network    string
	Faults     []string
	Slow       time.Duration // one way, between the slow validator and each other
	Starlingd  string
	CometBFT   string
	Byzantine  string
}

// Flags adds the flags of faults.
func (o *FaultsOptions) Flags(f *harness.Flags) {
	f.Int(&o.Rounds, "rounds", 6, 1, 100, "number of rounds; each measures everything once")
	f.Int(&o.Seconds, "seconds", 5, 1, 3600, "duration of each measurement in a round, in seconds")
	f.Int(&o.Workers, "workers", 8, 1, 256, "number of concurrent puts")
	f.Int(&o.Validators, "validators", 4, 4, 16, "number of validators; one of them is faulty")
	f.OneOf(&o.Network, "network", []string{string(config.LAN), string(config.WAN)}, "settings of all nodes, as for starlingd init")
	var names []string
	for _, one := range faults[1:] {
		names = append(names, one.name)
	}
	f.Names(&o.Faults, "faults", names, names, "faults to measure")
	f.Time(&o.Slow, "slow", 200*time.Millisecond, time.Millisecond, 10*time.Second, "delay of the slow validator's messages, one way")
	f.Program(&o.Starlingd, "starlingd")
	f.Program(&o.CometBFT, "cometbft")
	f.Program(&o.Byzantine, "byzantine")
}

// fault says what the last validator does. The zero value is an honest validator.
type fault struct {
	name    string
	what    string // for Print
	modes   string // of the Byzantine node; "": an honest one
	paused  bool   // it stops after the load, and keeps its connections
	slow    bool
	alone   bool          // not measured with kvstore
	program []string      // see network.Options.Last
	delay   time.Duration // see network.Options.SlowLast
}

// honest returns the addresses of the validators that serve clients.
func (f fault) honest(addresses []string) []string {
	if f.name == "" {
		return addresses
	}
	return addresses[:len(addresses)-1]
}

// begin pauses the last validator, if the fault says so. It may be called again.
func (f fault) begin(n *network.Network) {
	if f.paused {
		n.Pause(n.Validators[len(n.Validators)-1])
	}
}

// faultNone is the name of the row to which the others are compared, and faultyKVStore of the
// network with CometBFT's kvstore.
const faultNone, faultyKVStore = "none", "kvstore"

var faults = []fault{
	{name: faultNone, what: "the last validator is honest"},
	{name: "silent", what: "it is stopped, and keeps its connections", paused: true},
	{name: "slow", what: "its messages and those to it come late", slow: true},
	{name: "flooding", what: "it sends invalid transactions to its peers, 500 a second to each", modes: "spam"},
	{name: "babbling", what: "it sends meaningless messages, and some that cannot be decoded, on all channels", modes: "babble"},
	{name: "lying", what: "it signs two proposals, one of them of a block that does not exist, and sends that to every second peer", modes: "double-propose"},
	{
		name: "accused", what: "it signs two votes at every third height, which becomes evidence; kvstore stops: in a block with two pieces of\n" +
			"          evidence against one validator, it changes that validator twice, which CometBFT refuses", modes: "double-vote", alone: true,
	},
}

// RunFaults measures what a faulty validator costs a network of Starling, and one of CometBFT's
// kvstore with the same settings. It reports to progress, and always stops its processes.
func RunFaults(ctx context.Context, o FaultsOptions, progress *harness.Progress) (result *FaultsResult, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		r := &latencyRun{dir: dir, progress: progress, rounds: map[string]map[string][]Figures{}, o: LatencyOptions{
			Rounds: o.Rounds, Seconds: o.Seconds, Workers: o.Workers, Validators: o.Validators, Keys: 1000, Starlingd: o.Starlingd, CometBFT: o.CometBFT,
		}}
		if err := r.build(ctx); err != nil {
			return err
		}
		byzantine, err := harness.Build(ctx, o.Byzantine, ".", "github.com/starling-kv/starling/e2e/byzantine", progress)
		if err != nil {
			return err
		}
		stores := o.stores(byzantine)
		progress.Begin("faults", "networks", o.Rounds*len(stores))
		err = harness.InTurns(o.Rounds, stores, func(round int, s faultyStore) error {
			defer progress.Add(1)
			r.fault = s.fault
			return r.turn(ctx, round, s.latencyStore)
		})
		if err == nil {
			result = newFaultsResult(o, r.rounds)
		}
		return err
	})
	return result, err
}

// faultyStore is a network with a faulty validator.
type faultyStore struct {
	latencyStore
	fault fault
}

// stores lists the networks: one of each kind for each fault.
func (o *FaultsOptions) stores(byzantine string) (stores []faultyStore) {
	for _, f := range o.measured() {
		if f.slow {
			f.delay = o.Slow
		}
		ours := latencyStore{faultyName(nameStarling, f.name), (*latencyRun).starling, config.Network(o.Network), false, puts}
		theirs := latencyStore{faultyName(faultyKVStore, f.name), (*latencyRun).kvstore, config.Network(o.Network), false, puts}
		if f.modes != "" {
			f.program = []string{byzantine, "--lie", f.modes}
		}
		stores = append(stores, faultyStore{ours, f})
		if f.modes != "" {
			f.program = append(slices.Clone(f.program), "--kvstore")
		}
		if !f.alone {
			stores = append(stores, faultyStore{theirs, f})
		}
	}
	return stores
}

// measured returns the faults of a run, after no fault.
func (o *FaultsOptions) measured() []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name != faultNone && !slices.Contains(o.Faults, f.name) })
}

func faultyName(kind, name string) string { return kind + ", " + name }

// FaultsResult is the outcome of a run.
type FaultsResult struct {
	Faults  []FaultCost      `json:"faults"`
	Targets []harness.Target `json:"targets"`

	Rounds     int             `json:"rounds"`
	Seconds    int             `json:"seconds"`
	Workers    int             `json:"workers"`
	Validators int             `json:"validators"`
	Network    string          `json:"network"`
	SlowMS     float64         `json:"slow_ms"`
	Machine    harness.Machine `json:"machine"`

	measured []fault // for Print
}

// FaultCost has the puts of both networks with one faulty validator: medians over the rounds.
type FaultCost struct {
	Name     string   `json:"fault"`
	Starling *Figures `json:"starling"`
	KVStore  *Figures `json:"kvstore,omitempty"` // nil: not measured
	// The costs are the mean time of a put, less that without a fault, round by round, in ms.
	StarlingCost harness.Interval `json:"starling_cost_ms"`
	KVStoreCost  harness.Interval `json:"kvstore_cost_ms"`
}

func newFaultsResult(o FaultsOptions, rounds map[string]map[string][]Figures) *FaultsResult {
	r := &FaultsResult{
		Rounds: o.Rounds, Seconds: o.Seconds, Workers: o.Workers, Validators: o.Validators, Network: o.Network,
		SlowMS: float64(o.Slow.Microseconds()) / 1e3, Machine: harness.ThisMachine(), measured: o.measured(),
	}
	figures := func(kind, name string) []Figures { return rounds[faultyName(kind, name)][OpPut] }
	cost := func(kind, name string) harness.Interval {
		var costs []float64
		mean := func(f Figures) float64 { return harness.Ratio(1e3*float64(o.Workers), f.Rate) }
		for round, f := range figures(kind, name) {
			costs = append(costs, mean(f)-mean(figures(kind, faultNone)[round]))
		}
		return harness.MedianInterval(costs)
	}
	for _, f := range r.measured {
		c := FaultCost{
			Name: f.name, Starling: medians(figures(nameStarling, f.name)), KVStore: medians(figures(faultyKVStore, f.name)),
			StarlingCost: cost(nameStarling, f.name), KVStoreCost: cost(faultyKVStore, f.name),
		}
		r.Faults = append(r.Faults, c)
		if f.name == faultNone || f.alone {
			continue
		}
		t := harness.Target{
			Name: "time that a " + f.name + " validator adds to a put, at most that of kvstore", Figure: c.StarlingCost.Median,
			Met:     c.StarlingCost.Median <= c.KVStoreCost.Median,
			Measure: fmt.Sprintf("%.0f ms, and kvstore's %.0f", c.StarlingCost.Median, c.KVStoreCost.Median),
		}
		if c.StarlingCost.Low <= c.KVStoreCost.High && c.KVStoreCost.Low <= c.StarlingCost.High {
			t.Undecided = "the intervals overlap"
		}
		r.Targets = append(r.Targets, t)
	}
	return r
}

// Print writes the table and the targets.
func (r *FaultsResult) Print(out io.Writer) {
	cells := [][]string{{"", "", "p50, ms", "p99, ms", "a second", "cost, ms"}}
	for _, c := range r.Faults {
		row := func(kind string, f *Figures, cost harness.Interval) {
			if f == nil {
				return
			}
			cells = append(cells, []string{c.Name, kind, f.p50(), milliseconds(f.P99MS), harness.Group(int(f.Rate)), cost.Text("%.0f")})
		}
		row(nameStarling, c.Starling, c.StarlingCost)
		row(faultyKVStore, c.KVStore, c.KVStoreCost)
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
%s of %d s each, %d puts at a time, to honest validators, on one machine, in turn; medians of the rounds
starling  %d validators with the settings of init --network %s, signed puts
kvstore   CometBFT's, as many validators, with the same settings and CometBFT's own reactors; unsigned transactions
cost      mean time of a put, less that without a fault, round by round, with the interval of its median
`, harness.Count(r.Rounds, "round"), r.Seconds, r.Workers, r.Validators, r.Network)
	for _, f := range r.measured {
		what := f.what
		if f.slow {
			what += fmt.Sprintf(", %.0f ms each way", r.SlowMS)
		}
		fmt.Fprintf(out, "%-9s %s\n", f.name, what)
	}
	harness.PrintTargets(out, "four validators on two cores", r.Targets)
}
