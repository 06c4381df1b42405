package history

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// Indices of the transactions of handmade.
const (
	putA = iota
	readA1
	compareA
	compareFails
	readA2
	deleteA
	readNoA
	maybeA // executed
	readA4
	maybeB // not executed
	readNoB
	putGroup
	readGroup
	refusedB
	putB
	readB
	txnHolds
	txnFails
	addC
	addBoundedC
	addFails
	readC
)

// handmade returns a short, correct history: one transaction after another, the first in block 1,
// the next in block 2, and so on.
func handmade(t *testing.T) (*History, []Block) {
	t.Helper()
	h := &History{ChainID: fakeChainID, Prefix: "load/", Seed: 1}
	var blocks []Block
	synctest.Test(t, func(t *testing.T) {
		chain := newFakeChain(none, 1)
		h.Start = chain.start
		for i, step := range []struct {
			outcome    Outcome
			executed   bool
			operations []Operation
		}{
			putA:         {OK, true, []Operation{{Kind: Put, Key: "load/a", Value: "v1"}}},
			readA1:       {OK, true, []Operation{{Kind: Read, Key: "load/a"}}},
			compareA:     {OK, true, []Operation{{Kind: CompareAndPut, Key: "load/a", Expected: "v1", Value: "v2"}}},
			compareFails: {Failed, true, []Operation{{Kind: CompareAndPut, Key: "load/a", Expected: "v1", Value: "v3"}}},
			readA2:       {OK, true, []Operation{{Kind: Read, Key: "load/a"}}},
			deleteA:      {OK, true, []Operation{{Kind: Delete, Key: "load/a"}}},
			readNoA:      {OK, true, []Operation{{Kind: Read, Key: "load/a"}}},
			maybeA:       {Maybe, true, []Operation{{Kind: Put, Key: "load/a", Value: "v4"}}},
			readA4:       {OK, true, []Operation{{Kind: Read, Key: "load/a"}}},
			maybeB:       {Maybe, false, []Operation{{Kind: Put, Key: "load/b", Value: "w1"}}},
			readNoB:      {OK, true, []Operation{{Kind: Read, Key: "load/b"}}},
			putGroup:     {OK, true, []Operation{{Kind: Put, Key: "load/group/0", Value: "x1"}, {Kind: Put, Key: "load/group/1", Value: "y1"}}},
			readGroup:    {OK, true, []Operation{{Kind: Read, Key: "load/group/0"}, {Kind: Read, Key: "load/group/1"}}},
			refusedB:     {Refused, false, []Operation{{Kind: Put, Key: "load/b", Value: "w2"}}},
			putB:         {OK, true, []Operation{{Kind: Put, Key: "load/b", Value: "w3"}}},
			readB:        {OK, true, []Operation{{Kind: Read, Key: "load/b"}}},
			txnHolds: {OK, true, []Operation{{Kind: Txn, If: []Condition{{Key: "load/group/0", Value: "x1"}, {Key: "load/group/2"}},
				Then: []Operation{{Kind: Put, Key: "load/group/2", Value: "z1"}, {Kind: DeleteRange, Key: "load/group/1", End: "load/group/2", Limit: 2}},
				Else: []Operation{{Kind: Put, Key: "load/group/0", Value: "x2"}}}}},
			txnFails: {OK, true, []Operation{{Kind: Txn, If: []Condition{{Key: "load/group/0", Value: "x2"}},
				Else: []Operation{{Kind: ReadRange, Key: "load/group/", End: "load/group/:", Limit: 5}}}}},
			addC:        {OK, true, []Operation{{Kind: Add, Key: "load/count/0", Delta: 5, Least: math.MinInt64, Most: math.MaxInt64}}},
			addBoundedC: {OK, true, []Operation{{Kind: Add, Key: "load/count/0", Delta: 5, Most: 10}}},
			addFails:    {Failed, true, []Operation{{Kind: Add, Key: "load/count/0", Delta: 1, Most: 10}}},
			readC:       {OK, true, []Operation{{Kind: Read, Key: "load/count/0"}}},
		} {
			height := int64(i + 1)
			raw := chain.sign(step.operations)
			at := time.Duration(10 * i)
			tr := Transaction{Process: i, Node: "one", Operations: step.operations, Call: at, Return: at + 5, Outcome: step.outcome, Hash: (&Executed{Raw: raw}).hash()}
			if chain.fill(height); step.executed {
				a := chain.append(height, step.operations, raw)
				if step.outcome == OK {
					tr.Results = a.results
				}
				if step.outcome != Maybe {
					tr.Height = height
				}
			}
			h.Transactions = append(h.Transactions, tr)
		}
		blocks = chain.blocks
		for i, read := range []ProvedRead{
			{Key: "load/a", Height: 1, Found: true, Value: "v1"},
			{Key: "load/a", Height: 5, Found: true, Value: "v2"},
			{Key: "load/a", Height: 7},
			{Key: "load/b", Height: 14},
			{Key: "load/group/1", Height: 15, Found: true, Value: "y1"},
		} {
			read.Node, read.Head, read.Time = "one", read.Height+1, blocks[read.Height-1].Time
			read.Call = read.Time.Sub(h.Start) + 1
			read.Return = read.Call + time.Duration(i)
			h.Reads = append(h.Reads, read)
		}
	})
	return h, blocks
}

