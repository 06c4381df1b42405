package relaybench

import (
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run.
type Result struct {
	Runs       []Row           `json:"runs"`
	Sends      []Send          `json:"sends"` // by size
	Validators int             `json:"validators"`
	Rounds     int             `json:"rounds"`
	Guest      bool            `json:"guest"`
	Machine    harness.Machine `json:"machine"`
	// Targets has one for each rate, for blocks of 4 MiB: over TCP, a relayed block takes at most
	// half of p2p's time at the default rate, and at most p2p's time at other rates.
	Targets []harness.Target `json:"targets"`
}

// Row has the figures for one size of blocks and one p2p rate. Times are medians over all full
// blocks, from the proposal until the last validator has the last part.
type Row struct {
	BlockBytes int      `json:"block_bytes"`
	P2PRate    int64    `json:"p2p_rate"` // bytes per second
	P2PMS      float64  `json:"p2p_ms"`
	RelayTCPMS float64  `json:"relay_tcp_ms"`
	RelayRDMA  *float64 `json:"relay_rdma_ms"` // null: not measured, because there is no device
	// 90th percentiles, measured blocks, and CPU time of all validators per full block. Blocks that
	// are not full count in proportion to their parts.
	P2P90MS     float64 `json:"p2p_90_ms"`
	Relay90MS   float64 `json:"relay_tcp_90_ms"`
	P2PBlocks   int     `json:"p2p_blocks"`
	RelayBlocks int     `json:"relay_tcp_blocks"`
	P2PCPUMS    float64 `json:"p2p_cpu_ms"`
	RelayCPUMS  float64 `json:"relay_tcp_cpu_ms"`
	// Relayed counts the relayed messages by outcome. Messages that were not taken went over p2p.
	Relayed map[string]int `json:"relayed"`
	// Relayed messages per full block, and how many of them the receiver already had.
	RelayedPerBlock float64 `json:"relayed_per_block"`
	AgainPerBlock   float64 `json:"again_per_block"`
	// The same over RDMA, if it was measured.
	RDMACPUMS   *float64       `json:"relay_rdma_cpu_ms,omitempty"`
	RDMABlocks  int            `json:"relay_rdma_blocks,omitempty"`
	RDMARelayed map[string]int `json:"relayed_rdma,omitempty"`
}

// total returns the sum of the counts of all outcomes.
func total(outcomes map[string]int) (sum int) {
	for _, n := range outcomes {
		sum += n
	}
	return sum
}

// newResult makes a row for each size and rate. variants has, for each size and rate in turn, the
// networks without relay, over TCP, and over RDMA if that was measured.
func newResult(o Options, variants []*variant) *Result {
	r := &Result{Validators: validators, Rounds: o.Rounds, Machine: harness.ThisMachine()}
	for of := range slices.Chunk(variants, len(variants)/len(o.Rates)/len(o.BlockBytes)) {
		p2p, relay := of[0], of[1]
		row := Row{
			BlockBytes: p2p.bytes, P2PRate: p2p.rate, P2PMS: harness.Median(p2p.ms), RelayTCPMS: harness.Median(relay.ms),
			P2P90MS: harness.Percentile(p2p.ms, 90), Relay90MS: harness.Percentile(relay.ms, 90), P2PBlocks: len(p2p.ms), RelayBlocks: len(relay.ms),
			P2PCPUMS: 1e3 * harness.Median(p2p.cpu), RelayCPUMS: 1e3 * harness.Median(relay.cpu), Relayed: relay.sent,
		}
		row.RelayedPerBlock = harness.Ratio(float64(total(relay.sent)), float64(relay.full))
		row.AgainPerBlock = harness.Ratio(float64(relay.again), float64(relay.full))
		if len(of) > 2 {
			ms, cpu := harness.Median(of[2].ms), 1e3*harness.Median(of[2].cpu)
			row.RelayRDMA, row.RDMACPUMS, row.RDMABlocks, row.RDMARelayed = &ms, &cpu, len(of[2].ms), of[2].sent
		}
		r.Runs = append(r.Runs, row)
		if p2p.bytes != defaultBytes {
			continue
		}
		limit := 1.0
		if p2p.rate <= defaultRate {
			limit = 0.5
		}
		name := fmt.Sprintf("a relayed block at most %g× p2p's time at %.2f MB/s", limit, float64(p2p.rate)/1e6)
		r.Targets = append(r.Targets, harness.AtMost(name, limit, harness.Ratio(row.RelayTCPMS, row.P2PMS)))
	}
	return r
}

// Print writes the table, and explains it.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{{"blocks", "p2p, MB/s", "p2p, ms", "p90", "relay, ms", "p90", "×", "CPU p2p, ms", "relay", "blocks", "messages", "again", "taken, %", "late, %"}}
	for _, w := range r.Runs {
		all := total(w.Relayed)
		cells = append(cells, []string{
			harness.SizeText(w.BlockBytes), fmt.Sprintf("%.2f", float64(w.P2PRate)/1e6), fmt.Sprintf("%.0f", w.P2PMS), fmt.Sprintf("%.0f", w.P2P90MS),
			fmt.Sprintf("%.0f", w.RelayTCPMS), fmt.Sprintf("%.0f", w.Relay90MS), fmt.Sprintf("%.2f", harness.Ratio(w.RelayTCPMS, w.P2PMS)),
			fmt.Sprintf("%.0f", w.P2PCPUMS), fmt.Sprintf("%.0f", w.RelayCPUMS), fmt.Sprintf("%d, %d", w.P2PBlocks, w.RelayBlocks),
			fmt.Sprintf("%.0f", w.RelayedPerBlock), fmt.Sprintf("%.0f", w.AgainPerBlock),
			fmt.Sprintf("%.1f", 100*harness.Ratio(float64(w.Relayed["taken"]), float64(all))),
			fmt.Sprintf("%.1f", 100*harness.Ratio(float64(w.Relayed["late"]), float64(all))),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
%d validators on this machine, %s; medians over blocks
ms     from the proposal until the last validator has the last part, by the nodes' logs
messages  relayed by all validators per block; again: the receiver already had it
taken  share of the relayed messages that the peer took; late: after 100 ms, so that they were also sent over p2p
CPU    of all validators together per full block, including its execution and the time between blocks
`, r.Validators, harness.Count(r.Rounds, "round"))
	r.printRDMA(out)
	r.printSends(out)
	harness.PrintTargets(out, "blocks of 4 MiB over TCP", r.Targets)
}

// printRDMA writes the figures of relaying over RDMA, or why there are none.
func (r *Result) printRDMA(out io.Writer) {
	for _, w := range r.Runs {
		if w.RelayRDMA == nil {
			fmt.Fprintln(out, "RDMA was not measured: it needs --devices or --guest")
			return
		}
		all := total(w.RDMARelayed)
		fmt.Fprintf(out, "over RDMA, blocks of %s, p2p at %.2f MB/s: %.0f ms, CPU %.0f ms, %s; %.1f %% of the messages were taken, %.1f %% late\n",
			harness.SizeText(w.BlockBytes), float64(w.P2PRate)/1e6, *w.RelayRDMA, *w.RDMACPUMS, harness.Count(w.RDMABlocks, "block"),
			100*harness.Ratio(float64(w.RDMARelayed["taken"]), float64(all)), 100*harness.Ratio(float64(w.RDMARelayed["late"]), float64(all)))
	}
	if r.Guest {
		fmt.Fprintln(out, "Measured in the emulated VM, where encryption is slow, unlike on hardware.")
	}
}

// printSends writes the times of blocks without consensus.
func (r *Result) printSends(out io.Writer) {
	if len(r.Sends) == 0 {
		return
	}
	fmt.Fprintln(out)
	cells := [][]string{{"blocks sent alone, ms", "plain TCP", "TCP with TLS", "RDMA"}}
	for _, s := range r.Sends {
		line := []string{harness.SizeText(s.BlockBytes), s.Plain.Text("%.1f"), s.TLS.Text("%.1f"), ""}
		if s.RDMA != nil {
			line[3] = fmt.Sprintf("%s, %.0f %% of the bytes", s.RDMA.Text("%.1f"), 100*s.RDMAShare)
		}
		cells = append(cells, line)
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
sent alone  without consensus: until %d receivers in this process have the block and have answered; medians with their intervals. No node has plain TCP
`, receivers)
}
