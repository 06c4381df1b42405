package history

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/starling-kv/starling/tx"
)

// CheckBlocks executes the transactions of the blocks itself, in order, and checks that
//
//   - the results in the block and at the client are those of a sequential execution;
//   - each acknowledged transaction is in the acknowledged block, once; no refused transaction is in a block; nobody else wrote;
//   - the order agrees with real time: a transaction that had returned before another was called stands before it;
//   - every proved value is the one after the last transaction up to that height.
//
// The blocks must be consecutive, come from one node, and include (From, Top].
func (h *History) CheckBlocks(blocks []Block) error {
	p := replay{history: h, byHash: map[string]*Transaction{}, position: map[*Transaction]position{}, state: state{}, versions: map[string][]version{}}
	if err := p.covers(blocks); err != nil {
		return err
	}
	for i := range h.Transactions {
		if t := &h.Transactions[i]; len(t.Hash) > 0 {
			p.byHash[hex.EncodeToString(t.Hash)] = t
		}
	}
	for _, b := range blocks {
		if b.Height <= h.From {
			continue
		}
		for i := range b.Transactions {
			p.execute(position{b.Height, i}, &b.Transactions[i])
		}
	}
	p.compareClients()
	p.compareOrder()
	p.compareReads()
	return firstErrors(p.errs)
}

// position is the position of a transaction in the chain.
type position struct {
	height int64
	index  int
}

func (p position) before(o position) bool {
	return p.height < o.height || p.height == o.height && p.index < o.index
}

// version is the value of a key from a block on.
type version struct {
	height int64
	value  string // empty: absent
}

// replay executes the chain sequentially and compares the results with the history.
type replay struct {
	history *History
	byHash  map[string]*Transaction
	// positions of the history's transactions that took effect, or failed
	position map[*Transaction]position
	state    state
	versions map[string][]version
	errs     []error
}

func (p *replay) wrong(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *replay) covers(blocks []Block) error {
	if len(blocks) == 0 {
		return errors.New("there are no blocks to compare the history with")
	}
	for i := range blocks {
		if blocks[i].Height != blocks[0].Height+int64(i) {
			return fmt.Errorf("block %d follows block %d: blocks must be consecutive", blocks[i].Height, blocks[i-1].Height)
		}
	}
	if first, last := blocks[0].Height, blocks[len(blocks)-1].Height; first > p.history.From+1 || last < p.history.Top() {
		return fmt.Errorf("the blocks are %d to %d, the history needs %d to %d", first, last, p.history.From+1, p.history.Top())
	}
	return nil
}

// ours returns the operations of a transaction, and whether it writes under the prefix of the
// history or names a key there.
func (p *replay) ours(e *Executed) (operations []Operation, ours bool) {
	decoded, err := tx.Decode(e.Raw, p.history.ChainID)
	if err != nil {
		return nil, false
	}
	if decoded.Text != nil {
		o := Operation{Kind: Put, Key: string(decoded.Text.Key), Value: string(decoded.Text.Value)}
		return []Operation{o}, strings.HasPrefix(o.Key, p.history.Prefix)
	}
	for i := range decoded.Body.Operations {
		if o, known := decodeOperation(&decoded.Body.Operations[i]); known {
			operations = append(operations, o)
			ours = ours || slices.ContainsFunc(o.keys(), func(key string) bool { return strings.HasPrefix(key, p.history.Prefix) })
		}
	}
	return operations, ours
}

