package clientbench

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/starling-kv/starling/bench/harness"
)

// LatencyResult is the outcome of a run: medians over the rounds.
type LatencyResult struct {
	Stores []StoreLatency `json:"stores"`

	PutP50MS          float64 `json:"put_p50_ms"`
	PutP99MS          float64 `json:"put_p99_ms"`
	EtcdPutP50MS      float64 `json:"etcd_put_p50_ms"`
	EtcdPutP99MS      float64 `json:"etcd_put_p99_ms"`
	KVStorePutP50MS   float64 `json:"kvstore_put_p50_ms"`
	KVStoreLANP50MS   float64 `json:"kvstore_lan_put_p50_ms"`
	NewestP50MS       float64 `json:"newest_p50_ms"`
	NewestBusyP50MS   float64 `json:"newest_busy_p50_ms"`
	EventAfterPutMS   float64 `json:"event_after_put_ms"`
	DeadProposerMS    float64 `json:"dead_proposer_ms"` // p99, one dead, less p50
	SignedX           float64 `json:"signed_x"`         // puts a second over kvstore's
	TextX             float64 `json:"text_x"`           // the same with text transactions
	GroupedX          float64 `json:"grouped_x"`        // the same, opGroupLoad
	Batch32X          float64 `json:"batch32_x"`        // the same, opBatchLoad
	CPUX              float64 `json:"cpu_x"`            // of a text transaction: textCPUMicros
	GetsX             float64 `json:"gets_x"`           // gets a second over etcd's
	ProvedGetsX       float64 `json:"proved_gets_x"`
	RangeX            float64 `json:"range_x"` // p50 of a range of 100 over etcd's
	PutOverKVStore    float64 `json:"put_over_kvstore"`
	PutOverKVStoreLAN float64 `json:"put_over_kvstore_lan"`
	FloorMS           float64 `json:"wan_floor_ms"`   // of a put between regions: see hops
	WANOverFloor      float64 `json:"wan_over_floor"` // p50, better settings; 0: not measured

	EtcdRetries []string `json:"etcd_retries,omitempty"` // see Result

	Targets    []harness.Target `json:"targets"`
	Rounds     int              `json:"rounds"`
	Seconds    int              `json:"seconds"`
	Workers    int              `json:"workers"`
	Validators int              `json:"validators"`
	Delay      time.Duration    `json:"delay_ns"`
	Machine    harness.Machine  `json:"machine"`
}

// StoreLatency has the figures of a store by operation.
type StoreLatency struct {
	Name       string             `json:"name"`
	Operations map[string]Figures `json:"operations"`
}

// textCPUMicros is the CPU time of a text transaction on all four validators, in µs, before this
// benchmark existed: measured with starling-bench e2e.
const textCPUMicros = 506

