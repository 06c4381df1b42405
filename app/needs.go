package app

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/tx"
)

// The keys that an execution reads are found by running it
// (docs/decisions/0045-execution-on-witnesses.md). If a node is missing in the tree, the read
// fails, and its wants are recorded. The rest of the block is run to find other missing nodes, and
// its results are dropped:
//
//	tx 0   done
//	tx 1   misses a ──► undone, its nonce spent; each of its operations is tried alone; all keys it names are recorded
//	tx 2   misses b     (as if tx 1 had done nothing)
//	  …
//	──► fetch a, b and the recorded keys ──► run again

// needs are the wants that a run was missing, each once. A nil *needs records nothing, and reports
// that nothing is missing.
type needs struct {
	wants []avlstar.Want
	index map[string]int // position in wants, by idOf, counting those that dequeue took
	taken int            // number of wants that dequeue took
	// The stubs that reads reached, anywhere.
	met map[avlstar.Hash]avlstar.Span
	// If it is not nil, wants are requested below these stubs, which Apply reported and which lie
	// next to the paths to the wants.
	held map[avlstar.Hash]avlstar.Span
}

// maxNeeds limits the wants of one run. A block names maxCost keys, and a few records for each.
const maxNeeds = 4 * maxCost

// add records a want, whose keys must not be modified afterwards.
func (n *needs) add(w avlstar.Want) {
	if n == nil {
		return
	}
	id := idOf(w)
	if i, ok := n.index[id]; ok {
		had := &n.wants[i-n.taken]
		had.Deleted, had.Written = had.Deleted || w.Deleted, had.Written && w.Written
		return
	}
	if len(n.wants) < maxNeeds {
		if n.index == nil {
			n.index = make(map[string]int)
		}
		n.index[id] = n.taken + len(n.wants)
		n.wants = append(n.wants, w)
	}
}

// idOf returns equal strings for wants that differ only in Deleted and Written.
func idOf(w avlstar.Want) string {
	form := byte('k')
	switch {
	case w.Range:
		form = 'r'
	case w.Next:
		form = 'n'
	}
	b := append(binary.AppendUvarint([]byte{form}, uint64(len(w.Key))), w.Key...)
	return string(append(b, w.After...))
}

// note records wants, by default the path to the missing node, if err reports a missing node.
func (n *needs) note(err error, wants ...avlstar.Want) {
	var missing *avlstar.MissingNodeError
	if n == nil || !errors.As(err, &missing) {
		return
	}
	n.reached(missing.Node)
	if len(wants) == 0 {
		n.add(avlstar.Want{Key: missing.Key})
	}
	for _, w := range wants {
		n.add(w)
	}
}

// reached records a stub that a read reached.
func (n *needs) reached(stub avlstar.Stub) {
	if n.met == nil {
		n.met = make(map[avlstar.Hash]avlstar.Span)
	}
	n.met[stub.Hash] = avlstar.Span{}
}

// lost reports whether nodes are missing, so that the results of the run cannot be used.
func (n *needs) lost() bool { return n != nil && len(n.wants) > 0 }

// isMissing reports whether err says that a node of the tree is missing, which a Source may fetch.
func isMissing(err error) bool {
	var missing *avlstar.MissingNodeError
	return errors.As(err, &missing)
}

// If err reports that a node is missing in base, this method records wants, by default the path to
// that node. It returns err.
func (o *overlay) lacked(err error, wants ...avlstar.Want) error {
	o.needs.note(err, wants...)
	return err
}

// Whether err reports that a node is missing in base, so that the run continues to find other
// missing nodes.
func (o *overlay) lacks(err error) bool { return err != nil && o.needs != nil && isMissing(err) }

// name records all keys that the transaction names, without the values that it may read: a block
// returns less than its transactions try to read.
func (o *overlay) name(t *tx.Tx) { nameKeys(o.needs, t, false) }

// nameKeys records all keys that t names. values says whether to record the values that it reads.
func nameKeys(n *needs, t *tx.Tx, values bool) {
	if t.Text != nil {
		n.add(avlstar.Want{Key: t.Text.Key, Written: true})
		return
	}
	n.add(avlstar.Want{Key: NonceKey(t.Body.Account)})
	for i := range t.Body.Operations {
		for _, w := range wantsOf(nil, &t.Body.Operations[i]) {
			// Programs read their records, which are short.
			w.Written = w.Written || !values && !tx.IsProgramKey(w.Key)
			n.add(w)
		}
	}
}

