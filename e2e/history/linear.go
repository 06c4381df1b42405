package history

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// ErrUndecided says that the search for an order took too long: nothing is proved, neither way.
var ErrUndecided = errors.New("not decided whether the history is linearizable")

// CheckLinearizable checks that some order of the transactions, in which none stands behind one
// that was called after it had returned, explains all results (Herlihy and Wing, "Linearizability",
// 1990; Porcupine searches as Lowe, "Testing for linearizability", 2017). Keys are independent of
// each other, so each is checked alone; those that are written several at once are one object.
//
// Where there is no such order, the error names the key with the fewest transactions that show it,
// and a picture of the whole search goes to a file of the folder, unless that is empty. After the
// time limit the error is ErrUndecided.
func (h *History) CheckLinearizable(limit time.Duration, folder string) error {
	deadline := time.Now().Add(limit)
	objects := h.objects()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		list := objects[name]
		result, info := porcupine.CheckOperationsVerbose(model, operations(list), max(time.Until(deadline), time.Nanosecond))
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			errs = append(errs, fmt.Errorf("%w: %d transactions on %s, within %v", ErrUndecided, len(list), name, limit))
		default:
			errs = append(errs, h.explain(name, list))
			if folder != "" {
				errs = append(errs, draw(info, filepath.Join(folder, strings.NewReplacer("/", "-").Replace(name)+".html")))
			}
		}
	}
	return errors.Join(errs...)
}

// objects groups the transactions that matter by what they are about: one key, or the group of
// keys.
func (h *History) objects() map[string][]*Transaction {
	objects := map[string][]*Transaction{}
	for i := range h.Transactions {
		t := &h.Transactions[i]
		if t.Outcome == Refused || len(t.Operations) == 0 || t.Outcome == Maybe && !t.writes() {
			continue // it had no effect, and nobody was told anything
		}
		name := t.Operations[0].Key
		if kind := t.Operations[0].Kind; len(t.Operations) > 1 || kind == Txn || kind == ReadRange || kind == DeleteRange {
			name = h.Prefix + strings.TrimSuffix(groupPart, "/")
		}
		objects[name] = append(objects[name], t)
	}
	return objects
}

func (t *Transaction) writes() bool {
	return slices.ContainsFunc(t.Operations, Operation.writes)
}

func operations(list []*Transaction) []porcupine.Operation {
	all := make([]porcupine.Operation, 0, len(list))
	for _, t := range list {
		end := int64(t.Return)
		if t.Outcome == Maybe {
			end = math.MaxInt64
		}
		all = append(all, porcupine.Operation{ClientId: t.Process, Input: t, Output: t, Call: int64(t.Call), Return: end})
	}
	return all
}

// model is the specification as Porcupine wants it. Input and output are the transaction.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		t, s := input.(*Transaction), before.(state)
		next, results, err := s.execute(t.Operations)
		switch t.Outcome {
		case OK:
			return err == nil && slices.EqualFunc(results, t.Results, Result.equal), next
		case CompareFailed:
			return err != nil, s
		default: // a Maybe that fails changes nothing
			return true, next
		}
	},
	Equal: func(a, b any) bool { return maps.Equal(a.(state), b.(state)) },
	Hash: func(s any) uint64 {
		sum := uint64(0)
		for key, value := range s.(state) { // a sum, so that the order does not count
			h := fnv.New64a()
			_, _ = h.Write([]byte(key + "=" + value))
			sum += h.Sum64()
		}
		return sum
	},
	DescribeOperation: func(input, _ any) string { return input.(*Transaction).String() },
	DescribeState: func(s any) string {
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(s.(state))) {
			parts = append(parts, key+" = "+short(s.(state)[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	},
}

func draw(info porcupine.LinearizationInfo, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		return fmt.Errorf("the picture of the search: %w", err)
	}
	return fmt.Errorf("the search is drawn in %s", path)
}

const (
	explainLimit = 5 * time.Second // for all that follows; a longer explanation is one, too
	explainMost  = 20              // transactions that are printed
)

// explain cuts a history without an order down to what still has none: what was called after the
// first instant at which it is too late, then whatever has no effect and could as well be missing.
func (h *History) explain(name string, list []*Transaction) error {
	deadline := time.Now().Add(explainLimit)
	illegal := func(list []*Transaction) bool {
		left := time.Until(deadline)
		return left > 0 && porcupine.CheckOperationsTimeout(model, operations(list), left) == porcupine.Illegal
	}
	whole := len(list)
	list = until(list, firstIllegal(list, illegal))
	for i := len(list) - 1; i >= 0; i-- {
		if t := list[i]; t.Outcome == CompareFailed || t.Outcome == OK && !t.writes() {
			if fewer := slices.Delete(slices.Clone(list), i, i+1); illegal(fewer) {
				list = fewer
			}
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "no order of the %d transactions on %s explains their results (seed %d). It takes these %d to see that", whole, name, h.Seed, len(list))
	if len(list) > explainMost {
		fmt.Fprintf(&text, ", the last %d of which are", explainMost)
		list = list[len(list)-explainMost:]
	}
	text.WriteString(":")
	for _, t := range list {
		fmt.Fprintf(&text, "\n  %v", t)
	}
	return errors.New(text.String())
}

// firstIllegal returns the first return after which the history has no order: what is cut off the
// end of a history that has one leaves one that has, so the instant can be found by halves.
func firstIllegal(list []*Transaction, illegal func([]*Transaction) bool) time.Duration {
	var returns []time.Duration
	for _, t := range list {
		if t.Outcome != Maybe {
			returns = append(returns, t.Return)
		}
	}
	slices.Sort(returns)
	if len(returns) == 0 {
		return math.MaxInt64
	}
	low, high := 0, len(returns)-1 // high: too late by then
	for low < high {
		if middle := (low + high) / 2; illegal(until(list, returns[middle])) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return returns[high]
}

// until returns the history as it was known at an instant: what had been called, and of what had
// not returned yet nothing is known.
func until(list []*Transaction, instant time.Duration) []*Transaction {
	var known []*Transaction
	for _, t := range list {
		switch {
		case t.Call > instant:
		case t.Outcome != Maybe && t.Return > instant:
			if t.writes() {
				open := *t
				open.Outcome, open.Results = Maybe, nil
				known = append(known, &open)
			}
		default:
			known = append(known, t)
		}
	}
	return known
}
