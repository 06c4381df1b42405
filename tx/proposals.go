package tx

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/internal/protowalk"
)

// Operations that need several admins: one admin proposes operations, and others approve exactly
// these (docs/spec/records.md#threshold).

const (
	// MaxProposalOperations is the maximum number of operations in a proposal.
	MaxProposalOperations = 64
	// MaxProposalBytes limits the encoding of a Propose.
	MaxProposalBytes = 64 << 10
	// MaxThreshold is the maximum number of admins that may have to approve: the record of a
	// proposal lists them.
	MaxThreshold = 255
	// DigestBytes is the length of a proposal's digest.
	DigestBytes = sha256.Size
)

var (
	proposeTable = protowalk.Message{Name: "Propose", Fields: []protowalk.Field{
		protowalk.Repeated(1, "operations", &adminOperationTable, MaxBytes, 0), // as in txnTable
		{Number: 2, Name: "expires", Kind: protowalk.Varint},
	}}

	adminOperationTable = protowalk.Message{Name: "AdminOperation", OneOf: true, Fields: []protowalk.Field{
		opaque(5, "grant"), opaque(6, "revoke"), opaque(7, "set_validator"), opaque(8, "set_admin"), opaque(9, "schedule_upgrade"),
		opaque(22, "set_threshold"),
	}}

	proposalTable = protowalk.Message{Name: "Proposal", Fields: []protowalk.Field{
		{Number: 1, Name: "nonce", Kind: protowalk.Varint},
		protowalk.Sub(2, "propose", &proposeTable),
		protowalk.Repeated(3, "approvals", nil, MaxThreshold, AccountBytes),
	}}
)

// NewSetThreshold sets the number of admins that must approve a change by admins.
func NewSetThreshold(admins uint64) Operation {
	return Operation{Op: &Operation_SetThreshold{SetThreshold: &SetThreshold{Admins: admins}}}
}

// NewPropose proposes operations of admins, which can be approved up to the block at height
// expires. It replaces the account's previous proposal. It returns an error if one of the
// operations is not reserved to admins.
func NewPropose(expires uint64, operations ...Operation) (Operation, error) {
	p := &Propose{Expires: expires, Operations: make([]AdminOperation, len(operations))}
	for i, o := range operations {
		switch op := o.Op.(type) {
		case *Operation_Grant:
			p.Operations[i].Op = &AdminOperation_Grant{Grant: op.Grant}
		case *Operation_Revoke:
			p.Operations[i].Op = &AdminOperation_Revoke{Revoke: op.Revoke}
		case *Operation_SetValidator:
			p.Operations[i].Op = &AdminOperation_SetValidator{SetValidator: op.SetValidator}
		case *Operation_SetAdmin:
			p.Operations[i].Op = &AdminOperation_SetAdmin{SetAdmin: op.SetAdmin}
		case *Operation_ScheduleUpgrade:
			p.Operations[i].Op = &AdminOperation_ScheduleUpgrade{ScheduleUpgrade: op.ScheduleUpgrade}
		case *Operation_SetThreshold:
			p.Operations[i].Op = &AdminOperation_SetThreshold{SetThreshold: op.SetThreshold}
		default:
			return Operation{}, fmt.Errorf("tx: operation %d needs no admin, so it cannot be proposed", i)
		}
	}
	return Operation{Op: &Operation_Propose{Propose: p}}, nil
}

// NewWithdraw withdraws the account's proposal.
func NewWithdraw() Operation { return Operation{Op: &Operation_Propose{Propose: &Propose{}}} }

// NewApprove approves the proposal of proposer, if it still has this digest.
func NewApprove(proposer []byte, digest [DigestBytes]byte) Operation {
	return Operation{Op: &Operation_Approve{Approve: &Approve{Proposer: proposer, Digest: digest[:]}}}
}

// Operation returns a as an operation of a transaction. If a is empty, so is the result.
func (a *AdminOperation) Operation() Operation {
	switch op := a.Op.(type) {
	case *AdminOperation_Grant:
		return Operation{Op: &Operation_Grant{Grant: op.Grant}}
	case *AdminOperation_Revoke:
		return Operation{Op: &Operation_Revoke{Revoke: op.Revoke}}
	case *AdminOperation_SetValidator:
		return Operation{Op: &Operation_SetValidator{SetValidator: op.SetValidator}}
	case *AdminOperation_SetAdmin:
		return Operation{Op: &Operation_SetAdmin{SetAdmin: op.SetAdmin}}
	case *AdminOperation_ScheduleUpgrade:
		return Operation{Op: &Operation_ScheduleUpgrade{ScheduleUpgrade: op.ScheduleUpgrade}}
	case *AdminOperation_SetThreshold:
		return Operation{Op: &Operation_SetThreshold{SetThreshold: op.SetThreshold}}
	}
	return Operation{}
}

