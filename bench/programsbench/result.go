package programsbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run. The fields of a phase that did not run are absent.
type Result struct {
	// Transfers per second of an application alone, with nothing else in a block.
	ERC20TPS float64 `json:"erc20_tps,omitempty"`

	// Mispredicted is the share of executed moves with a wrong prediction, with all shares of moves
	// together: see ReadsRow.
	Mispredicted *float64 `json:"mispredicted,omitempty"`
	// These describe the sharded network, with all shares together: see NetRow.
	RoundsPerBlock *float64 `json:"rounds_per_block,omitempty"`
	FreeBlocks     *float64 `json:"free_blocks,omitempty"`
	// WANRatio compares the sharded network with delays to the one without, with the first of the
	// shares and the same number of transactions in flight.
	WANRatio float64 `json:"wan_ratio,omitempty"`
	// TPSOverLocal compares sharded validators with r 12 to validators with the whole state, with
	// the first of the shares.
	TPSOverLocal float64 `json:"tps_over_local_r12,omitempty"`

	App      []AppRow `json:"app,omitempty"`
	GasUsed  uint64   `json:"gas_used,omitempty"`  // by a transfer
	GasNamed uint64   `json:"gas_named,omitempty"` // by a transfer
	GasLimit int      `json:"block_transfers_limit,omitempty"`

	// OverPaged is the rate of transfers of an application with the state in memory over that of
	// one with a state on disk that is four times as large as its caches.
	OverPaged float64   `json:"over_paged,omitempty"`
	Paged     *PagedRow `json:"paged,omitempty"`

	// GatewayGetsS is proved gets per second of one sharded node without a vote.
	GatewayGetsS float64  `json:"gateway_gets_s,omitempty"`
	Gets         *GetsRow `json:"gets,omitempty"`

	Reads []ReadsRow `json:"reads,omitempty"`
	Items int        `json:"items"`

	Grid []GridRow `json:"grid,omitempty"`

	Network []NetRow `json:"network,omitempty"`
	Retain  int      `json:"r"`
	DelayMS float64  `json:"delay_ms"` // one way, of the network with delays
	NetKeys int      `json:"network_keys"`

	// Failed are the networks that failed, with their errors. Their figures are absent.
	Failed []string `json:"failed,omitempty"`

	Accounts int              `json:"accounts"`
	Keys     int              `json:"keys"`
	Seed     uint64           `json:"seed"`
	Quick    bool             `json:"quick,omitempty"`
	Phases   []string         `json:"phases"`
	Machine  harness.Machine  `json:"machine"`
	Targets  []harness.Target `json:"targets"`
}

// AppRow has the figures of an application alone, for a share of transfers.
type AppRow struct {
	Percent        int `json:"percent"`
	BlockTxs       int `json:"block_txs"`
	BlockTransfers int `json:"block_transfers"`
	// Per second of FinalizeBlock and Commit, by round. CheckTx has checked the signatures before.
	TPS       harness.Interval `json:"tps"`
	Transfers harness.Interval `json:"transfers_s"`
	// Signed is transactions per second of ProcessProposal, FinalizeBlock and Commit, when
	// ProcessProposal checks the signatures.
	Signed    harness.Interval `json:"signed_tps"`
	CPUMicros float64          `json:"cpu_us_tx"` // of FinalizeBlock and Commit
}

// summarize fills in the top-level figures.
func (r *Result) summarize() {
	for _, row := range r.App {
		if row.Percent == 100 {
			r.ERC20TPS = row.Transfers.Median
		}
	}
	r.summarizeNetwork()
	r.summarizeReads()
	if r.Paged != nil {
		r.OverPaged = r.Paged.Ratio.Median
	}
	if r.Gets != nil {
		r.GatewayGetsS = r.Gets.PerSecond
	}
	r.Targets = r.targets()
}

// Print writes the tables, notes that explain them, and the targets.
func (r *Result) Print(out io.Writer) {
	r.printApp(out)
	r.printPaged(out)
	r.printNetwork(out)
	r.printReads(out)
	r.printGets(out)
	r.printGrid(out)
	for _, failed := range r.Failed {
		fmt.Fprintf(out, "\nNot measured: %s\n", failed)
	}
	if r.Quick {
		fmt.Fprintln(out, "\nA quick run: the figures mean nothing.")
		return
	}
	harness.PrintTargets(out, "two cores", r.Targets)
}

func (r *Result) printApp(out io.Writer) {
	if len(r.App) == 0 {
		return
	}
	cells := [][]string{{"transfers, application alone", "tx/s", "transfers/s", "with signatures, tx/s", "CPU, µs/tx", "block: txs", "transfers"}}
	for _, row := range r.App {
		cells = append(cells, []string{
			fmt.Sprintf("%d %%", row.Percent), row.TPS.Text("%.0f"), row.Transfers.Text("%.0f"), row.Signed.Text("%.0f"), fmt.Sprintf("%.1f", row.CPUMicros),
			fmt.Sprint(row.BlockTxs), fmt.Sprint(row.BlockTransfers),
		})
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
gas         a transfer uses %s and names %s, as client.Fit does: a quarter more, and %s. A block of %s gas has %d transfers at most; with the
            gas that they use, it would have %d. So 15,000 transfers per second need %.1f blocks per second
tx/s        FinalizeBlock and Commit, after CheckTx has checked the signatures; with signatures: and ProcessProposal, which checks them. Medians of
            rounds, with intervals for the median. Everything is in memory: %s accounts, %s keys of puts. No CometBFT
load        %.1f when the run began
`, harness.Group(int(r.GasUsed)), harness.Group(int(r.GasNamed)), harness.Group(reserveGas), harness.Group(blockGas), r.GasLimit, blockGas/r.GasUsed,
		15_000/float64(r.GasLimit), harness.Group(r.Accounts), harness.Group(r.Keys), r.Machine.Load)
}
