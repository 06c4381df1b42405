package programsbench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/tx"
)

// NetRow has the figures of a network for a share of transfers.
type NetRow struct {
	Mode    string           `json:"mode"` // of the validators
	Percent int              `json:"percent"`
	TPS     harness.Interval `json:"tps"` // transactions that succeeded, by round
	Txs     int              `json:"txs"`
	Codes   map[uint32]int   `json:"codes"` // executed transactions by code, 0: success
	// Refused is the number of times that a mempool refused a transaction, which was sent again.
	Refused int     `json:"refused"`
	Blocks  float64 `json:"blocks"`
	Load    float64 `json:"load"` // average of the machine, the highest of all rounds

	// CPU time per transaction of all processes of a role, in µs.
	ValidatorsMicros float64 `json:"validators_us_tx"`
	StorageMicros    float64 `json:"storage_us_tx,omitempty"`
	GatewaysMicros   float64 `json:"gateways_us_tx,omitempty"`
	ClientsMicros    float64 `json:"clients_us_tx"`

	// Requests of all kinds to a storage node per second, and keys of proofs that it sends; the
	// mean of all storage nodes, the median of the rounds.
	StorageRequestsS float64 `json:"storage_requests_s,omitempty"`
	StorageKeysS     float64 `json:"storage_keys_s,omitempty"`

	// These are zero without a sharded state. They count ProcessProposal and FinalizeBlock, per
	// block and validator.
	RoundsPerBlock float64 `json:"rounds_per_block,omitempty"`
	WitnessBytes   float64 `json:"witness_bytes_block,omitempty"`
	WaitMS         float64 `json:"wait_ms_block,omitempty"`
	FreeBlocks     float64 `json:"free_blocks,omitempty"`
	// Requests of a validator ahead of blocks, per block.
	AheadRounds float64 `json:"ahead_rounds_block,omitempty"`
	AheadBytes  float64 `json:"ahead_bytes_block,omitempty"`
	// LeftOut is how often a proposer left a transaction out because of missing nodes, per
	// transaction. One transaction may be left out several times.
	LeftOut float64 `json:"left_out,omitempty"`
	// Mispredicted is the share of executed transfers, in the phase reads of executed moves, that
	// failed because they touched a record that they did not name.
	Mispredicted float64 `json:"mispredicted,omitempty"`

	all netSample // sums of all rounds
}

func newNetRow(mode string, percent int, samples []netSample) NetRow {
	row := NetRow{Mode: mode, Percent: percent, Codes: map[uint32]int{}}
	row.TPS = harness.MedianInterval(harness.Each(samples, func(s netSample) float64 { return s.tps }))
	sum := &row.all
	for _, s := range samples {
		sum.add(s)
		for code, n := range s.codes {
			row.Codes[code] += n
		}
		row.Load = max(row.Load, s.load)
	}
	row.Txs, row.Refused, row.Blocks = sum.done, sum.refused, sum.height
	micros := func(seconds float64) float64 { return harness.Ratio(seconds*1e6, float64(sum.done)) }
	row.ValidatorsMicros, row.StorageMicros = micros(sum.cpu.validators), micros(sum.cpu.storage)
	row.GatewaysMicros, row.ClientsMicros = micros(sum.cpu.gateways), micros(sum.cpu.clients)
	sum.codes = row.Codes
	if mode == ModeLocal {
		return row
	}
	row.RoundsPerBlock, row.FreeBlocks, row.Mispredicted = sum.roundsPerBlock(), sum.free(), sum.mispredicted()
	row.WitnessBytes, row.WaitMS = harness.Ratio(sum.bytes, sum.blocks), harness.Ratio(sum.waitS*1e3, sum.blocks)
	row.AheadRounds, row.AheadBytes = harness.Ratio(sum.ahead, sum.blocks), harness.Ratio(sum.aheadBytes, sum.blocks)
	row.LeftOut = harness.Ratio(sum.leftOut, float64(sum.done))
	row.StorageRequestsS = harness.MedianOf(samples, func(s netSample) float64 { return s.requestsS })
	row.StorageKeysS = harness.MedianOf(samples, func(s netSample) float64 { return s.readsS })
	return row
}

func (s *netSample) add(t netSample) {
	s.done, s.transfers, s.refused = s.done+t.done, s.transfers+t.transfers, s.refused+t.refused
	s.retried, s.recovered = s.retried+t.retried, s.recovered+t.recovered
	s.cpu = s.cpu.plus(t.cpu, 1)
	s.height, s.blocks, s.waited, s.waitS = s.height+t.height, s.blocks+t.blocks, s.waited+t.waited, s.waitS+t.waitS
	s.rounds, s.bytes, s.ahead, s.aheadBytes, s.leftOut = s.rounds+t.rounds, s.bytes+t.bytes, s.ahead+t.ahead, s.aheadBytes+t.aheadBytes, s.leftOut+t.leftOut
}

