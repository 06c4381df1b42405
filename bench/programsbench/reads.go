package programsbench

import (
	"context"
	"fmt"
	"io"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app/evm/abi"
	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// The phase reads has calls whose records depend on the state, so a prediction of them can be
// wrong: the index of examples/programs, with items as keys and their owners as values. An owner's
// items are a list, and a move takes an item out of one list and appends it to another. Every other
// move from or to one of the two owners changes the length of a list, and so the records.
//
//	worker: draw a move or a transfer ──► client.Fit (simulations at its validator) ──► sign ──► send, wait until it is executed
//	                                          └──────────── again, if it touched a record that it does not name ◄─────────────┘
//
// A call needs no list of records: unnamed allows records that touch does not name, but each costs
// tx.UnnamedCost keys. So the phase measures the last share of moves with such a list and without
// it. Few workers do so: proposers leave out calls whose nodes are missing, and with 64 workers
// some of those without a list waited for more than a minute.
const (
	fewWorkers = 8
	// mintsAtOnce is the number of mints in a transaction. A mint writes mintKeys records, of which
	// it names none.
	mintsAtOnce, mintKeys, mintGas = 15, 4, 200_000
	// spareRecords is what a call without a list may touch in addition to what it touched in the
	// simulation.
	spareRecords = 4
	// readsTries is how often a call is sent at most.
	readsTries = 5
	// readsRounds separates the random numbers of this phase from those of the network's.
	readsRounds = 1 << 10
)

// ReadsRow has the figures of the phase reads for a share of moves.
type ReadsRow struct {
	Named   bool `json:"named"` // the calls name all records that their simulation touched
	Workers int  `json:"workers"`
	NetRow
	Moves     int `json:"moves"`     // executed, done or not, with those that were sent again
	Retried   int `json:"retried"`   // moves whose first prediction was wrong
	Recovered int `json:"recovered"` // of these, those that succeeded after a new simulation
}

// index makes calls of the program index.
type index struct {
	address []byte
	put     abi.Method
}

// reads measures every share of moves on a network, and then calls with and without lists.
func (r *run) reads(c *cluster) error {
	ctx := c.net.Context()
	clients, err := c.simulators(ctx)
	if err != nil {
		return err
	}
	r.progress.Begin("mint", "items", r.o.Items)
	r.progress.Working("index")
	x, err := c.mint(ctx, r.o, clients[0], r.progress.Add)
	if err != nil {
		return err
	}
	var all, pair []readsLoad
	for _, percent := range r.o.Moves {
		all = append(all, readsLoad{percent, r.o.Workers, true})
	}
	last := all[len(all)-1]
	if last.workers > fewWorkers {
		last.workers = fewWorkers
		pair = append(pair, last)
	}
	last.named = false
	pair = append(pair, last)
	number := uint64(readsRounds)
	if err := r.predictions(c, x, clients, all, &number); err != nil {
		return err
	}
	err = r.predictions(c, x, clients, pair, &number)
	if ctx.Err() != nil || err == nil {
		return err
	}
	// The account of a call that is not executed is blocked. The figures of the others count.
	r.progress.Say("reads without lists failed: %v", err)
	r.result.Failed = append(r.result.Failed, "reads without lists: "+err.Error())
	return nil
}

// readsLoad is a load of the phase reads.
type readsLoad struct {
	percent, workers int
	named            bool
}

// predictions measures loads in turns.
func (r *run) predictions(c *cluster, x index, clients []*client.Client, loads []readsLoad, number *uint64) error {
	samples := map[readsLoad][]netSample{}
	r.progress.Begin("reads", "rounds", (1+r.o.NetRounds)*len(loads))
	r.progress.Working(c.mode)
	// The first round does not count.
	err := harness.InTurns(1+r.o.NetRounds, loads, func(round int, l readsLoad) error {
		*number++
		o := r.o
		o.Workers = l.workers
		s, err := c.measure(c.net.Context(), o, l.percent, *number, func(ctx context.Context, b *bank, i int, t *tally) error {
			move := b.rnd.IntN(100) < l.percent
			operation := b.nextTransfer(b.accounts[i])
			call := operation.GetCall()
			operation = tx.NewCall(call.To, call.Input, 0, 0, 0) // Fit keeps limits that are not 0
			if move {
				operation = x.move(b.rnd.IntN(o.Items), b.accounts[b.rnd.IntN(len(b.accounts))])
			}
			return c.predicted(ctx, clients[i%len(clients)], i, operation, move, l.named, t)
		})
		if err == nil && round > 0 {
			samples[l] = append(samples[l], s)
		}
		r.progress.Add(1)
		return err
	})
	for _, l := range loads {
		if len(samples[l]) > 0 {
			r.result.Reads = append(r.result.Reads, newReadsRow(c.mode, l, samples[l]))
		}
	}
	return err
}

func newReadsRow(mode string, l readsLoad, samples []netSample) ReadsRow {
	row := ReadsRow{Named: l.named, Workers: l.workers, NetRow: newNetRow(mode, l.percent, samples)}
	row.Moves, row.Retried, row.Recovered = row.all.transfers, row.all.retried, row.all.recovered
	return row
}

// newIndex returns an index that is not deployed yet, and its init code.
func newIndex(ctx context.Context) (x index, code []byte, err error) {
	if x.put, err = abi.Parse("put(bytes32,bytes32)"); err != nil {
		return x, nil, err
	}
	code, err = exampleCode(ctx, "index.hex")
	return x, code, err
}

// mint deploys the index, and gives each item to one of the accounts.
func (c *cluster) mint(ctx context.Context, o Options, sim *client.Client, done func(int)) (index, error) {
	x, code, err := newIndex(ctx)
	if err != nil {
		return x, err
	}
	deploy, s, err := fit(ctx, sim, c.bank.accounts[0], tx.NewDeploy(code, nil, 0, 0))
	if err != nil {
		return x, err
	}
	x.address = s.Results[0].Value
	if err := c.submit(ctx, deploy); err != nil {
		return x, err
	}
	submit := func(operations ...tx.Operation) error {
		done(len(operations))
		return c.submit(ctx, operations...)
	}
	err = batches(o.Items, mintsAtOnce, submit, func(i int) tx.Operation {
		operation := x.move(i, c.bank.accounts[i%len(c.bank.accounts)])
		call := operation.GetCall()
		touch := [][]byte{program.AccountKey(x.address), program.CodeKey(x.address)}
		return tx.NewCall(call.To, call.Input, mintGas, uint32(len(touch))+mintKeys, mintKeys, touch...)
	})
	if err != nil {
		return x, err
	}
	return x, c.flush(ctx)
}

// simulators returns a client for each node to which workers send.
func (c *cluster) simulators(ctx context.Context) (clients []*client.Client, err error) {
	for _, address := range c.net.Endpoints() {
		one, err := client.Dial(ctx, []string{address}, client.WithChainID(chainID))
		if err != nil {
			return nil, err
		}
		clients = append(clients, one)
	}
	return clients, nil
}

// move returns a call, without limits, that gives an item to an account.
func (x index) move(item int, to *account) tx.Operation {
	input, err := x.put.Encode([]string{fmt.Sprintf("0x%064x", 1+item), fmt.Sprintf("0x%024d%x", 0, to.address)})
	if err != nil {
		panic(err) // two words always have an encoding
	}
	return tx.NewCall(x.address, input, 0, 0, 0)
}

// predicted sends one call of a worker as a client does that knows nothing about the program, and
// sends it again, with a new prediction, if it touched a record that it does not name.
func (c *cluster) predicted(ctx context.Context, sim *client.Client, worker int, operation tx.Operation, move, named bool, t *tally) error {
	from, node := c.bank.accounts[worker], c.entries[worker%len(c.entries)]
	for try := range readsTries {
		fitted, _, err := fit(ctx, sim, from, operation)
		if err != nil {
			return err
		}
		if !named {
			fitted = withoutList(fitted)
		}
		code, refused, err := c.sendOne(ctx, node, from, fitted)
		if err != nil {
			return err
		}
		t.mu.Lock()
		t.refused += refused
		missed := t.count(code, move, try)
		t.mu.Unlock()
		if !missed {
			return nil
		}
	}
	return nil
}

// count counts an executed call, and reports whether its prediction was wrong.
func (t *tally) count(code tx.Code, move bool, try int) (missed bool) {
	missed = code == tx.CodeTooManyRecords
	t.codes[uint32(code)]++
	if move {
		t.transfers++
	}
	if code == tx.CodeOK {
		t.done++
	}
	switch {
	case missed && try == 0:
		t.retried++
	case code == tx.CodeOK && try > 0:
		t.recovered++
	}
	return missed
}

// fit is client.Fit. A node refuses a simulation while it is busy, or if the state's nodes do not
// arrive in time.
func fit(ctx context.Context, sim *client.Client, from *account, operation tx.Operation) (tx.Operation, *client.Simulation, error) {
	for try := 0; ; try++ {
		fitted, s, err := sim.Fit(ctx, from.public, operation)
		if err == nil {
			return fitted, s, nil
		}
		if s != nil && s.Refused != nil || try == simulations || sleep.For(ctx, simulationPause) != nil {
			return tx.Operation{}, s, err
		}
	}
}

// withoutList returns a call without its list of records, with limits that allow as many.
func withoutList(operation tx.Operation) tx.Operation {
	call := operation.GetCall()
	keys := call.Keys + spareRecords
	return tx.NewCall(call.To, call.Input, call.Gas, keys, keys)
}

// sendOne sends one operation until it is executed, and returns its code and how often mempools
// refused it.
func (c *cluster) sendOne(ctx context.Context, node api.NodeClient, from *account, operation tx.Operation) (code tx.Code, refused int, err error) {
	raw, err := from.sign(operation)
	for err == nil {
		var results []*api.Result
		if results, err = send(ctx, node, [][]byte{raw}); err != nil {
			break
		}
		if results[0].GetHeight() > 0 {
			return tx.Code(results[0].GetCode()), refused, nil
		}
		refused++
		err = sleep.For(ctx, busyPause)
	}
	return 0, refused, err
}

// summarizeReads fills in the top-level figure of calls that name their records, of all workers.
func (r *Result) summarizeReads() {
	missed, moves := 0, 0
	for _, row := range r.Reads {
		if row.Named && row.Workers == r.Reads[0].Workers {
			missed, moves = missed+row.Codes[uint32(tx.CodeTooManyRecords)], moves+row.Moves
		}
	}
	if moves > 0 {
		share := harness.Ratio(float64(missed), float64(moves))
		r.Mispredicted = &share
	}
}

func (r *Result) printReads(out io.Writer) {
	if len(r.Reads) == 0 {
		return
	}
	cells := [][]string{{"moves, predicted reads", "clients", "tx/s", "codes", "moves", "mispredicted", "retried", "recovered", "refused", "requests/block", "KB", "wait, ms", "free", "ahead", "left out", "load"}}
	for _, row := range r.Reads {
		list := "named"
		if !row.Named {
			list = "no list"
		}
		cells = append(cells, []string{
			fmt.Sprintf("%d %%, %s", row.Percent, list), fmt.Sprint(row.Workers), row.TPS.Text("%.0f"), codesText(row.Codes), fmt.Sprint(row.Moves), fmt.Sprintf("%.2f %%", 100*row.Mispredicted),
			fmt.Sprint(row.Retried), fmt.Sprint(row.Recovered), fmt.Sprint(row.Refused), fmt.Sprintf("%.3f", row.RoundsPerBlock), fmt.Sprintf("%.1f", row.WitnessBytes/1e3),
			fmt.Sprintf("%.1f", row.WaitMS), fmt.Sprintf("%.3f", row.FreeBlocks), fmt.Sprintf("%.1f", row.AheadRounds), fmt.Sprintf("%.2f", row.LeftOut), fmt.Sprintf("%.1f", row.Load),
		})
	}
	fmt.Fprintln(out)
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
reads       the sharded network. Clients simulate each call at a validator (client.Fit), send it, and wait until it is executed. Moves give one of %s
            items to one of %s accounts, in the index of examples/programs; their records depend on both owners' lists. The other calls are
            transfers. no list: calls name no records, and may touch as many as in the simulation and %d more. Proposers leave a call out while
            nodes of its records are missing, so a call without a list waits for several blocks instead of requests in a block
mispredicted  the share of executed moves with code %d. Their clients simulate them again (retried), and %d attempts at most follow; recovered: of
            the retried ones, those that succeeded
`, harness.Group(r.Items), harness.Group(r.Accounts), spareRecords, tx.CodeTooManyRecords, readsTries-1)
}