// Each checker must find the faults in its responsibility, and no others.
func TestCheckersFind(t *testing.T) {
	const (
		linear = 1 << iota
		inBlocks
		inReads
		held // CheckAcknowledged
	)
	type mutation func(h *History, blocks []Block)
	inHistory := func(edit func(list []Transaction)) mutation {
		return func(h *History, _ []Block) { edit(h.Transactions) }
	}
	inRead := func(i int, edit func(r *ProvedRead)) mutation {
		return func(h *History, _ []Block) { edit(&h.Reads[i]) }
	}
	inBlock := func(edit func(blocks []Block)) mutation {
		return func(_ *History, blocks []Block) { edit(blocks) }
	}
	for name, m := range map[string]struct {
		mutate mutation
		found  int
	}{
		"nothing":                 {func(*History, []Block) {}, 0},
		"stale read":              {inHistory(func(l []Transaction) { l[readA2].Results = []Result{{Found: true, Value: "v1"}} }), linear | inBlocks},
		"read from the future":    {inHistory(func(l []Transaction) { l[readA1].Results = []Result{{Found: true, Value: "v2"}} }), linear | inBlocks},
		"read of a deleted value": {inHistory(func(l []Transaction) { l[readNoA].Results = []Result{{Found: true, Value: "v2"}} }), linear | inBlocks},
		"phantom value":           {inHistory(func(l []Transaction) { l[readNoB].Results = []Result{{Found: true, Value: "nobody"}} }), linear | inBlocks},
		"read of a refused value": {inHistory(func(l []Transaction) { l[readB].Results = []Result{{Found: true, Value: "w2"}} }), linear | inBlocks},
		"lost update: both compares succeed": {inHistory(func(l []Transaction) {
			l[compareFails].Outcome, l[compareFails].Results = OK, []Result{{Found: true, Value: ""}}
		}), linear | inBlocks | held},
		"compare that should have succeeded": {inHistory(func(l []Transaction) {
			l[compareA].Outcome, l[compareA].Results = Failed, nil
		}), linear | inBlocks | held},
		"delete that found nothing":     {inHistory(func(l []Transaction) { l[deleteA].Results = []Result{{}} }), linear | inBlocks},
		"results of two keys exchanged": {inHistory(func(l []Transaction) { slices.Reverse(l[readGroup].Results) }), linear | inBlocks},
		"half of a transaction":         {inHistory(func(l []Transaction) { l[readGroup].Results[1] = Result{} }), linear | inBlocks},
		"a result is missing":           {inHistory(func(l []Transaction) { l[readGroup].Results = l[readGroup].Results[:1] }), linear | inBlocks},
		"results of two reads exchanged": {inHistory(func(l []Transaction) {
			l[readA2].Results, l[readA4].Results = l[readA4].Results, l[readA2].Results
		}), linear | inBlocks},
		"the other branch": {inHistory(func(l []Transaction) {
			l[txnHolds].Results = []Result{{Results: []Result{{Found: true}}}}
		}), linear | inBlocks},
		"a branch's result is missing": {inHistory(func(l []Transaction) { l[txnHolds].Results[0].Results = l[txnHolds].Results[0].Results[:1] }), linear | inBlocks},
		"a range deleted less":         {inHistory(func(l []Transaction) { l[txnHolds].Results[0].Results[1].Deleted = 0 }), linear | inBlocks},
		"a key of a range is missing": {inHistory(func(l []Transaction) {
			l[txnFails].Results[0].Results[0].Entries = l[txnFails].Results[0].Results[0].Entries[1:]
		}), linear | inBlocks},
		"a range has a deleted key": {inHistory(func(l []Transaction) {
			r := &l[txnFails].Results[0].Results[0]
			r.Entries = slices.Insert(r.Entries, 1, Entry{"load/group/1", "y1"})
		}), linear | inBlocks},
		"conditions that held did not": {inHistory(func(l []Transaction) {
			l[txnFails].Results[0] = Result{Holds: true}
		}), linear | inBlocks},
		"an add is lost":       {inHistory(func(l []Transaction) { l[readC].Results[0].Value = "5" }), linear | inBlocks},
		"an add applied twice": {inHistory(func(l []Transaction) { l[readC].Results[0].Value = "15" }), linear | inBlocks},
		"an add returns less":  {inHistory(func(l []Transaction) { l[addBoundedC].Results[0].Value = "9" }), linear | inBlocks},
		"an add found the key": {inHistory(func(l []Transaction) { l[addC].Results[0].Found = true }), linear | inBlocks},
		"an add has no result": {inHistory(func(l []Transaction) { l[addC].Results[0].Value = "" }), linear | inBlocks},
		"a bound is ignored": {inHistory(func(l []Transaction) {
			l[addFails].Outcome, l[addFails].Results = OK, []Result{{Found: true, Value: "11"}}
		}), linear | inBlocks | held},
		"a bound was not reached": {inHistory(func(l []Transaction) {
			l[addBoundedC].Outcome, l[addBoundedC].Results = Failed, nil
		}), linear | inBlocks | held},
		"a bound is ignored in the block": {inBlock(func(b []Block) { b[addFails].Transactions[0].Code = 0 }), inBlocks | held},
		"failed for another reason":       {inBlock(func(b []Block) { b[addFails].Transactions[0].Code = uint32(tx.CodeNotNumber) }), inBlocks},
		// possible outcomes, but not what the blocks contain
		"a maybe that had no effect":         {inHistory(func(l []Transaction) { l[readA4].Results = []Result{{}} }), inBlocks},
		"a maybe that had":                   {inHistory(func(l []Transaction) { l[readNoB].Results = []Result{{Found: true, Value: "w1"}} }), linear | inBlocks},
		"in another block than acknowledged": {inHistory(func(l []Transaction) { l[putA].Height = 2 }), inBlocks | held},
		"acknowledged and lost":              {inBlock(func(b []Block) { b[readA1].Transactions = nil }), inBlocks | held},
		"a write acknowledged and lost":      {inBlock(func(b []Block) { b[putB].Transactions = nil }), inBlocks | held},
		"executed twice": {inBlock(func(b []Block) {
			b[readA4].Transactions = append(b[readA4].Transactions, b[maybeA].Transactions...)
		}), inBlocks},
		"refused and executed": {func(h *History, _ []Block) { h.Transactions[readB].Outcome = Refused }, inBlocks},
		"by no client":         {func(h *History, _ []Block) { h.Transactions[maybeA].Hash = nil }, inBlocks},
		"another result in the block": {inBlock(func(b []Block) {
			b[readA4].Transactions[0].Data = encodeResults([]Result{{Found: true, Value: "v1"}})
		}), inBlocks},
		"no result in the block":            {inBlock(func(b []Block) { b[readA4].Transactions[0].Data = []byte("?") }), inBlocks},
		"a compare that failed is executed": {inBlock(func(b []Block) { b[compareFails].Transactions[0].Code = 0 }), inBlocks | held},
		// two transactions on independent keys, exchanged in the chain
		"against real time": {func(h *History, b []Block) {
			b[readNoB], b[readGroup] = b[readGroup], b[readNoB]
			b[readNoB].Height, b[readGroup].Height = b[readGroup].Height, b[readNoB].Height
			h.Transactions[readNoB].Height, h.Transactions[readGroup].Height = h.Transactions[readGroup].Height, h.Transactions[readNoB].Height
		}, inBlocks},
		"a block is missing":  {inBlock(func(b []Block) { b[2].Height++ }), inBlocks | held},
		"the proof is false":  {inRead(1, func(r *ProvedRead) { r.False = "not proved" }), inReads},
		"proved and stale":    {inRead(1, func(r *ProvedRead) { r.Value = "v1" }), inBlocks},
		"proved absent":       {inRead(1, func(r *ProvedRead) { r.Found, r.Value = false, "" }), inBlocks},
		"proved, not written": {inRead(3, func(r *ProvedRead) { r.Found, r.Value = true, "w1" }), inBlocks},
		"a node goes back":    {inRead(4, func(r *ProvedRead) { r.Height, r.Head = 13, 13 }), inReads},
		"below its own head":  {inRead(1, func(r *ProvedRead) { r.Head = r.Height + 2 }), inReads},
		"an old state":        {inRead(2, func(r *ProvedRead) { r.Call += time.Minute; r.Return += time.Minute }), inReads},
	} {
		t.Run(name, func(t *testing.T) {
			h, blocks := handmade(t)
			m.mutate(h, blocks)
			folder := t.TempDir()
			byLinear := h.CheckLinearizable(checkPatience, folder)
			_, byHeld := kept(h.Acknowledged(), "one", 1, blocks)
			for what, check := range map[int]error{
				linear: byLinear, inBlocks: h.CheckBlocks(blocks), inReads: h.CheckReads(Bounds{Age: time.Second}), held: byHeld,
			} {
				if m.found&what != 0 {
					require.Error(t, check, "checker %d", what)
				} else {
					require.NoError(t, check, "checker %d", what)
				}
			}
			pictures, err := filepath.Glob(filepath.Join(folder, "*.html"))
			require.NoError(t, err)
			require.Equal(t, byLinear != nil, len(pictures) > 0, "there is a picture of the failed search")
		})
	}
}

