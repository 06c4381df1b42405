package app

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/tx"
)

// The threshold is the number of admins that must approve operations of admins. It is 1, so that
// every admin acts alone, unless its record has a higher number:
//
//	root:  propose [grant …, set validator …] ──► record 00 'o' ‖ root: operations, approvals {root}
//	ann:   approve root's, with its digest    ──► approvals {ann, root}: as many as the threshold?
//	                                                 └──► the record is deleted, the operations are executed
//
// Each admin has at most one proposal, so that the thief of one key cannot crowd out the others. An
// approval names the digest of the proposing transaction's sign bytes, which contain chain,
// proposer, nonce and operations, so it approves exactly these. It counts while its account is an
// admin.

// MaxProposalBlocks limits the number of blocks in which a proposal can be approved.
const MaxProposalBlocks = 1_000_000

// threshold returns the number of admins that must approve.
func (o *overlay) threshold() (uint64, error) {
	value, err := o.get(ThresholdKey())
	if err != nil || value == nil {
		return 1, err
	}
	return decodeUint64(value), nil
}

// anAdmin returns a *tx.Error if account is not an admin.
func (x *executor) anAdmin(account []byte, what string) error {
	admin, err := x.isAdmin(account)
	if err != nil {
		return err
	}
	if !admin {
		return tx.Errorf(tx.CodeNotAdmin, "account %x is not an admin: only an admin may %s", account, what)
	}
	return nil
}

// onlyAdmin returns a *tx.Error unless account is an admin that may act alone, or enough admins
// have approved.
func (x *executor) onlyAdmin(account []byte, what string) error {
	if x.approved {
		return nil
	}
	if err := x.anAdmin(account, what); err != nil {
		return err
	}
	most, err := x.threshold()
	if err == nil && most > 1 {
		err = tx.Errorf(tx.CodeThreshold, "it takes %d admins to %s: propose it, and let others approve", most, what)
	}
	return err
}

// setThreshold sets the threshold and returns whether there was a record.
func (x *executor) setThreshold(account []byte, op *tx.SetThreshold) (bool, *abci.Event, error) {
	if err := x.onlyAdmin(account, "change how many admins must approve"); err != nil {
		return false, nil, err
	}
	admins, err := x.countAdmins()
	if err != nil {
		return false, nil, err
	}
	if op.Admins > admins {
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "there are %d admins, so %d cannot approve", admins, op.Admins)
	}
	old, err := x.get(ThresholdKey())
	if err != nil {
		return false, nil, err
	}
	event, err := x.write(ThresholdKey(), encodeThreshold(op.Admins), KindThreshold)
	return old != nil, event, err
}

// encodeThreshold returns the record, or nil for the default.
func encodeThreshold(admins uint64) []byte {
	if admins == 1 {
		return nil
	}
	return encodeUint64(admins)
}

// countAdmins returns the number of admins. All of their records have the same length, so the
// number follows from the total length.
func (x *executor) countAdmins() (uint64, error) {
	start := record(tagAdmin)
	end := keyspace.PrefixEnd(start)
	sum, err := x.baseBytes(start, end)
	if err != nil {
		return 0, err
	}
	x.ascend(start, end, func(e *overlayEntry) {
		sum += recordBytes(e.key, e.value) - recordBytes(e.key, e.before)
	})
	return sum / recordBytes(AdminKey(everyone), contentOf(adminValue)), nil
}

// mayRemoveAdmin returns a *tx.Error if too few admins would be left without account, which is an
// admin.
func (x *executor) mayRemoveAdmin(account []byte) error {
	admins, err := x.countAdmins()
	if err != nil {
		return err
	}
	if admins <= 1 {
		return tx.Errorf(tx.CodeInvalidChange, "account %x is the last admin: name another one first", account)
	}
	most, err := x.threshold()
	if err != nil {
		return err
	}
	if admins-1 < most {
		return tx.Errorf(tx.CodeInvalidChange, "without account %x, %d admins would be left of the %d that must approve: name another one, or lower the threshold, first",
			account, admins-1, most)
	}
	return nil
}

// proposal returns the proposal of proposer, or nil if there is none.
func (x *executor) proposal(proposer []byte) (*tx.Proposal, error) {
	value, err := x.get(ProposalKey(proposer))
	if err != nil || value == nil {
		return nil, err
	}
	p, err := tx.DecodeProposal(value)
	if err != nil {
		panic(fmt.Sprintf("app: the record of a proposal does not decode: the state is damaged: %v", err))
	}
	return p, nil
}