// explore finds all missing nodes that a transaction needs after it reached one of them. The
// changes of the transaction are undone except for its nonce, so that later transactions of the
// account reach their operations.
func (x *executor) explore(t *tx.Tx) {
	// Nothing is read ahead meanwhile, because the operation being tried is not the one at ahead.
	ahead := x.ahead
	x.ahead = lookahead{}
	defer func() { x.ahead = ahead }()
	x.undo(0)
	x.name(t)
	if t.Body == nil {
		return
	}
	x.pretend(NonceKey(t.Body.Account), encodeUint64(t.Body.Nonce+1))
	before := x.reads
	for i := range t.Body.Operations {
		x.exploreOperation(t.Body.Account, &t.Body.Operations[i])
	}
	x.keep(0)
	x.reads, x.changed = before, nil
}

// exploreRights finds the nodes for checking the rights of a signed transaction, each separately.
func (x *executor) exploreRights(t *tx.Tx) error {
	account := t.Body.Account
	looks := []func() error{
		func() error { _, err := x.isAdmin(account); return err },
		func() error { _, err := x.anyUnder(record(tagGrant, account)); return err },
		func() error { _, err := x.anyUnder(record(tagGrant, everyone)); return err },
		func() error { _, err := x.nonce(account); return err },
	}
	if slices.ContainsFunc(t.Body.Operations, func(o tx.Operation) bool { return o.AdminsOnly() }) {
		looks = append(looks, func() error { _, err := x.threshold(); return err })
	}
	for i := range t.Body.Operations {
		for _, key := range x.governed(nil, account, &t.Body.Operations[i]) {
			for _, who := range [][]byte{account, everyone} {
				looks = append(looks, func() error { _, _, _, err := x.longestPrefix(record(tagGrant, who), key); return err })
			}
		}
	}
	for _, look := range looks {
		if err := look(); err != nil && !isMissing(err) {
			return err
		}
	}
	return nil
}

// exploreOperation executes one operation alone. If that fails, the operation leaves no trace.
func (x *executor) exploreOperation(account []byte, operation *tx.Operation) {
	mark, counted := x.mark(), x.validators
	_, _, err := x.rules.perform(x, account, operation)
	if err == nil {
		return
	}
	x.undo(mark)
	x.validators = counted
	var inner error
	switch op := operation.Op.(type) {
	case *tx.Operation_DeleteRange:
		inner = x.exploreRange(op.DeleteRange)
	case *tx.Operation_Txn:
		inner = x.exploreTxn(account, op.Txn)
	case *tx.Operation_Propose, *tx.Operation_Approve:
		x.exploreProposal(account, operation)
	case *tx.Operation_Deploy, *tx.Operation_Call:
		inner = x.exploreProgram(account, operation)
	}
	if inner != nil && !isMissing(inner) {
		return // the next run meets this failure again
	}
	key, writes := written(operation)
	if !writes || !isMissing(err) {
		return
	}
	// The operation may have failed at the key, before it checked the quota.
	g, err := x.mayTouch(account, key)
	if err == nil && g.quota != 0 {
		_, err = x.usage(g.prefix)
	}
	if err != nil && !isMissing(err) {
		return // a refusal, or a failure that the next run meets again
	}
}

// pretend sets a key whose value in base may be unknown. No block may be made from the overlay.
func (o *overlay) pretend(key, value []byte) {
	e, ok := o.entry(key)
	if !ok {
		e = &overlayEntry{key: key}
		o.entries.ReplaceOrInsert(e)
	}
	o.put(e, contentOf(value))
}

// KeepRecords reports whether a subtree with keys in [first, after) (nil is open) may contain
// system keys other than nonces and records of programs. It is meant for avlstar.Retention.Keep:
// CheckTx needs the rights of accounts, and does not wait for the network. Such records stay in
// memory once they are there. Admins determine their number, but there are as many nonces as
// accounts were ever seen: see PreferNonces.
func KeepRecords(first, after []byte) bool {
	return (len(first) == 0 || first[0] == reserved) && !PreferNonces(first, after) && !allUnder(program.Prefix(nil), first, after)
}

// PreferNonces reports whether all keys in [first, after) are those of nonces. It is meant for
// avlstar.Retention.Prefer: nonces stay while there is memory for them. If one is missing, CheckTx
// requests it, and the recheck uses it.
func PreferNonces(first, after []byte) bool {
	return allUnder(record(tagNonce), first, after)
}

// allUnder reports whether all keys in [first, after) (nil is open) start with prefix.
func allUnder(prefix, first, after []byte) bool {
	return bytes.Compare(first, prefix) >= 0 && len(after) > 0 && bytes.Compare(after, keyspace.PrefixEnd(prefix)) <= 0
}
