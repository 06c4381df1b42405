package client

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cometbft/cometbft/crypto/ed25519"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/tx"
)

// validatorPrefix is the prefix of the keys of the validators' records (docs/spec/records.md).
var validatorPrefix = []byte{tx.Reserved, 'v'}

// Validators are the validators of a state, in key order. Their powers sum up to at most
// types.MaxTotalVotingPower. A change takes effect in CometBFT two blocks later.
type Validators struct {
	State
	List []Validator
}

// Validator is a validator of a state.
type Validator struct {
	PublicKey []byte // ed25519
	Power     uint64
	Signed    bool // it signed the block at the state's height; unverified
}

// Validators reads the validators' records, like Scan, and the signatures of that block.
func (c *Client) Validators(ctx context.Context, options ...ReadOption) (*Validators, error) {
	// A single page, whose state Range reports. The number of validators is below its limit.
	page, err := c.Range(ctx, validatorPrefix, PrefixEnd(validatorPrefix), append(options, Limit(types.MaxVotesCount))...)
	if err != nil {
		return nil, err
	}
	if page.Next != nil {
		return nil, fmt.Errorf("client: the node did not send the records of all validators of height %d in one page", page.Height)
	}
	result, _, err := ask(ctx, c.pool, question[*ctypes.ResultCommit]{
		what: fmt.Sprintf("commit %d", page.Height),
		call: func(ctx context.Context, e *endpoint) (*ctypes.ResultCommit, error) {
			result, err := e.Commit(ctx, &page.Height)
			if err == nil && (result == nil || result.Commit == nil || result.Commit.Height != page.Height) {
				return nil, fmt.Errorf("%w: the node's answer is not the requested commit", ErrUnproved)
			}
			return result, err
		},
	})
	if err != nil {
		return nil, err
	}
	signed := make(map[string]bool)
	for _, s := range result.Commit.Signatures {
		if s.BlockIDFlag == types.BlockIDFlagCommit {
			signed[string(s.ValidatorAddress)] = true
		}
	}
	all, sum := &Validators{State: page.State}, uint64(0)
	for _, entry := range page.Entries {
		publicKey := entry.Key[len(validatorPrefix):]
		if len(publicKey) != tx.AccountBytes || len(entry.Value) != 8 {
			return nil, fmt.Errorf("client: the record of a validator at height %d does not decode", page.Height)
		}
		power := binary.BigEndian.Uint64(entry.Value)
		if power > uint64(types.MaxTotalVotingPower)-sum {
			return nil, fmt.Errorf("client: the powers of the validators at height %d sum up to more than %d", page.Height, types.MaxTotalVotingPower)
		}
		sum += power
		all.List = append(all.List, Validator{publicKey, power, signed[string(ed25519.PubKey(publicKey).Address())]})
	}
	return all, nil
}