func (r *latencyRun) result() *LatencyResult {
	o := r.o
	l := &LatencyResult{Rounds: o.Rounds, Seconds: o.Seconds, Workers: o.Workers, Validators: o.Validators, Delay: o.Delay, EtcdRetries: r.retries, Machine: harness.ThisMachine()}
	figures := func(store, op string) Figures {
		if f := medians(r.rounds[store][op]); f != nil {
			return *f
		}
		return Figures{}
	}
	for _, s := range o.stores() {
		measured := StoreLatency{Name: s.name, Operations: map[string]Figures{}}
		for _, op := range s.operations {
			measured.Operations[op] = figures(s.name, op)
		}
		l.Stores = append(l.Stores, measured)
	}
	put, etcd := figures(nameStarlingLAN, OpPut), figures(nameEtcd, OpPut)
	newest, event, dead := figures(nameStarlingLAN, opNewest), figures(nameStarlingLAN, opEventAfter), figures(nameStarlingLAN, opDead)
	l.PutP50MS, l.PutP99MS, l.EtcdPutP50MS, l.EtcdPutP99MS = put.P50MS, put.P99MS, etcd.P50MS, etcd.P99MS
	l.KVStorePutP50MS, l.KVStoreLANP50MS = figures(nameKVStore, OpPut).P50MS, figures(nameKVStoreLAN, OpPut).P50MS
	l.NewestP50MS, l.NewestBusyP50MS = newest.P50MS, figures(nameStarlingLAN, opNewestBusy).P50MS
	l.EventAfterPutMS = event.P50MS
	l.DeadProposerMS = dead.P99MS - put.P50MS
	l.PutOverKVStore, l.PutOverKVStoreLAN = harness.Ratio(put.P50MS, l.KVStorePutP50MS), harness.Ratio(put.P50MS, l.KVStoreLANP50MS)
	load := figures(nameKVStoreLAN, opPutLoad).Rate
	l.SignedX = harness.Ratio(figures(nameStarlingLAN, opPutLoad).Rate, load)
	l.GroupedX = harness.Ratio(figures(nameStarlingLAN, opGroupLoad).Rate, load)
	l.Batch32X = harness.Ratio(batchPuts*figures(nameStarlingLAN, opBatchLoad).Rate, load)
	text := figures(nameText, opPutLoad)
	l.TextX, l.CPUX = harness.Ratio(text.Rate, load), text.CPUMicros/textCPUMicros
	l.GetsX = harness.Ratio(figures(nameStarlingLAN, OpGet).Rate, figures(nameEtcd, OpGet).Rate)
	l.ProvedGetsX = harness.Ratio(figures(nameStarlingLAN, opGetProved).Rate, figures(nameEtcd, OpGet).Rate)
	l.RangeX = harness.Ratio(figures(nameStarlingLAN, OpRange).P50MS, figures(nameEtcd, OpRange).P50MS)
	if o.Delay > 0 {
		l.FloorMS = hops * float64(o.Delay.Microseconds()) / 1e3
		l.WANOverFloor = min(figures(nameStarlingFar, OpPut).P50MS, figures(nameStarlingFarLAN, OpPut).P50MS) / l.FloorMS
	}
	l.Targets = []harness.Target{
		atMostMS("put p50 at most 50 ms", 50, l.PutP50MS, put),
		atMostMS("put p99 at most 150 ms", 150, l.PutP99MS, put),
		harness.AtMost("put p50 at most a twentieth of kvstore's with its defaults", 1.0/20, l.PutOverKVStore),
		harness.AtMost("put p50 at most kvstore's with the same settings", 1, l.PutOverKVStoreLAN),
		atMostMS("proved read of the newest state (no puts) p50 at most 40 ms", 40, l.NewestP50MS, newest),
		atMostMS("event p50 at most 5 ms after its put", 5, l.EventAfterPutMS, event),
		atMostMS("a dead proposer costs at most 700 ms", 700, l.DeadProposerMS, dead, put),
		harness.AtLeast("signed puts a second at least 1.8 times kvstore's unsigned transactions", 1.8, l.SignedX),
		harness.AtLeast("text transactions a second at least 2.5 times kvstore's", 2.5, l.TextX),
		harness.AtLeast("puts a second in transactions of 32 at least 10 times kvstore's", 10, l.Batch32X),
		harness.AtLeast("gets a second at least 1.2 times etcd's", 1.2, l.GetsX),
		harness.AtLeast("proved gets a second at least 0.6 times etcd's gets", 0.6, l.ProvedGetsX),
		harness.AtMost("range of 100, p50 at most etcd's", 1, l.RangeX),
	}
	if o.Delay > 0 {
		l.Targets = append(l.Targets, harness.AtMost("put p50 between regions, with the better settings, at most 1.3 times the floor", 1.3, l.WANOverFloor))
	}
	return l
}

// atMostMS judges a time that was computed from the given figures. 0 ms is a valid time of an event
// that precedes the end of its put, so the number of operations decides whether it was measured.
func atMostMS(name string, want, got float64, of ...Figures) harness.Target {
	t := harness.Target{Name: name, Met: got <= want, Figure: got, Measure: milliseconds(got) + " ms"}
	if slices.ContainsFunc(of, func(f Figures) bool { return f.Number == 0 }) {
		t.Met, t.Undecided = false, harness.NotMeasured
	}
	return t
}

// Print writes the table and the targets.
func (l *LatencyResult) Print(out io.Writer) {
	cells := [][]string{{"", "", "p50, ms", "p99, ms", "a second", "CPU, µs"}}
	for _, s := range l.Stores {
		for _, op := range allOps {
			if f, measured := s.Operations[op]; measured {
				cpu := ""
				if f.CPUMicros > 0 {
					cpu = harness.Group(int(f.CPUMicros))
				}
				cells = append(cells, []string{s.Name, op, f.p50(), milliseconds(f.P99MS), harness.Group(int(f.Rate)), cpu})
			}
		}
	}
	harness.PrintAligned(out, cells)
	printRetries(out, l.EtcdRetries)
	fmt.Fprintf(out, `
%s of %d s each, %d operations at a time, on one machine, in turn; medians of the rounds, and the
interval of the median of p50 (of fewer than six rounds: the least and the greatest)
starling  %d validators with the settings of init --network wan and lan, signed puts (client.Put), each client with a key of its own,
          or all with one
grouped   the clients share one key and their transactions: client.WithGroupCommit
kvstore   CometBFT's, as many validators, with CometBFT's default settings and with ours for a LAN; unsigned transactions (broadcast_tx_commit)
etcd      three members, which trust each other
text      the same unsigned transactions as kvstore's
CPU       of all validators, for one operation
get       a get without a proof, with a proof, and a range of 100 keys
newest    a proved read of the newest state, without other traffic and while half of the clients put
event     from the end of a put until a watcher has its event; 0 if the event is there first
one dead  one validator is killed: every fourth block waits for its proposal
regions   each validator is in a region of its own, %v from the others one way; the floor of a put is four one-way delays: to the proposer, and
          its proposal, prevotes and precommits
`, harness.Count(l.Rounds, "round"), l.Seconds, l.Workers, l.Validators, l.Delay)
	harness.PrintTargets(out, "four validators on two cores", l.Targets)
}
