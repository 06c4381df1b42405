package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
)

// Kind is the kind of an operation.
type Kind string

// Kinds of Starling's operations that the clients use.
const (
	Put           Kind = "put"
	CompareAndPut Kind = "compare-and-put"
	Delete        Kind = "delete"
	Read          Kind = "read"
	Compare       Kind = "compare"      // CompareAndPut without the put
	ReadRange     Kind = "read-range"   // reads the first keys in [Key, End)
	DeleteRange   Kind = "delete-range" // deletes the first keys in [Key, End)
	Txn           Kind = "txn"          // If decides between Then and Else
	Add           Kind = "add"          // adds Delta to the number at a key; app version 2
)

// Operation is one operation of a transaction.
type Operation struct {
	Kind     Kind   `json:"kind"`
	Key      string `json:"key"`
	Expected string `json:"expected,omitempty"` // by compare-and-put; empty: the key is absent
	Value    string `json:"value,omitempty"`    // to write

	End   string `json:"end,omitempty"`   // of a range operation
	Limit int    `json:"limit,omitempty"` // of a range operation: maximum number of keys

	// Fields of an add. The new number must be from Least to Most, which are the limits of an int64
	// if the add has no bounds.
	Delta int64 `json:"delta,omitempty"`
	Least int64 `json:"least,omitempty"`
	Most  int64 `json:"most,omitempty"`

	// Fields of a txn.
	If   []Condition `json:"if,omitempty"`
	Then []Operation `json:"then,omitempty"`
	Else []Operation `json:"else,omitempty"`
}

// Condition is a condition of a txn. If Value is empty, the key must be absent or, if Present is
// set, have any value.
type Condition struct {
	Key     string `json:"key"`
	Value   string `json:"value,omitempty"`
	Present bool   `json:"present,omitempty"`
}

// Result is the result of an operation.
type Result struct {
	// The key, or a key of the range, existed before this operation.
	Found   bool     `json:"found,omitempty"`
	Value   string   `json:"value,omitempty"`   // read value, or the new number after an add
	Entries []Entry  `json:"entries,omitempty"` // read from a range
	Deleted int      `json:"deleted,omitempty"` // number of keys deleted from a range
	More    bool     `json:"more,omitempty"`    // of a range operation: further keys exist
	Holds   bool     `json:"holds,omitempty"`   // of a txn: all its conditions hold
	Results []Result `json:"results,omitempty"` // of a txn: one for each executed operation
}

// Entry is a key with its value.
type Entry struct{ Key, Value string }

// Outcome is a client's knowledge of the fate of a transaction.
type Outcome string

const (
	// OK: all operations took effect, and these are their results.
	OK Outcome = "ok"
	// Failed: a compare-and-put found another value, or an add would leave its bounds, so no
	// operation took effect.
	Failed Outcome = "failed"
	// Refused: it never takes effect, and the reason does not depend on the state.
	Refused Outcome = "refused"
	// Maybe: it may take effect at any time after the call, or never.
	Maybe Outcome = "maybe"
)

// Transaction is a client's transaction, with the answer that the client got.
type Transaction struct {
	// a process executes one transaction after another, and ends with a Maybe
	Process    int         `json:"process"`
	Node       string      `json:"node"`
	Operations []Operation `json:"operations"`
	// since the start of the history, by the monotonic clock
	Call time.Duration `json:"call"`
	// of a Maybe: the time when the client stopped waiting, which proves nothing
	Return  time.Duration     `json:"return"`
	Outcome Outcome           `json:"outcome"`
	Results []Result          `json:"results,omitempty"` // only for OK: one for each operation
	Hash    cmtbytes.HexBytes `json:"hash,omitempty"`    // if the client knows it
	Height  int64             `json:"height,omitempty"`  // of its block; OK and Failed
	Why     string            `json:"why,omitempty"`     // only for Refused and Maybe
}

// History has the observations of clients and readers for the keys under a prefix. Only these
// clients write under the prefix, and all its keys were absent at first.
type History struct {
	ChainID string    `json:"chain_id"`
	Prefix  string    `json:"prefix"`
	Seed    uint64    `json:"seed"`
	Start   time.Time `json:"start"` // Call and Return are relative to it
	// all transactions of the history are in later blocks than this one
	From         int64         `json:"from"`
	Transactions []Transaction `json:"transactions"`
	Reads        []ProvedRead  `json:"reads,omitempty"`
	// Disturbed are the times in which the test disturbed a node, so that it may answer with old
	// states.
	Disturbed []Disturbance `json:"disturbed,omitempty"`
	Blocks    []Block       `json:"blocks,omitempty"` // if they were saved with the history
}

