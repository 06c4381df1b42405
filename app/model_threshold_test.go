package app

import (
	"bytes"
	"slices"

	"github.com/starling-kv/starling/tx"
)

// The model of operations that need several admins.

func (m *model) threshold() int { return max(int(m.u64([]byte("\x00k"))), 1) }

// proposalIn returns the proposal of an account in state, or nil if there is none.
func proposalIn(state map[string]string, account []byte) *tx.Proposal {
	record, ok := state["\x00o"+string(account)]
	if !ok {
		return nil
	}
	p := new(tx.Proposal)
	if err := p.Unmarshal([]byte(record)); err != nil {
		panic(err)
	}
	return p
}

// executed returns the operations of the transaction, including those that it approves.
func (m *model) executed(b *tx.Body) []tx.Operation {
	all := slices.Clone(b.Operations)
	for _, o := range b.Operations {
		var proposed *tx.Propose
		switch op := o.Op.(type) {
		case *tx.Operation_Propose:
			proposed = op.Propose
		case *tx.Operation_Approve:
			if p := proposalIn(m.before, op.Approve.Proposer); p != nil {
				proposed = &p.Propose
			}
		}
		if proposed != nil {
			for i := range proposed.Operations {
				all = append(all, proposed.Operations[i].Operation())
			}
		}
	}
	return all
}

func (m *model) together(who string, operation *tx.Operation) (tx.Code, string) {
	if op := operation.GetSetThreshold(); op != nil {
		if int(op.Admins) > m.count("\x00a") {
			return tx.CodeInvalidChange, ""
		}
		if delete(m.state, "\x00k"); op.Admins > 1 {
			m.setU64([]byte("\x00k"), op.Admins)
		}
		return 0, ""
	}
	if !m.has([]byte("\x00a" + who)) {
		return tx.CodeNotAdmin, ""
	}
	proposer := []byte(who)
	var p *tx.Proposal
	if op := operation.GetPropose(); op != nil {
		if len(op.Operations) == 0 {
			delete(m.state, "\x00o"+who)
			return 0, ""
		}
		p = &tx.Proposal{Nonce: m.nonce, Propose: *op}
		if op.Expires < m.height || op.Expires > m.height+MaxProposalBlocks {
			return tx.CodeInvalidChange, ""
		}
	} else {
		op := operation.GetApprove()
		proposer = op.Proposer
		if p = proposalIn(m.state, proposer); p == nil || p.Propose.Expires < m.height {
			return tx.CodeInvalidChange, ""
		}
		if digest, err := p.Digest(testChain, proposer); err != nil || string(digest[:]) != string(op.Digest) {
			return tx.CodeInvalidChange, ""
		}
	}
	p.Approvals = append(p.Approvals, []byte(who))
	slices.SortFunc(p.Approvals, bytes.Compare)
	p.Approvals = slices.CompactFunc(p.Approvals, bytes.Equal)
	p.Approvals = slices.DeleteFunc(p.Approvals, func(a []byte) bool { return !m.has([]byte("\x00a" + string(a))) })
	if len(p.Approvals) < m.threshold() {
		record, err := p.Marshal()
		if err != nil {
			panic(err)
		}
		m.state["\x00o"+string(proposer)] = string(record)
		return 0, ""
	}
	delete(m.state, "\x00o"+string(proposer))
	m.approved = true
	defer func() { m.approved = false }()
	for i := range p.Propose.Operations {
		o := p.Propose.Operations[i].Operation()
		if code, _ := m.operation(string(proposer), &o); code != 0 {
			return code, ""
		}
	}
	return 0, "\x01"
}

// together returns an operation of several admins, which can usually succeed.
func (g *generator) together(m *model) tx.Operation {
	var proposers [][]byte
	for _, name := range g.names {
		if proposalIn(m.state, account(name)) != nil {
			proposers = append(proposers, account(name))
		}
	}
	if len(proposers) > 0 && g.IntN(3) > 0 {
		proposer := proposers[g.IntN(len(proposers))]
		digest, err := proposalIn(m.state, proposer).Digest(testChain, proposer)
		if err != nil {
			g.t.Fatal(err)
		}
		if g.IntN(8) == 0 {
			digest[0] ^= 1
		}
		return tx.NewApprove(proposer, digest)
	}
	if g.IntN(6) == 0 {
		return tx.NewWithdraw()
	}
	operations := []tx.Operation{tx.NewSetThreshold(1)} // otherwise no admin would act alone
	if g.IntN(2) == 0 {
		operations = nil
	}
	for n := 1 + g.IntN(3); len(operations) < n; {
		if o := g.operation(m.state); o.AdminsOnly() {
			operations = append(operations, o)
		}
	}
	o, err := tx.NewPropose(m.height+uint64(g.IntN(6)), operations...)
	if err != nil {
		g.t.Fatal(err)
	}
	return o
}
