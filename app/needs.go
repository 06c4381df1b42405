package app

import (
	"bytes"
	"errors"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// What an execution reads is found by running it (docs/decisions/0045-execution-on-witnesses.md).
// Where the tree lacks a node, the read fails, and what it was for is noted. The rest of the block
// is run for what else it lacks, and its results are dropped:
//
//	tx 0   done
//	tx 1   lacks a ──► undone, its nonce spent; each of its operations is tried alone; all keys it names are noted
//	tx 2   lacks b     (as if tx 1 had done nothing)
//	  …
//	──► fetch a, b and what was noted ──► run again

// needs are what a run lacked, each once. A nil *needs takes nothing, and nothing was lost.
type needs struct {
	wants []avlstar.Want
	index map[string]int // in wants, by idOf, counting those that were taken
	taken int            // wants that were there before the first, see dequeue
	// The stubs that reads came upon, anywhere.
	met map[avlstar.Hash]avlstar.Span
	// If it is not nil, wants are to be asked for below these stubs, which lie beside the ways to
	// them: what Apply reported.
	held map[avlstar.Hash]avlstar.Span
}

// maxNeeds limits what one run may lack. A block names maxCost keys, and a few records for each.
const maxNeeds = 4 * maxCost

func newNeeds() *needs {
	return &needs{index: make(map[string]int), met: make(map[avlstar.Hash]avlstar.Span)}
}

// add notes a want, whose keys must not be modified afterwards.
func (n *needs) add(w avlstar.Want) {
	if n == nil {
		return
	}
	id := idOf(w)
	if i, ok := n.index[id]; ok {
		n.wants[i-n.taken].Deleted = n.wants[i-n.taken].Deleted || w.Deleted
		return
	}
	if len(n.wants) < maxNeeds {
		n.index[id] = n.taken + len(n.wants)
		n.wants = append(n.wants, w)
	}
}

// idOf is equal for wants that differ in nothing but Deleted.
func idOf(w avlstar.Want) string {
	form := byte('k')
	switch {
	case w.Range:
		form = 'r'
	case w.Next:
		form = 'n'
	}
	return string(append(append([]byte{form}, w.Key...), w.After...))
}

// note notes wants, by default the way to the missing node, if err is that a node is missing.
func (n *needs) note(err error, wants ...avlstar.Want) {
	var missing *avlstar.MissingNodeError
	if n == nil || !errors.As(err, &missing) {
		return
	}
	n.met[missing.Node.Hash] = avlstar.Span{}
	if len(wants) == 0 {
		n.add(avlstar.Want{Key: missing.Key})
	}
	for _, w := range wants {
		n.add(w)
	}
}

// lost reports whether something is lacking, so that what the run did is of no use.
func (n *needs) lost() bool { return n != nil && len(n.wants) > 0 }

// isMissing reports whether a node of the tree is missing, which a Source may bring.
func isMissing(err error) bool {
	var missing *avlstar.MissingNodeError
	return errors.As(err, &missing)
}

// lacked returns err. If it is that base lacks a node, it notes wants, by default the way to that
// node.
func (o *overlay) lacked(err error, wants ...avlstar.Want) error {
	o.needs.note(err, wants...)
	return err
}

// lacks reports whether err is that base lacks a node, so that the run continues for what else it
// lacks.
func (o *overlay) lacks(err error) bool { return err != nil && o.needs != nil && isMissing(err) }

// name notes all keys that the transaction names.
func (o *overlay) name(t *tx.Tx) { nameKeys(o.needs, t) }

func nameKeys(n *needs, t *tx.Tx) {
	if t.Text != nil {
		n.add(avlstar.Want{Key: t.Text.Key})
		return
	}
	n.add(avlstar.Want{Key: NonceKey(t.Body.Account)})
	for i := range t.Body.Operations {
		for _, w := range wantsOf(nil, &t.Body.Operations[i]) {
			n.add(w)
		}
	}
}

// explore finds what a transaction lacks that came upon a missing node. What it did is undone, but
// for its nonce, so that the next ones of the account come to their operations.
func (x *executor) explore(t *tx.Tx) {
	// Nothing is read ahead meanwhile: the operation that is tried is not the one where ahead is.
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

// exploreRights finds what it takes to check the rights of a signed transaction, each alone.
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
		for _, key := range governed(nil, &t.Body.Operations[i]) {
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

// exploreOperation executes one operation alone. If that fails, it leaves no trace.
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
	}
	if inner != nil && !isMissing(inner) {
		return // a failure that the next run meets again
	}
	key, writes := written(operation)
	if !writes || !isMissing(err) {
		return
	}
	// It may have come no further than to the key: the quota is looked at after it.
	g, err := x.mayTouch(account, key)
	if err == nil && g.quota != 0 {
		_, err = x.usage(g.prefix)
	}
	if err != nil && !isMissing(err) {
		return // a refusal, or a failure that the next run meets again
	}
}

// pretend sets a key whose value in base may be unknown. No block is made of the overlay.
func (o *overlay) pretend(key, value []byte) {
	e, ok := o.entry(key)
	if !ok {
		e = &overlayEntry{key: key}
		o.entries.ReplaceOrInsert(e)
	}
	o.put(e, value)
}

// KeepRecords reports whether a subtree with keys in [first, after) may hold bookkeeping records
// other than nonces (nil is open), for avlstar.Retention.Keep: CheckTx needs the rights of
// accounts, and does not wait for the network. Those that came into memory stay there. Admins
// decide how many there are; nonces are as many as accounts were ever seen: see PreferNonces.
func KeepRecords(first, after []byte) bool {
	return (len(first) == 0 || first[0] == reserved) && !PreferNonces(first, after)
}

// PreferNonces reports whether all keys in [first, after) are those of nonces, for
// avlstar.Retention.Prefer: they stay while there is memory for them. Where one is missing, CheckTx
// asks for it, and the recheck judges.
func PreferNonces(first, after []byte) bool {
	nonces := record(tagNonce)
	return bytes.Compare(first, nonces) >= 0 && len(after) > 0 && bytes.Compare(after, prefixEnd(nonces)) <= 0
}