func TestNodesThatJoinedHoldTheRest(t *testing.T) {
	h, blocks := handmade(t)
	k, err := kept(h.Acknowledged(), "joined", 6, blocks[5:])
	require.NoError(t, err)
	require.Equal(t, Kept{Held: 14, Earlier: 5}, k)
}

func TestDisturbedNodesMayBeOld(t *testing.T) {
	h, _ := handmade(t)
	bounds := Bounds{Age: time.Second, Recovery: time.Second}
	r := &h.Reads[4]
	r.Call, r.Return = r.Call+10*time.Second, r.Return+10*time.Second
	require.Error(t, h.CheckReads(bounds))
	for _, d := range []struct {
		Disturbance
		excused bool
	}{
		{Disturbance{"one", r.Call - time.Minute, r.Return + time.Minute}, true},
		{Disturbance{"", r.Return, r.Return + time.Minute}, true},
		{Disturbance{"two", r.Call - time.Minute, r.Return + time.Minute}, false},
		{Disturbance{"one", r.Return + 1, r.Return + time.Minute}, false},
		{Disturbance{"one", 0, r.Call - bounds.Recovery}, true},
		{Disturbance{"one", 0, r.Call - bounds.Recovery - 1}, false},
	} {
		h.Disturbed = []Disturbance{d.Disturbance}
		require.Equal(t, d.excused, h.CheckReads(bounds) == nil, d.Disturbance)
	}
}

