package app

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// The model's conditions, ranges and branches: see TestAgainstModel.

// perform returns the result of an operation. It does not set found for operations on one key.
func (m *model) perform(who string, operation *tx.Operation) (tx.Code, tx.OperationResult) {
	switch op := operation.Op.(type) {
	case *tx.Operation_Compare:
		if !m.holds(op.Compare) {
			return tx.CodeCompareFailed, tx.OperationResult{}
		}
		return 0, tx.OperationResult{}
	case *tx.Operation_ReadRange:
		return m.readRange(op.ReadRange)
	case *tx.Operation_DeleteRange:
		return m.deleteRange(who, op.DeleteRange)
	case *tx.Operation_Txn:
		return m.txn(who, op.Txn)
	}
	code, value := m.operation(who, operation)
	return code, tx.OperationResult{Value: []byte(value)}
}

func (m *model) holds(c *tx.Compare) bool {
	value, there := m.state[string(c.Key)]
	switch {
	case c.Present:
		return there
	case len(c.Value) == 0:
		return !there
	}
	return there && value == string(c.Value)
}

// inRange returns all keys in [start, end), in order.
func (m *model) inRange(start, end []byte) (keys []string) {
	for k := range m.state {
		if k >= string(start) && (len(end) == 0 || k < string(end)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *model) readRange(op *tx.ReadRange) (tx.Code, tx.OperationResult) {
	var result tx.OperationResult
	for _, k := range m.inRange(op.Start, op.End) { // no range of a test has 1 MiB
		if result.Found = true; len(result.Entries) == int(op.Limit) {
			result.More = true
			break
		}
		result.Entries = append(result.Entries, tx.KeyValue{Key: []byte(k), Value: []byte(m.state[k])})
		m.reads += len(k) + len(m.state[k])
	}
	if m.reads > ReadBudgetBytes {
		return tx.CodeReadBudget, tx.OperationResult{}
	}
	return 0, result
}

// mayDelete searches for a grant whose prefix all keys of the range have: the keys after the prefix
// begin at end or later.
func (m *model) mayDelete(who string, op *tx.DeleteRange) bool {
	for n := 0; n <= len(op.Start); n++ {
		prefix := string(op.Start[:n])
		after := keyspace.PrefixEnd([]byte(prefix))
		if after != nil && (len(op.End) == 0 || string(op.End) > string(after)) {
			continue
		}
		if m.has([]byte("\x00g"+who+prefix)) || m.has([]byte("\x00g"+string(make([]byte, 32))+prefix)) {
			return true
		}
	}
	return false
}

func (m *model) deleteRange(who string, op *tx.DeleteRange) (tx.Code, tx.OperationResult) {
	if !m.mayDelete(who, op) {
		return tx.CodeUnauthorized, tx.OperationResult{}
	}
	keys := m.inRange(op.Start, op.End)
	more := len(keys) > int(op.Limit)
	if more && !op.Part {
		return tx.CodeRangeLimit, tx.OperationResult{}
	}
	keys = keys[:min(len(keys), int(op.Limit))]
	for _, k := range keys {
		delete(m.state, k)
		m.reads += len(k)
	}
	if m.reads > ReadBudgetBytes {
		return tx.CodeReadBudget, tx.OperationResult{}
	}
	return 0, tx.OperationResult{Found: len(keys) > 0, More: more, Deleted: uint32(len(keys))}
}

func (m *model) txn(who string, t *tx.Txn) (tx.Code, tx.OperationResult) {
	for _, operation := range slices.Concat(t.Success, t.Failure) {
		may := true
		switch op := operation.Op.(type) {
		case *tx.Operation_Put:
			may = m.mayWrite(who, string(op.Put.Key), "") == 0 // a deletion needs no quota
		case *tx.Operation_Delete:
			may = m.mayWrite(who, string(op.Delete.Key), "") == 0
		case *tx.Operation_Add:
			may = m.mayWrite(who, string(op.Add.Key), "") == 0
		case *tx.Operation_DeleteRange:
			may = m.mayDelete(who, op.DeleteRange)
		}
		if !may {
			return tx.CodeUnauthorized, tx.OperationResult{}
		}
	}
	result := tx.OperationResult{Succeeded: true}
	for i := range t.Compares {
		result.Succeeded = result.Succeeded && m.holds(&t.Compares[i])
	}
	branch := t.Success
	if !result.Succeeded {
		branch = t.Failure
	}
	for i := range branch {
		code, inner := m.perform(who, &branch[i])
		if code != 0 {
			return code, tx.OperationResult{}
		}
		result.Results = append(result.Results, inner)
	}
	return 0, result
}

// requireResult compares a result with the model's.
func requireResult(t testing.TB, want, got tx.OperationResult) {
	t.Helper()
	require.Equal(t, string(want.Value), string(got.Value))
	require.Equal(t, want.Entries, got.Entries)
	require.Equal(t, want.More, got.More)
	require.Equal(t, want.Deleted, got.Deleted)
	require.Equal(t, want.Succeeded, got.Succeeded)
	require.Len(t, got.Results, len(want.Results))
	for i := range want.Results {
		requireResult(t, want.Results[i], got.Results[i])
	}
}

// newOperation returns a condition, a range or a Txn.
func (g *generator) newOperation(state map[string]string) tx.Operation {
	switch g.IntN(6) {
	case 0:
		return tx.Operation{Op: &tx.Operation_Compare{Compare: g.compare(state)}}
	case 1, 2:
		return g.inBranch()
	}
	var t tx.Txn
	for range g.IntN(3) {
		t.Compares = append(t.Compares, *g.compare(state))
	}
	for range g.IntN(3) {
		t.Success = append(t.Success, g.inBranch())
	}
	for range g.IntN(3) {
		t.Failure = append(t.Failure, g.inBranch())
	}
	if len(t.Compares)+len(t.Success)+len(t.Failure) == 0 {
		t.Success = append(t.Success, g.inBranch())
	}
	return tx.Operation{Op: &tx.Operation_Txn{Txn: &t}}
}

func (g *generator) compare(state map[string]string) *tx.Compare {
	k := g.key()
	if g.IntN(4) == 0 {
		return &tx.Compare{Key: []byte(k), Present: true}
	}
	return &tx.Compare{Key: []byte(k), Value: []byte(g.pick("", state[k], state[k], "x"))}
}

// inBranch returns an operation that a branch may contain.
func (g *generator) inBranch() tx.Operation {
	if g.numbers && g.IntN(8) == 0 {
		return g.number()
	}
	switch g.IntN(8) {
	case 0:
		return del(g.key())
	case 1:
		return read(g.key())
	case 2, 3:
		start, end := g.bounds()
		return tx.NewReadRange(start, end, uint32(1+g.IntN(6)))
	case 4:
		start, end := g.bounds()
		return tx.NewDeleteRange(start, end, uint32(1+g.IntN(6)))
	case 5:
		start, end := g.bounds()
		return tx.NewDeletePart(start, end, uint32(1+g.IntN(6)))
	}
	return put(g.key(), g.value())
}

// bounds returns the bounds of a range that is not empty, often those of a prefix.
func (g *generator) bounds() (start, end []byte) {
	start, end = []byte(g.key()), []byte(g.pick("", g.key()))
	if g.IntN(2) == 0 {
		end = keyspace.PrefixEnd(start)
	}
	if len(end) > 0 && string(end) <= string(start) {
		end = append(start[:len(start):len(start)], 0xff)
	}
	return start, end
}

// Ranges over a base and a block's changes have the same results as in one list of all keys.
func TestRangesOfOverlays(t *testing.T) {
	for seed := range uint64(20) {
		g := &generator{Rand: newRand(seed), t: t}
		m := &model{state: map[string]string{}}
		for range 15 {
			m.state[g.key()] = g.value()
		}
		o := newOverlay(newBase(t, m.state))
		for range 400 {
			switch g.IntN(6) {
			case 0, 1:
				k := g.key()
				must(o.set([]byte(k), nil))
				delete(m.state, k)
			case 2:
				k, v := g.key(), g.value()
				must(o.set([]byte(k), []byte(v)))
				m.state[k] = v
			case 3: // set and undone
				mark := o.mark()
				must(o.set([]byte(g.key()), []byte(g.value())))
				must(o.set([]byte(g.key()), nil))
				start, end := g.bounds()
				require.NoError(t, o.ascendRange(start, end, 9, func([]byte, content) bool { return true }))
				o.undo(mark)
			default:
				start, end := g.bounds()
				want := m.inRange(start, end)
				want = want[:min(len(want), g.IntN(9))]
				var got []string
				require.NoError(t, o.ascendRange(start, end, 9, func(k []byte, c content) bool {
					if len(got) == len(want) {
						return false
					}
					require.Equal(t, m.state[string(k)], string(c.value))
					got = append(got, string(k))
					return true
				}))
				require.Equal(t, strings.Join(want, " "), strings.Join(got, " "), "seed %d", seed)
			}
		}
	}
}

// A block deletes many keys, and each transaction after it reads a range that contained them, or
// puts one of them back: none passes all of them again.
func TestManyRangesOverDeletedKeys(t *testing.T) {
	const keys = 20_000
	state := map[string]string{"z": "x"}
	name := func(i int) []byte { return []byte{'k', byte(i >> 16), byte(i >> 8), byte(i)} }
	for i := range keys {
		state[string(name(i))] = "x"
	}
	o := newOverlay(newBase(t, state))
	for i := range keys {
		must(o.set(name(i), nil))
	}
	for i := range keys {
		first, back := []byte(nil), name(keys/2+i%(keys/2))
		must(o.set(back, []byte("y")))
		require.NoError(t, o.ascendRange(name(i/2), nil, 1, func(k []byte, _ content) bool {
			first = k
			return false
		}))
		require.Equal(t, back, first)
		must(o.set(back, nil))
	}
	passed := 0
	for _, kv := range must(collect(o.base.Ascend(name(0), nil))) {
		if e, ok := o.entry(kv.Key); ok && e.passed {
			passed++
		}
	}
	require.Equal(t, keys, passed)
}

// The common prefix of a range, compared with the ends of the prefixes of its start.
func TestCommonOfRange(t *testing.T) {
	rng := newRand(seeds.New(t))
	word := func(least int) []byte {
		b := make([]byte, least+rng.IntN(5))
		for i := range b {
			b[i] = []byte{0, 1, 'a', 'b', 0xfe, 0xff, 0xff}[rng.IntN(7)]
		}
		return b
	}
	for range 100_000 {
		start, end := word(1), word(0)
		if rng.IntN(3) == 0 {
			end = keyspace.PrefixEnd(start[:rng.IntN(len(start)+1)])
		}
		if len(end) > 0 && string(start) >= string(end) {
			continue
		}
		n := len(start)
		for ; n > 0; n-- {
			if after := keyspace.PrefixEnd(start[:n]); after == nil || len(end) > 0 && string(end) <= string(after) {
				break
			}
		}
		require.Equal(t, start[:n], commonOfRange(start, end), "[%q, %q)", start, end)
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 5)) }

func collect(all func(func(avlstar.KV, error) bool)) (list []avlstar.KV, err error) {
	for kv, err := range all {
		if err != nil {
			return nil, err
		}
		list = append(list, kv)
	}
	return list, nil
}