// Digest identifies the proposal that proposer makes with this record on this chain. It is the
// SHA-256 of the sign bytes of the proposing transaction, so an approval covers exactly these
// operations.
func (p *Proposal) Digest(chainID string, proposer []byte) ([DigestBytes]byte, error) {
	body := Body{Account: proposer, Nonce: p.Nonce, Operations: []Operation{{Op: &Operation_Propose{Propose: &p.Propose}}}}
	b, err := body.Marshal()
	if err != nil {
		return [DigestBytes]byte{}, fmt.Errorf("tx: encode a proposal: %w", err)
	}
	return sha256.Sum256(SignBytes(chainID, b)), nil
}

// DecodeProposal decodes the record of a proposal, which may be untrusted.
func DecodeProposal(b []byte) (*Proposal, error) {
	if err := protowalk.Walk(b, &proposalTable); err != nil {
		return nil, err
	}
	p := new(Proposal)
	if err := p.Unmarshal(b); err != nil {
		return nil, err
	}
	if err := p.Propose.check(NewestAppVersion); err != nil {
		return nil, err
	}
	if len(p.Propose.Operations) == 0 {
		return nil, errors.New("a proposal without operations")
	}
	for _, account := range p.Approvals {
		if err := checkAccount("approving account", account); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// AdminsOnly reports whether the operation can be proposed: it is reserved to admins, as many as
// the threshold requires.
func (o *Operation) AdminsOnly() bool {
	switch o.Op.(type) {
	case *Operation_Grant, *Operation_Revoke, *Operation_SetValidator, *Operation_SetAdmin, *Operation_ScheduleUpgrade, *Operation_SetThreshold:
		return true
	}
	return false
}

// alone reports whether the operation must be the only one of its transaction.
func (o *Operation) alone() bool { return o.GetPropose() != nil || o.GetApprove() != nil }

// checkTogether checks the kinds of operations that this file declares.
func (o *Operation) checkTogether(version uint64) *Error {
	switch op := o.Op.(type) {
	case *Operation_Propose:
		if op.Propose != nil {
			return op.Propose.check(version)
		}
	case *Operation_Approve:
		if op.Approve != nil {
			return firstError(checkAccount("proposer", op.Approve.Proposer), op.Approve.checkDigest())
		}
	case *Operation_SetThreshold:
		if op.SetThreshold != nil {
			return op.SetThreshold.check()
		}
	default:
		return o.checkPrograms()
	}
	return Errorf(CodeMalformed, "empty, or of a kind that this version does not know")
}

func (p *Propose) check(version uint64) *Error {
	switch n := len(p.Operations); {
	case n > MaxProposalOperations:
		return Errorf(CodeTooLarge, "%d operations in a proposal, at most %d are allowed", n, MaxProposalOperations)
	case p.Size() > MaxProposalBytes:
		return Errorf(CodeTooLarge, "the proposal has %d bytes, at most %d are allowed", p.Size(), MaxProposalBytes)
	case n == 0 && p.Expires != 0:
		return Errorf(CodeMalformed, "a proposal that is withdrawn (no operations) must have no height")
	}
	for i := range p.Operations {
		operation := p.Operations[i].Operation()
		if err := operation.check(version); err != nil {
			return Errorf(err.Code, "operation %d of the proposal: %s", i, err.Reason)
		}
	}
	return nil
}

func (a *Approve) checkDigest() *Error {
	if len(a.Digest) != DigestBytes {
		return Errorf(CodeMalformed, "the digest of the proposal has %d bytes, it must have %d", len(a.Digest), DigestBytes)
	}
	return nil
}

func (s *SetThreshold) check() *Error {
	if s.Admins < 1 || s.Admins > MaxThreshold {
		return Errorf(CodeMalformed, "the threshold is %d admins, it must be from 1 to %d", s.Admins, MaxThreshold)
	}
	return nil
}
