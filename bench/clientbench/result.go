package clientbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run: medians over the rounds.
type Result struct {
	Operations []OperationResult `json:"operations"`
	Promise    string            `json:"promise"`

	Rounds          int             `json:"rounds"`
	Seconds         int             `json:"seconds"` // of each operation in each round
	Keys            int             `json:"keys"`
	ValueBytes      int             `json:"value_bytes"`
	RangeKeys       int             `json:"range_keys"`
	Workers         int             `json:"workers"`
	Validators      int             `json:"validators"`
	Members         int             `json:"etcd_members"`
	TimeoutCommitMS float64         `json:"timeout_commit_ms"`
	Machine         harness.Machine `json:"machine"`
}

// OperationResult is one operation, nil where a store does not have it.
type OperationResult struct {
	Name     string   `json:"name"`
	Starling *Figures `json:"starling,omitempty"`
	Etcd     *Figures `json:"etcd,omitempty"`
}

// promise says why the columns are no race.
const promise = "etcd's members believe each other (crash faults), Starling's validators believe nobody (Byzantine faults)"

func newResult(o Options, rounds map[string]map[string][]Figures) *Result {
	r := &Result{
		Promise: promise, Rounds: o.Rounds, Seconds: o.Seconds, Keys: o.Keys, ValueBytes: o.ValueBytes, RangeKeys: o.RangeKeys, Workers: o.Workers,
		Validators: o.Validators, Members: members, TimeoutCommitMS: float64(o.TimeoutCommit.Microseconds()) / 1e3, Machine: harness.ThisMachine(),
	}
	for _, op := range operations {
		r.Operations = append(r.Operations, OperationResult{op.name, medians(rounds[nameStarling][op.name]), medians(rounds[nameEtcd][op.name])})
	}
	return r
}

// medians are those of each figure over the rounds; nil without rounds.
func medians(rounds []Figures) *Figures {
	if len(rounds) == 0 {
		return nil
	}
	of := func(figure func(Figures) float64) float64 {
		values := make([]float64, len(rounds))
		for i, f := range rounds {
			values[i] = figure(f)
		}
		return harness.Median(values)
	}
	f := &Figures{
		P50MS: of(func(f Figures) float64 { return f.P50MS }), P99MS: of(func(f Figures) float64 { return f.P99MS }),
		Rate: of(func(f Figures) float64 { return f.Rate }),
	}
	for _, round := range rounds {
		f.Number += round.Number
	}
	return f
}

// Print writes the table, and how to read it.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{{"", nameStarling + " p50, ms", "p99, ms", "a second", nameEtcd + " p50, ms", "p99, ms", "a second"}}
	for _, op := range r.Operations {
		cells = append(cells, append(append([]string{op.Name}, op.Starling.cells()...), op.Etcd.cells()...))
	}
	harness.PrintAligned(out, cells)
	fmt.Fprintf(out, `
A different promise: %s.
%s of Starling survive %d that stop or lie; %d members of etcd survive %d that stop, and none that lies.

%s on one machine, begun anew each time, the stores in turn; medians of rounds of %d s for each operation, %d at a time
keys         %s keys of 14 bytes, values of %d bytes; chosen at random
put          until the client knows that it is in a block, which comes timeout_commit (%.0f ms) after the one before
             (client.Put); in the log of a majority
transaction  if the key is there, then put, else get
get, range   what one node has (etcd: serializable); a range has %d keys
ordered      linearizable; of Starling a transaction with a read, which takes a block (client.Read)
proved       against the newest header that there is: the state of one block before
newest       of the newest state: the read waits for the next block, whose header proves it
watch        from the sending of a put until a watcher of the key has its event
`, r.Promise, harness.Count(r.Validators, "validator"), tolerated(r.Validators), r.Members, (r.Members-1)/2,
		harness.Count(r.Rounds, "round"), r.Seconds, r.Workers, harness.Group(r.Keys), r.ValueBytes, r.TimeoutCommitMS, r.RangeKeys)
}

func (f *Figures) cells() []string {
	if f == nil {
		return []string{"", "", ""}
	}
	return []string{milliseconds(f.P50MS), milliseconds(f.P99MS), harness.Group(int(f.Rate))}
}

// milliseconds writes three digits.
func milliseconds(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
