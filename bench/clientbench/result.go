package clientbench

import (
	"fmt"
	"io"
	"slices"

	"github.com/starling-kv/starling/bench/harness"
)

// Result is the outcome of a run: medians over the rounds.
type Result struct {
	Operations []OperationResult `json:"operations"`
	Promise    string            `json:"promise"`
	// EtcdRetries are the errors after which etcd was measured again.
	EtcdRetries []string `json:"etcd_retries,omitempty"`

	Rounds          int             `json:"rounds"`
	Seconds         int             `json:"seconds"` // per operation and round
	Keys            int             `json:"keys"`
	ValueBytes      int             `json:"value_bytes"`
	RangeKeys       int             `json:"range_keys"`
	Workers         int             `json:"workers"`
	Validators      int             `json:"validators"`
	Members         int             `json:"etcd_members"`
	Network         string          `json:"network"`
	TimeoutCommitMS float64         `json:"timeout_commit_ms"`
	Machine         harness.Machine `json:"machine"`
}

// OperationResult is the result of one operation. A store without this operation has nil.
type OperationResult struct {
	Name     string   `json:"name"`
	Starling *Figures `json:"starling,omitempty"`
	Etcd     *Figures `json:"etcd,omitempty"`
}

// promise says why the two columns cannot be compared as a race.
const promise = "etcd's members trust each other (crash faults), Starling's validators trust nobody (Byzantine faults)"

func newResult(o Options, rounds map[string]map[string][]Figures) *Result {
	r := &Result{
		Promise: promise, Rounds: o.Rounds, Seconds: o.Seconds, Keys: o.Keys, ValueBytes: o.ValueBytes, RangeKeys: o.RangeKeys, Workers: o.Workers,
		Validators: o.Validators, Members: members, Network: o.Network, TimeoutCommitMS: float64(o.pause().Microseconds()) / 1e3, Machine: harness.ThisMachine(),
	}
	for _, op := range operations {
		if !slices.Contains(o.Operations, op.name) {
			continue
		}
		r.Operations = append(r.Operations, OperationResult{op.name, medians(rounds[nameStarling][op.name]), medians(rounds[nameEtcd][op.name])})
	}
	return r
}

// medians returns the median of each figure over the rounds, or nil without rounds.
func medians(rounds []Figures) *Figures {
	if len(rounds) == 0 {
		return nil
	}
	f := &Figures{
		P50MS: harness.MedianOf(rounds, func(f Figures) float64 { return f.P50MS }), P99MS: harness.MedianOf(rounds, func(f Figures) float64 { return f.P99MS }),
		Rate: harness.MedianOf(rounds, func(f Figures) float64 { return f.Rate }), CPUMicros: harness.MedianOf(rounds, func(f Figures) float64 { return f.CPUMicros }),
	}
	for _, round := range rounds {
		f.Number += round.Number
	}
	if len(rounds) > 1 {
		i := harness.MedianInterval(harness.Each(rounds, func(f Figures) float64 { return f.P50MS }))
		f.P50Interval = &i
	}
	return f
}

func printRetries(out io.Writer, retries []string) {
	for _, why := range retries {
		fmt.Fprintf(out, "\netcd was measured again after an error: %s\n", why)
	}
}

// Print writes the table, and explains it.
func (r *Result) Print(out io.Writer) {
	cells := [][]string{{"", nameStarling + " p50, ms", "p99, ms", "a second", nameEtcd + " p50, ms", "p99, ms", "a second"}}
	for _, op := range r.Operations {
		cells = append(cells, append(append([]string{op.Name}, op.Starling.cells()...), op.Etcd.cells()...))
	}
	harness.PrintAligned(out, cells)
	printRetries(out, r.EtcdRetries)
	fmt.Fprintf(out, `
Different guarantees: %s.
%s of Starling survive %d stopped or Byzantine; %d members of etcd survive %d stopped, and no Byzantine one.

%s on one machine, new stores each time, in turn; medians of rounds of %d s for each operation, %d at a time
keys         %s keys of 14 bytes, values of %d bytes; chosen at random
put          Starling: until the client knows that it is in a block, one every timeout_commit (%.0f ms, settings for a %s) or more (client.Put);
             etcd: until it is in the log of a majority
transaction  if the key is there, then put, else get
get, range   from one node, unverified (etcd: serializable); a range has %d keys
ordered      linearizable; with Starling a transaction with a read, which takes a block (client.Read)
proved       against the newest header: the state of one block before
newest       of the newest state: the read waits for the next block, whose header proves it, unless the last block is empty
watch        from the sending of a put until a watcher of the key has its event
`, r.Promise, harness.Count(r.Validators, "validator"), tolerated(r.Validators), r.Members, (r.Members-1)/2,
		harness.Count(r.Rounds, "round"), r.Seconds, r.Workers, harness.Group(r.Keys), r.ValueBytes, r.TimeoutCommitMS, r.Network, r.RangeKeys)
}

func (f *Figures) cells() []string {
	if f == nil {
		return []string{"", "", ""}
	}
	return []string{milliseconds(f.P50MS), milliseconds(f.P99MS), harness.Group(int(f.Rate))}
}

// p50 formats the median, with its interval if there are several rounds.
func (f *Figures) p50() string {
	if f.P50Interval == nil {
		return milliseconds(f.P50MS)
	}
	return fmt.Sprintf("%s [%s, %s]", milliseconds(f.P50MS), milliseconds(f.P50Interval.Low), milliseconds(f.P50Interval.High))
}

// milliseconds formats ms with three digits.
func milliseconds(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}