func (p *replay) execute(at position, e *Executed) {
	operations, ours := p.ours(e)
	if !ours {
		return
	}
	t := p.byHash[hex.EncodeToString(e.hash())]
	code := tx.Code(e.Code)
	if code != tx.CodeOK && !fails(code) {
		// it had no effect, and depends on nothing in the state; compareClients checks that its
		// client knows this
		return
	}
	if t == nil {
		p.wrong("transaction %d of block %d was sent by no client, or reported as refused: %v", at.index, at.height, operations)
	} else if before, again := p.position[t]; again {
		p.wrong("%v: it is in block %d, and again in block %d", t, before.height, at.height)
	} else {
		p.position[t] = at
	}
	next, results, want := p.state.execute(operations)
	if code != want {
		p.wrong("transaction %d of block %d, %v: the block says %q, a sequential execution %q", at.index, at.height, operations, code, want)
		return
	}
	outcome := OK
	if code != tx.CodeOK {
		outcome = Failed
	}
	if t != nil && (t.Outcome == OK || t.Outcome == Failed) && t.Outcome != outcome {
		p.wrong("%v: in a sequential execution its outcome is %q", t, outcome)
	}
	if outcome == Failed {
		return
	}
	var recorded tx.Result
	if err := recorded.Unmarshal(e.Data); err != nil {
		p.wrong("transaction %d of block %d: its result does not decode: %w", at.index, at.height, err)
	} else if !slices.EqualFunc(recorded.Results, results, func(a tx.OperationResult, b Result) bool {
		return resultOf(&a).equal(b)
	}) {
		p.wrong("transaction %d of block %d, %v: the block's result is %v, that of a sequential execution %v", at.index, at.height, operations, recorded.Results, results)
	}
	if t != nil && t.Outcome == OK && !slices.EqualFunc(t.Results, results, Result.equal) {
		p.wrong("%v: its client got %v, a sequential execution gives %v", t, t.Results, results)
	}
	for key, value := range next {
		if p.state[key] != value {
			p.versions[key] = append(p.versions[key], version{at.height, value})
		}
	}
	for key := range p.state {
		if _, there := next[key]; !there {
			p.versions[key] = append(p.versions[key], version{at.height, ""})
		}
	}
	p.state = next
}

// compareClients compares the clients' answers with the blocks that contain their transactions.
func (p *replay) compareClients() {
	for i := range p.history.Transactions {
		t := &p.history.Transactions[i]
		at, executed := p.position[t]
		switch {
		case t.Outcome == Refused && executed:
			p.wrong("%v: it is in block %d", t, at.height)
		case t.Outcome == Refused || t.Outcome == Maybe:
		case !executed:
			p.wrong("%v: it was acknowledged, but is in no block", t)
		case at.height != t.Height:
			p.wrong("%v: it is in block %d", t, at.height)
		}
	}
}

// compareOrder checks that no transaction stands after one that was called when the former had
// already returned.
func (p *replay) compareOrder() {
	ordered := make([]*Transaction, 0, len(p.position))
	for t := range p.position {
		ordered = append(ordered, t)
	}
	slices.SortFunc(ordered, func(a, b *Transaction) int {
		if p.position[a].before(p.position[b]) {
			return -1
		}
		return 1
	})
	var latest *Transaction // the last called among the preceding transactions
	for _, t := range ordered {
		if latest != nil && t.Outcome != Maybe && t.Return < latest.Call {
			p.wrong("%v had returned before the following was called, but stands behind it in the chain: %v", t, latest)
		}
		if latest == nil || t.Call > latest.Call {
			latest = t
		}
	}
}

// compareReads compares proved values with the state of their height. A block is executed as a
// whole, so its last version of a key counts.
func (p *replay) compareReads() {
	for i := range p.history.Reads {
		r := &p.history.Reads[i]
		if r.False != "" || r.Height <= p.history.From {
			continue
		}
		versions := p.versions[r.Key]
		after := sort.Search(len(versions), func(i int) bool { return versions[i].height > r.Height })
		want := ""
		if after > 0 {
			want = versions[after-1].value
		}
		if r.Found != (want != "") || r.Value != want {
			p.wrong("%v: after that block there is %s", r, short(want))
		}
	}
}

// Span returns the time during which clients were at work, to compute rates.
func (h *History) Span() time.Duration {
	end := time.Duration(0)
	for _, t := range h.Transactions {
		end = max(end, t.Return)
	}
	return end
}
