package app

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"

	"github.com/starling-kv/starling/tx"
)

// If the validators of a chain do not sign, the chain halts forever, and no transaction can repair
// it. So a transaction must not give a third of the power to keys that are not known to sign:
//
//	signing = validators that signed the block before, according to this block's own last commit
//	        ∪ validators that this transaction confirms
//
//	refused ⇔ its changes lower the share of the power that signing has, to two thirds or less
//
// The records count, not the set that is in force: changes of the last two blocks, which CometBFT
// has not put in force yet, count as if they were. The first block has no commit before it; there
// the validators of genesis count as signing.

// Share is the power of the validators that sign, as a share of the total power.
type Share struct {
	Signing uint64
	Total   uint64 // at most MaxTotalPower
}

// decides reports whether s is more than two thirds, which is enough for a block (CometBFT
// types/validation.go VerifyCommit).
func (s Share) decides() bool { return 3*s.Signing > 2*s.Total }

// below reports whether s is a smaller share than o.
func (s Share) below(o Share) bool {
	high, low := bits.Mul64(s.Signing, o.Total)
	otherHigh, otherLow := bits.Mul64(o.Signing, s.Total)
	return high < otherHigh || high == otherHigh && low < otherLow
}

// MayHalt reports whether a change from before to s must be refused because it could halt the
// chain.
func (s Share) MayHalt(before Share) bool { return s.below(before) && !s.decides() }

// String formats s for people. The percentage is rounded down, so that two thirds or less never
// look like more.
func (s Share) String() string {
	high, low := bits.Mul64(s.Signing, 1000)
	permille, _ := bits.Div64(high, low, max(s.Total, 1)) // at most 1000
	return fmt.Sprintf("%d of %d (%d.%d %%)", s.Signing, s.Total, permille/10, permille%10)
}

// lastSigners returns the addresses of the validators that signed the last block, or nil if there
// is no block before.
func lastSigners(commit abci.CommitInfo) [][]byte {
	var signed [][]byte
	for _, vote := range commit.Votes {
		signed = addSigner(signed, vote.Validator, vote.BlockIdFlag)
	}
	return signed
}

// proposedSigners does what lastSigners does, for a proposer, whose last commit becomes that of its
// block.
func proposedSigners(commit abci.ExtendedCommitInfo) [][]byte {
	var signed [][]byte
	for _, vote := range commit.Votes {
		signed = addSigner(signed, vote.Validator, vote.BlockIdFlag)
	}
	return signed
}

// addSigner appends the validator to signed if its vote is for the block. The result is never nil.
func addSigner(signed [][]byte, v abci.Validator, flag cmtproto.BlockIDFlag) [][]byte {
	if signed == nil {
		signed = [][]byte{}
	}
	if flag == cmtproto.BlockIDFlagCommit {
		signed = append(signed, v.Address)
	}
	return signed
}

// signs reports whether a validator counts as signing, confirmed or not.
func (x *executor) signs(publicKey []byte) (bool, error) {
	if x.signed == nil { // the first block
		value, err := x.inBase(ValidatorKey(publicKey))
		return value != nil, err
	}
	if x.signers == nil {
		x.signers = make(map[string]struct{}, len(x.signed))
		for _, address := range x.signed {
			x.signers[string(address)] = struct{}{}
		}
	}
	_, ok := x.signers[string(ed25519.PubKey(publicKey).Address())]
	return ok, nil
}

// validatorChange is the change that one transaction makes to the validators.
type validatorChange struct {
	before Share // without the confirmations of the transaction
	keys   map[string]changedValidator
}

type changedValidator struct {
	before, after    uint64 // power
	signs, confirmed bool
}

func newValidatorChange(before Share) *validatorChange {
	return &validatorChange{before: before, keys: make(map[string]changedValidator)}
}

// note records an operation on a validator.
func (c *validatorChange) note(op *tx.SetValidator, old uint64, signs bool) {
	v, ok := c.keys[string(op.PublicKey)]
	if !ok {
		v = changedValidator{before: old, signs: signs}
	}
	v.after, v.confirmed = op.Power, v.confirmed || op.Confirmed
	c.keys[string(op.PublicKey)] = v
}

// judge refuses the change if it may halt the chain. after is the share at the end of the
// transaction, without its confirmations.
func (c *validatorChange) judge(after Share) *tx.Error {
	before := c.before
	for _, v := range c.keys { // only sums, so the order does not matter
		if v.confirmed && !v.signs {
			before.Signing += v.before
			after.Signing += v.after
		}
	}
	if !after.MayHalt(before) {
		return nil
	}
	return tx.Errorf(tx.CodeUnconfirmed, "the power of validators that signed the last block, or that this transaction confirms, would be %v, and is %v now: "+
		"with two thirds or less the chain halts; confirm the validators whose nodes sign%s", after, before, c.unconfirmed())
}

// unconfirmed names some of the keys that the transaction could confirm.
func (c *validatorChange) unconfirmed() string {
	const most = 3
	var names []string
	for _, k := range slices.Sorted(maps.Keys(c.keys)) {
		if v := c.keys[k]; !v.signs && !v.confirmed && v.after > 0 {
			names = append(names, fmt.Sprintf("%x", k))
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case len(names) > most:
		names = append(names[:most], "…")
	}
	return ": " + strings.Join(names, ", ")
}
