package client

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Keys of the records of admins (docs/spec/records.md).
var (
	adminPrefix    = []byte{tx.Reserved, 'a'}
	thresholdKey   = []byte{tx.Reserved, 'k'}
	proposalPrefix = []byte{tx.Reserved, 'o'}
)

// Admins are the admins of a state, the number of approvals that they need, and their proposals.
type Admins struct {
	State
	Threshold uint64
	List      [][]byte // in key order
	Proposals []Proposal
}

// Proposal is a proposal of an admin.
type Proposal struct {
	Proposer   []byte
	Operations []tx.Operation
	Expires    uint64   // the last block in which it can be approved
	Approvals  [][]byte // accounts that were admins when they approved
	Digest     [tx.DigestBytes]byte
}

// Admins reads the records of admins, like Scan.
func (c *Client) Admins(ctx context.Context, options ...ReadOption) (*Admins, error) {
	threshold, err := c.Get(ctx, thresholdKey, options...)
	if err != nil {
		return nil, err
	}
	all := &Admins{State: threshold.State, Threshold: 1}
	if threshold.Found {
		if len(threshold.Value) != 8 {
			return nil, fmt.Errorf("client: the record of the threshold at height %d does not decode", all.Height)
		}
		all.Threshold = binary.BigEndian.Uint64(threshold.Value)
	}
	options = append(options[:len(options):len(options)], AtHeight(all.Height))
	records := func(prefix []byte, take func(account []byte, entry avlstar.KV) error) error {
		for entry, err := range c.Scan(ctx, prefix, PrefixEnd(prefix), options...) {
			if err != nil {
				return err
			}
			account := entry.Key[len(prefix):]
			if len(account) != tx.AccountBytes {
				return fmt.Errorf("client: the record %x of an admin at height %d does not decode", entry.Key, all.Height)
			}
			if err := take(account, entry); err != nil {
				return err
			}
		}
		return nil
	}
	err = records(adminPrefix, func(account []byte, _ avlstar.KV) error {
		all.List = append(all.List, account)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = records(proposalPrefix, func(account []byte, entry avlstar.KV) error {
		p, err := c.decodeProposal(account, entry.Value)
		if err != nil {
			return fmt.Errorf("client: the proposal of account %x at height %d does not decode: %w", account, all.Height, err)
		}
		all.Proposals = append(all.Proposals, *p)
		return nil
	})
	return all, err
}

// decodeProposal computes the digest from the record itself, so that an approval applies to what is
// displayed.
func (c *Client) decodeProposal(proposer, value []byte) (*Proposal, error) {
	record, err := tx.DecodeProposal(value)
	if err != nil {
		return nil, err
	}
	p := &Proposal{Proposer: proposer, Expires: record.Propose.Expires, Approvals: record.Approvals}
	for i := range record.Propose.Operations {
		p.Operations = append(p.Operations, record.Propose.Operations[i].Operation())
	}
	p.Digest, err = record.Digest(c.ChainID(), proposer)
	return p, err
}

// Propose proposes operations that only admins may send, and approves them. They can be approved up
// to the block at height expires. The client's account must be an admin. An earlier proposal of the
// account is replaced.
func (c *Client) Propose(ctx context.Context, expires uint64, operations ...tx.Operation) (*TxResult, error) {
	operation, err := tx.NewPropose(expires, operations...)
	if err != nil {
		return nil, err
	}
	return c.Submit(ctx, operation)
}

// Approve approves a proposal, exactly as it was read. The client's account must be an admin.
func (c *Client) Approve(ctx context.Context, p *Proposal) (*TxResult, error) {
	return c.Submit(ctx, tx.NewApprove(p.Proposer, p.Digest))
}

// Withdraw withdraws the proposal of the client's account.
func (c *Client) Withdraw(ctx context.Context) (*TxResult, error) {
	return c.Submit(ctx, tx.NewWithdraw())
}

// Executed reports whether this transaction gave a proposal its last required approval.
func (r *TxResult) Executed() bool {
	return len(r.Results) == 1 && len(r.Results[0].Value) == 1 && r.Results[0].Value[0] == 1
}