// propose replaces the account's proposal.
func (x *executor) propose(account []byte, op *tx.Propose) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	if err := x.anAdmin(account, "propose changes"); err != nil {
		return fail(err)
	}
	key, height := ProposalKey(account), uint64(x.height)
	before, err := x.get(key)
	if err != nil {
		return fail(err)
	}
	if len(op.Operations) == 0 {
		event, err := x.write(key, nil, KindProposal)
		return tx.OperationResult{Found: before != nil}, list(event), err
	}
	if op.Expires < height || op.Expires-height > MaxProposalBlocks {
		return fail(tx.Errorf(tx.CodeInvalidChange, "the proposal expires after block %d, it must be from this one, %d, to %d", op.Expires, height, height+MaxProposalBlocks))
	}
	next, err := x.nonce(account) // the next nonce after this transaction
	if err != nil {
		return fail(err)
	}
	return x.countApproval(account, account, &tx.Proposal{Nonce: next - 1, Propose: *op}, before != nil)
}

func (x *executor) approve(account []byte, op *tx.Approve) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	if err := x.anAdmin(account, "approve of changes"); err != nil {
		return fail(err)
	}
	p, err := x.proposal(op.Proposer)
	switch {
	case err != nil:
		return fail(err)
	case p == nil:
		return fail(tx.Errorf(tx.CodeInvalidChange, "account %x proposes nothing", op.Proposer))
	case p.Propose.Expires < uint64(x.height):
		return fail(tx.Errorf(tx.CodeInvalidChange, "what account %x proposes has expired after block %d", op.Proposer, p.Propose.Expires))
	}
	digest, err := p.Digest(x.params.ChainId, op.Proposer)
	if err != nil {
		panic(err) // cannot happen: the memory has the computed size
	}
	if !bytes.Equal(digest[:], op.Digest) {
		return fail(tx.Errorf(tx.CodeInvalidChange, "account %x proposes something else now: its digest is %x", op.Proposer, digest))
	}
	return x.countApproval(op.Proposer, account, p, true)
}

// countApproval adds an approval to the proposal of proposer. If that reaches the threshold, it
// executes the proposal, and the value in the result is 01.
func (x *executor) countApproval(proposer, account []byte, p *tx.Proposal, found bool) (tx.OperationResult, []abci.Event, error) {
	fail := func(err error) (tx.OperationResult, []abci.Event, error) { return tx.OperationResult{}, nil, err }
	var approvals [][]byte
	for _, other := range p.Approvals {
		admin, err := x.isAdmin(other)
		if err != nil {
			return fail(err)
		}
		if admin && !bytes.Equal(other, account) {
			approvals = append(approvals, other)
		}
	}
	at, _ := slices.BinarySearchFunc(approvals, account, bytes.Compare)
	p.Approvals = slices.Insert(approvals, at, account)
	needed, err := x.threshold()
	if err != nil {
		return fail(err)
	}
	key := ProposalKey(proposer)
	if uint64(len(p.Approvals)) < needed {
		record, err := p.Marshal()
		if err != nil {
			panic(err) // cannot happen: the memory has the computed size
		}
		event, err := x.write(key, record, KindProposal)
		return tx.OperationResult{Found: found}, list(event), err
	}
	event, err := x.write(key, nil, KindProposal)
	if err != nil {
		return fail(err)
	}
	events, err := x.executeProposal(proposer, &p.Propose)
	return tx.OperationResult{Found: found, Value: adminValue}, append(list(event), events...), err
}

// executeProposal executes a proposal that enough admins have approved.
func (x *executor) executeProposal(proposer []byte, p *tx.Propose) (events []abci.Event, err error) {
	x.approved = true
	defer func() { x.approved = false }()
	for i := range p.Operations {
		operation := p.Operations[i].Operation()
		_, more, err := x.rules.perform(x, proposer, &operation)
		var refused *tx.Error
		if errors.As(err, &refused) {
			return nil, tx.Errorf(refused.Code, "operation %d of the proposal: %s", i, refused.Reason)
		} else if err != nil {
			return nil, err
		}
		events = append(events, more...)
	}
	return events, nil
}

func list(event *abci.Event) []abci.Event {
	if event == nil {
		return nil
	}
	return []abci.Event{*event}
}

// exploreProposal finds the missing nodes for the operations of a proposal, each separately, after
// the operation that proposes or approves it reached a missing node.
func (x *executor) exploreProposal(account []byte, operation *tx.Operation) {
	var proposed *tx.Propose
	switch op := operation.Op.(type) {
	case *tx.Operation_Propose:
		proposed = op.Propose
	case *tx.Operation_Approve:
		account = op.Approve.Proposer
		p, err := x.proposal(account)
		if err != nil || p == nil {
			return // the missing node was recorded
		}
		proposed = &p.Propose
	default:
		return
	}
	x.approved = true
	defer func() { x.approved = false }()
	for i := range proposed.Operations {
		operation := proposed.Operations[i].Operation()
		x.exploreOperation(account, &operation)
	}
}
