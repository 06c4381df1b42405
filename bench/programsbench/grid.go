package programsbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
)

// The phase grid sends the same load through gateways, to networks whose validators keep the tree
// to different depths r. Each gateway keeps it to the same depth. It is Fig. 9a of RainBlock
// (Ponnapalli et al., USENIX ATC 2021).
//
//	clients ──gRPC Submit──► 1, 2, 4 gateways ──mempool──► 4 sharded validators ◄──► 4 storage nodes

// GridRow has the figures of a network with one r.
type GridRow struct {
	Mode   string     `json:"mode"`
	Retain *int       `json:"r,omitempty"` // absent with the whole state
	Cells  []GridCell `json:"cells"`
}

// GridCell has the figures of a network with a number of gateways. 0: clients send to the
// validators.
type GridCell struct {
	Gateways int `json:"gateways"`
	NetRow
}

// runGrid measures a network of validators with the whole state, to which clients send directly,
// and one sharded network for each r.
func (r *run) runGrid(ctx context.Context, dir string) error {
	program, err := network.Starlingd(ctx, r.o.Starlingd, r.progress)
	if err != nil {
		return err
	}
	local, err := r.gridRow(ctx, ModeLocal, r.o, []int{0}, program, filepath.Join(dir, "local"))
	if err != nil {
		return err
	}
	r.result.Grid = append(r.result.Grid, local)
	for _, retain := range r.o.GridRetain {
		o := r.o
		o.Retain = retain
		row, err := r.gridRow(ctx, ModeSharded, o, r.o.GridGateways, program, filepath.Join(dir, fmt.Sprint("r-", retain)))
		if err != nil {
			return fmt.Errorf("r %d: %w", retain, err)
		}
		row.Retain = &retain
		r.result.Grid = append(r.result.Grid, row)
	}
	return nil
}

// gridRow measures one network, with more and more gateways: all that run are used.
func (r *run) gridRow(ctx context.Context, mode string, o Options, gateways []int, program, dir string) (row GridRow, err error) {
	c, err := startCluster(ctx, o, mode, program, dir, r.progress)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	ctx = c.net.Context()
	row.Mode = mode
	number := uint64(0)
	for _, n := range slices.Sorted(slices.Values(gateways)) {
		r.progress.Begin("join", "gateways", n)
		r.progress.Working(fmt.Sprintf("%s, r %d", mode, o.Retain))
		for ; len(c.gateways) < n; r.progress.Add(1) {
			_, address, err := c.gateway(ctx)
			if err != nil {
				return row, err
			}
			if err := c.dial(address); err != nil {
				return row, err
			}
		}
		if n > 0 {
			c.entries = c.nodes[validators:]
		}
		r.progress.Begin("grid", "rounds", 1+o.NetRounds)
		r.progress.Working(fmt.Sprintf("%s, r %d, %s", mode, o.Retain, harness.Count(n, "gateway")))
		var samples []netSample
		for round := range 1 + o.NetRounds { // the first round does not count
			number++
			s, err := c.round(ctx, o, o.NetShares[0], number)
			if err != nil {
				return row, err
			}
			if round > 0 {
				samples = append(samples, s)
			}
			r.progress.Add(1)
		}
		row.Cells = append(row.Cells, GridCell{n, newNetRow(mode, o.NetShares[0], samples)})
	}
	return row, nil
}

func (r *Result) printGrid(out io.Writer) {
	if len(r.Grid) == 0 {
		return
	}
	cells := [][]string{{"r", "gateways", "tx/s", "over local", "validators, µs/tx", "storage", "gateways", "requests/s", "keys/s", "load"}}
	var local float64
	for _, row := range r.Grid {
		name := row.Mode
		if row.Retain == nil {
			local = row.Cells[0].TPS.Median
		} else {
			name = fmt.Sprint(*row.Retain)
		}
		for _, c := range row.Cells {
			cells = append(cells, []string{
				name, fmt.Sprint(c.Gateways), c.TPS.Text("%.0f"), fmt.Sprintf("%.2f", harness.Ratio(c.TPS.Median, local)), fmt.Sprintf("%.0f", c.ValidatorsMicros),
				fmt.Sprintf("%.0f", c.StorageMicros), fmt.Sprintf("%.0f", c.GatewaysMicros),
				fmt.Sprintf("%.0f", c.StorageRequestsS), fmt.Sprintf("%.0f", c.StorageKeysS), fmt.Sprintf("%.1f", c.Load),
			})
		}
	}
	fmt.Fprintln(out)
	harness.PrintAligned(out, cells)
	fmt.Fprint(out, `
grid        clients send the first of the shares through gateways, which keep the tree to the same depth r as the validators; local: validators with
            the whole state, and no gateway. µs/tx as above. All processes share this machine, so each gateway takes CPU time from the others.
            requests/s: of all kinds to a storage node, on average; keys/s: keys of its proofs, none if r reaches the leaves
`)
}