func (s *netSample) roundsPerBlock() float64 { return harness.Ratio(s.rounds, s.blocks) }

// free returns the share of blocks for which a validator waited in neither call. A block for which
// it waited in both counts twice, so it is a lower bound.
func (s *netSample) free() float64 {
	if s.blocks == 0 {
		return 0
	}
	return max(0, 1-s.waited/s.blocks)
}

func (s *netSample) mispredicted() float64 {
	return harness.Ratio(float64(s.codes[uint32(tx.CodeTooManyRecords)]), float64(s.transfers))
}

// summarizeNetwork fills in the top-level figures of the networks.
func (r *Result) summarizeNetwork() {
	var sum netSample
	tps := map[string]float64{}
	for _, row := range slices.Backward(r.Network) { // the first share counts
		tps[row.Mode] = row.TPS.Median
		if row.Mode == ModeSharded {
			sum.add(row.all)
		}
	}
	if sum.blocks > 0 {
		rounds, free := sum.roundsPerBlock(), sum.free()
		r.RoundsPerBlock, r.FreeBlocks = &rounds, &free
	}
	if tps[ModeSharded] > 0 {
		r.WANRatio = tps[ModeWAN] / tps[ModeSharded]
	}
	if r.Retain == 12 && tps[ModeLocal] > 0 {
		r.TPSOverLocal = tps[ModeSharded] / tps[ModeLocal]
	}
}

func (r *Result) printNetwork(out io.Writer) {
	if len(r.Network) == 0 {
		return
	}
	fmt.Fprintln(out)
	cells := [][]string{{
		"transfers, networks", "tx/s", "txs", "codes", "refused", "blocks", "validators, µs/tx", "storage", "clients", "requests/block", "KB", "wait, ms", "free", "ahead", "KB", "left out", "load",
	}}
	for _, row := range r.Network {
		line := []string{
			fmt.Sprintf("%d %%, %s", row.Percent, row.Mode), row.TPS.Text("%.0f"), fmt.Sprint(row.Txs), codesText(row.Codes), fmt.Sprint(row.Refused), fmt.Sprintf("%.0f", row.Blocks),
			fmt.Sprintf("%.0f", row.ValidatorsMicros), fmt.Sprintf("%.0f", row.StorageMicros), fmt.Sprintf("%.0f", row.ClientsMicros),
		}
		if row.Mode != ModeLocal {
			line = append(line, fmt.Sprintf("%.3f", row.RoundsPerBlock), fmt.Sprintf("%.1f", row.WitnessBytes/1e3), fmt.Sprintf("%.1f", row.WaitMS), fmt.Sprintf("%.3f", row.FreeBlocks),
				fmt.Sprintf("%.1f", row.AheadRounds), fmt.Sprintf("%.0f", row.AheadBytes/1e3), fmt.Sprintf("%.2f", row.LeftOut))
		} else {
			line = append(line, "", "", "", "", "", "", "")
		}
		cells = append(cells, append(line, fmt.Sprintf("%.1f", row.Load)))
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
networks    %d validators, with a sharded state %d storage nodes (%d ranges, 2 storage nodes each; r %d), all on this machine; %s accounts hold the
            token, %s keys of puts. Clients send signed transactions over gRPC, several of an account at a time, and wait until they are executed
delayed     %.0f ms one way between every two validators, and between validators and storage nodes, by relays in this process, whose CPU time counts
            as the clients'. Storage nodes read headers without a delay
µs/tx       CPU time of all processes of a role, per transaction that succeeded
requests    for missing nodes in ProcessProposal and FinalizeBlock, per block of a validator; KB and wait are those of these requests. free: the
            share of blocks without a wait (a block with a wait in both calls counts twice). ahead: requests before a block, per block
left out    by proposers, because nodes were missing; a transaction may be left out several times, and is proposed later
code %d     the transfer touches a record that it does not name. The records of a transfer depend on its two addresses only, so none is expected
`, validators, storageNodes, ranges, r.Retain, harness.Group(r.Accounts), harness.Group(r.NetKeys), r.DelayMS, tx.CodeTooManyRecords)
	r.printExtrapolation(out)
}

// printExtrapolation compares the CPU time of the validators alone.
func (r *Result) printExtrapolation(out io.Writer) {
	for _, local := range r.Network {
		if local.Mode != ModeLocal {
			continue
		}
		for _, row := range r.Network {
			if row.Mode == ModeSharded && row.Percent == local.Percent {
				fmt.Fprintf(out, "extrapolated  with a machine for each role and CPU time as the only limit, sharded validators execute %.2f as much as those with the whole state, at %d %%\n",
					harness.Ratio(local.ValidatorsMicros, row.ValidatorsMicros), row.Percent)
			}
		}
	}
}

// codesText lists codes with their counts.
func codesText(codes map[uint32]int) string {
	var all []string
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		all = append(all, fmt.Sprintf("%d:%d", code, codes[code]))
	}
	return strings.Join(all, " ")
}
