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

	"github.com/starling-kv/starling/tx"
)

// ErrUndecided says that the search for an order took too long: the history is neither proved nor
// disproved.
var ErrUndecided = errors.New("not decided whether the history is linearizable")

// CheckLinearizable checks that some order of the transactions explains all results, in which no
// transaction stands after one that was called when the former had already returned (Herlihy and
// Wing, "Linearizability", 1990; Porcupine's search is that of Lowe, "Testing for linearizability",
// 2017). Keys are independent of each other, so each key is checked alone; keys that one
// transaction writes together are one object.
//
// If there is no such order, the error names the key with the transactions that show it, and a
// picture of the whole search is written to the folder, unless folder is empty. After the time
// limit the error is ErrUndecided.
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

// objects groups the relevant transactions by their object: one key, or the group of keys.
func (h *History) objects() map[string][]*Transaction {
	objects := map[string][]*Transaction{}
	for i := range h.Transactions {
		t := &h.Transactions[i]
		if t.Outcome == Refused || len(t.Operations) == 0 || t.Outcome == Maybe && !t.writes() {
			continue // it had no effect, and no client got a result
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

// model is the specification in Porcupine's form. Input and output are the transaction.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		t, s := input.(*Transaction), before.(state)
		next, results, code := s.execute(t.Operations)
		switch t.Outcome {
		case OK:
			return code == tx.CodeOK && slices.EqualFunc(results, t.Results, Result.equal), next
		case Failed:
			return code != tx.CodeOK, s
		default: // a Maybe that fails changes nothing
			return true, next
		}
	},
	Equal: func(a, b any) bool { return maps.Equal(a.(state), b.(state)) },
	Hash: func(s any) uint64 {
		sum := uint64(0)
		for key, value := range s.(state) { // a sum does not depend on the order
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
		return fmt.Errorf("picture of the search: %w", err)
	}
	return fmt.Errorf("the search is drawn in %s", path)
}

const (
	explainLimit = 5 * time.Second // for reducing the history; without it the explanation is longer
	explainMost  = 20              // transactions that are printed
)

// explain reduces a history without an order to a part that still has none. It removes the
// transactions that were called after the first instant at which no order exists, then each
// transaction without an effect that is not needed.
func (h *History) explain(name string, list []*Transaction) error {
	deadline := time.Now().Add(explainLimit)
	illegal := func(list []*Transaction) bool {
		left := time.Until(deadline)
		return left > 0 && porcupine.CheckOperationsTimeout(model, operations(list), left) == porcupine.Illegal
	}
	whole := len(list)
	list = until(list, firstIllegal(list, illegal))
	for i := len(list) - 1; i >= 0; i-- {
		if t := list[i]; t.Outcome == Failed || t.Outcome == OK && !t.writes() {
			if fewer := slices.Delete(slices.Clone(list), i, i+1); illegal(fewer) {
				list = fewer
			}
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "no order of the %d transactions on %s explains their results (seed %d). These %d suffice to show that", whole, name, h.Seed, len(list))
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

// firstIllegal returns the first return after which the history has no order. Each prefix of a
// history with an order has one too, so bisection finds the instant.
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
	low, high := 0, len(returns)-1 // at returns[high] the history has no order
	for low < high {
		if middle := (low + high) / 2; illegal(until(list, returns[middle])) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return returns[high]
}

// until returns the history as it was known at an instant: the transactions that had been called,
// with unknown outcomes for those that had not returned yet.
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