func TestStaleness(t *testing.T) {
	h := History{Reads: []ProvedRead{{Height: 5}, {Height: 3}, {Reader: 1, Height: 2}, {Height: 4}, {Height: 6}}}
	answers, blocks := h.Staleness()
	require.Equal(t, 2, answers)
	require.EqualValues(t, 2, blocks)
}

// The explanation must contain the relevant transactions only: not those after the one that cannot
// be explained, nor earlier reads that agree.
func TestExplanation(t *testing.T) {
	h, _ := handmade(t)
	h.Transactions[readA2].Results = []Result{{Found: true, Value: "v1"}}
	err := h.CheckLinearizable(checkPatience, "")
	require.ErrorContains(t, err, "no order of the 9 transactions on load/a explains their results (seed 1)")
	lines := strings.Split(err.Error(), "\n")[1:]
	require.Len(t, lines, 3, err)
	require.Contains(t, lines[0], "put(load/a, v1) = absent: ok")
	require.Contains(t, lines[1], "compare-and-put(load/a, v1, v2) = it was there: ok")
	require.Contains(t, lines[2], "process 4 at one [40ns, 45ns]: read(load/a) = v1: ok, block 5")
}

func TestUndecidedIsNoProof(t *testing.T) {
	h, _ := handmade(t)
	require.ErrorIs(t, h.CheckLinearizable(0, ""), ErrUndecided)
}

func TestHistoryFile(t *testing.T) {
	h, blocks := handmade(t)
	h.Blocks, h.Disturbed = blocks, []Disturbance{{"one", 1, 2}}
	path := filepath.Join(t.TempDir(), "history.json")
	require.NoError(t, h.WriteFile(path))
	again, err := ReadFile(path)
	require.NoError(t, err)
	want, err := json.Marshal(h)
	require.NoError(t, err)
	got, err := json.Marshal(again)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))
	require.NoError(t, again.CheckLinearizable(checkPatience, ""))
	require.NoError(t, again.CheckBlocks(again.Blocks))
}