// Acknowledged returns the transactions that are known to be in a block: no node may lose one.
func (h *History) Acknowledged() []Transaction {
	var list []Transaction
	for _, t := range h.Transactions {
		if t.Outcome == OK || t.Outcome == Failed {
			list = append(list, t)
		}
	}
	return list
}

// Count returns the number of transactions for each outcome.
func (h *History) Count() map[Outcome]int {
	count := map[Outcome]int{}
	for _, t := range h.Transactions {
		count[t.Outcome]++
	}
	return count
}

// Summary is one line for a log.
func (h *History) Summary() string {
	count, end := h.Count(), time.Duration(0)
	for _, t := range h.Transactions {
		end = max(end, t.Return)
	}
	return fmt.Sprintf("seed %d: %d transactions in %v: %d ok, %d failed, %d refused, %d maybe; %d proved reads", h.Seed,
		len(h.Transactions), end.Round(time.Millisecond), count[OK], count[Failed], count[Refused], count[Maybe], len(h.Reads))
}

// WriteFile saves the history for later analysis.
func (h *History) WriteFile(path string) error {
	text, err := json.MarshalIndent(h, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// ReadFile reads what WriteFile wrote.
func ReadFile(path string) (*History, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	h := new(History)
	if err := json.Unmarshal(text, h); err != nil {
		return nil, fmt.Errorf("%s is not a history: %w", path, err)
	}
	return h, nil
}

func (o Operation) String() string {
	switch o.Kind {
	case Put:
		return fmt.Sprintf("put(%s, %s)", o.Key, short(o.Value))
	case CompareAndPut:
		return fmt.Sprintf("compare-and-put(%s, %s, %s)", o.Key, short(o.Expected), short(o.Value))
	case Compare:
		return fmt.Sprintf("compare(%s, %s)", o.Key, short(o.Expected))
	case ReadRange, DeleteRange:
		return fmt.Sprintf("%s(%s, %s, %d)", o.Kind, o.Key, o.End, o.Limit)
	case Add:
		return fmt.Sprintf("add(%s, %d, %d to %d)", o.Key, o.Delta, o.Least, o.Most)
	case Txn:
		return fmt.Sprintf("if %v then %v else %v", o.If, o.Then, o.Else)
	default:
		return fmt.Sprintf("%s(%s)", o.Kind, o.Key)
	}
}

func (c Condition) String() string {
	if c.Present {
		return c.Key + " is there"
	}
	return c.Key + " = " + short(c.Value)
}

func (t *Transaction) String() string {
	results := t.Results
	if t.Outcome != OK {
		results = nil
	}
	what := resultsOf(t.Operations, results)
	where := ""
	if t.Height > 0 {
		where = fmt.Sprintf(", block %d", t.Height)
	}
	until := t.Return.String()
	if t.Outcome == Maybe {
		until = "open"
	}
	return fmt.Sprintf("process %d at %s [%v, %s]: %s: %s%s", t.Process, t.Node, t.Call, until, what, t.Outcome, where)
}

// resultsOf lists operations with as many results as there are.
func resultsOf(operations []Operation, results []Result) string {
	parts := make([]string, len(operations))
	for i, o := range operations {
		if parts[i] = o.String(); i < len(results) {
			parts[i] += " = " + results[i].of(o)
		}
	}
	return strings.Join(parts, "; ")
}

func (r Result) of(o Operation) string {
	switch {
	case o.Kind == Txn:
		return fmt.Sprintf("%t: %s", r.Holds, resultsOf(o.branch(r.Holds), r.Results))
	case o.Kind == ReadRange:
		var parts []string
		for _, e := range r.Entries {
			parts = append(parts, e.Key+" = "+short(e.Value))
		}
		return fmt.Sprintf("%v, more: %t", parts, r.More)
	case o.Kind == DeleteRange:
		return fmt.Sprintf("%d, more: %t", r.Deleted, r.More)
	case o.Kind == Read && r.Found, o.Kind == Add:
		return short(r.Value)
	case r.Found:
		return "it was there"
	default:
		return "absent"
	}
}

// short returns the part of a value that identifies it.
func short(value string) string {
	if value == "" {
		return "absent"
	}
	name, _, _ := strings.Cut(value, valueFill)
	if len(name) > 40 {
		return name[:37] + "..."
	}
	return name
}

// valueFill is the first byte of the padding of a value.
const valueFill = "~"

// firstErrors joins the first errors, and adds the number of the others.
func firstErrors(errs []error) error {
	const most = 5
	if len(errs) > most {
		more := len(errs) - most
		errs = append(slices.Clone(errs[:most]), fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}
