package app

import (
	"errors"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/tx"
)

// CometBFT halts the chain if it refuses a validator update. So everything that CometBFT checks is
// checked here, when the operation is executed:
//
//   - state/execution.go validateValidatorUpdates: no negative power, a key type that the consensus
//     parameters allow (InitChain requires ed25519 among them);
//   - types/validator_set.go updateWithChangeSet: no duplicates (there is one record and one update
//     per validator), no removal of an absent validator (only differences between blocks are
//     reported), never an empty set, a limited sum of powers;
//   - types/block.go MaxDataBytes panics if block.max_bytes leaves no room for the signatures of
//     all validators, and types/vote_set.go accepts at most MaxVotesCount votes: hence
//     max_validators.
const (
	// validatorBytes is the maximum length of a validator's signature in a commit: 3,358 bytes in
	// CometBFT v0.40 (MaxCommitSigBytes plus its overhead, sized for post-quantum signatures),
	// rounded up. It is a constant of this package because all nodes must compute the same number.
	validatorBytes = 3_400

	// blockReserve is the part of a block that must remain for its header, the frame of the commit,
	// and transactions.
	blockReserve = 64 << 10

	mostValidators = 10_000 // types.MaxVotesCount
)

// validators is the number of validators and the sum of their powers in an overlay.
type validators struct {
	count int
	power Share
}

func (v *validators) clone() *validators {
	if v == nil {
		return nil
	}
	c := *v
	return &c
}

// countValidators sums up the validators' records at first use; setValidator updates the sum.
func (x *executor) countValidators() (*validators, error) {
	if x.validators != nil {
		return x.validators, nil
	}
	start := record(tagValidator)
	end := keyspace.PrefixEnd(start)
	v := &validators{}
	for kv, err := range x.base.Ascend(start, end) {
		if err != nil {
			return nil, x.lacked(err, avlstar.Want{Range: true, Key: start, After: end})
		}
		signs, err := x.signs(kv.Key[len(start):])
		if err != nil {
			return nil, err
		}
		v.replace(0, decodeUint64(kv.Value), signs)
	}
	var failed error
	x.ascend(start, end, func(e *overlayEntry) {
		signs, err := x.signs(e.key[len(start):])
		if err != nil {
			failed = err
		}
		v.replace(decodeUint64(e.before.value), decodeUint64(e.value.value), signs)
	})
	if failed != nil {
		return nil, failed
	}
	x.validators = v
	return v, nil
}

func (v *validators) replace(old, new uint64, signs bool) {
	v.power.Total += new - old // modulo 2⁶⁴: the sum is never negative
	if signs {
		v.power.Signing += new - old
	}
	if old == 0 && new != 0 {
		v.count++
	} else if old != 0 && new == 0 {
		v.count--
	}
}

func (x *executor) setValidator(account []byte, op *tx.SetValidator) (bool, *abci.Event, error) {
	if err := x.onlyAdmin(account, "change validators"); err != nil {
		return false, nil, err
	}
	key := ValidatorKey(op.PublicKey)
	record, err := x.get(key)
	if err != nil {
		return false, nil, err
	}
	signs, err := x.signs(op.PublicKey)
	if err != nil {
		return false, nil, err
	}
	counted, err := x.countValidators()
	if err != nil {
		return false, nil, err
	}
	old, after := decodeUint64(record), *counted
	if op.Power > MaxTotalPower { // checked first, so that the sum cannot overflow
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "power %d is above the limit for the sum of all powers, %d", op.Power, uint64(MaxTotalPower))
	}
	after.replace(old, op.Power, signs)
	switch {
	case after.count == 0:
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "validator %x is the last one: add another first", op.PublicKey)
	case after.power.Total > MaxTotalPower:
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "the powers would add up to %d, at most %d is allowed", after.power.Total, uint64(MaxTotalPower))
	case old == 0 && after.count > int(x.params.MaxValidators):
		return false, nil, tx.Errorf(tx.CodeInvalidChange, "there are %d validators, the most for which block.max_bytes of genesis leaves room", x.params.MaxValidators)
	}
	if x.changed == nil {
		x.changed = newValidatorChange(counted.power)
	}
	x.changed.note(op, old, signs)
	x.validators = &after
	var value []byte
	if op.Power > 0 {
		value = encodeUint64(op.Power)
	}
	event, err := x.write(key, value, KindValidator)
	return old != 0, event, err
}

// validatorUpdates lists the validators that differ from base, in the order of their keys.
func (o *overlay) validatorUpdates() []abci.ValidatorUpdate {
	start := record(tagValidator)
	var updates []abci.ValidatorUpdate
	o.ascend(start, keyspace.PrefixEnd(start), func(e *overlayEntry) {
		if power := decodeUint64(e.value.value); power != decodeUint64(e.before.value) {
			updates = append(updates, abci.Ed25519ValidatorUpdate(e.key[len(start):], int64(power)))
		}
	})
	return updates
}

// genesisValidators checks the validators of InitChain and writes their records.
func genesisValidators(o *overlay, updates []abci.ValidatorUpdate, most uint32) error {
	var sum uint64
	if len(updates) == 0 {
		return errors.New("genesis: no validators: add one to \"validators\"")
	}
	if len(updates) > int(most) {
		return fmt.Errorf("genesis: %d validators, but consensus_params.block.max_bytes leaves room for the signatures of %d: raise it",
			len(updates), most)
	}
	for i, update := range updates {
		publicKey := update.PubKey.GetEd25519()
		if len(publicKey) != AccountBytes {
			return fmt.Errorf("genesis: validators[%d] has no ed25519 public key: Starling takes no other type", i)
		}
		if update.Power < 1 || uint64(update.Power) > MaxTotalPower {
			return fmt.Errorf("genesis: validators[%d] has power %d, it must be from 1 to %d", i, update.Power, uint64(MaxTotalPower))
		}
		if sum += uint64(update.Power); sum > MaxTotalPower {
			return fmt.Errorf("genesis: the validators' powers sum up to more than %d", uint64(MaxTotalPower))
		}
		old, err := o.set(ValidatorKey(publicKey), encodeUint64(uint64(update.Power)))
		if err != nil {
			return err
		}
		if old.present() {
			return fmt.Errorf("genesis: validators[%d] is repeated", i)
		}
	}
	return nil
}

// maxValidators checks the consensus parameters and returns the number of validators for which they
// leave room.
func maxValidators(p *cmtproto.ConsensusParams) (uint32, error) {
	if p == nil || p.Block == nil || p.Evidence == nil || p.Validator == nil {
		return 0, errors.New("InitChain came without consensus parameters: CometBFT sends those of the genesis file")
	}
	params := cmttypes.DefaultConsensusParams().Update(p)
	if err := params.ValidateBasic(); err != nil {
		return 0, fmt.Errorf("genesis: consensus_params: %w", err)
	}
	if !cmttypes.IsValidPubkeyType(params.Validator, cmttypes.ABCIPubKeyTypeEd25519) {
		return 0, fmt.Errorf("genesis: consensus_params.validator.pub_key_types is %v, it must hold %q", params.Validator.PubKeyTypes,
			cmttypes.ABCIPubKeyTypeEd25519)
	}
	blockBytes := params.Block.MaxBytes
	if blockBytes == -1 {
		blockBytes = cmttypes.MaxBlockSizeBytes
	}
	n := (blockBytes - params.Evidence.MaxBytes - blockReserve) / validatorBytes
	if n < 1 {
		return 0, fmt.Errorf("genesis: consensus_params.block.max_bytes is %d: it must exceed evidence.max_bytes (%d) by %d or more",
			blockBytes, params.Evidence.MaxBytes, blockReserve+validatorBytes)
	}
	return uint32(min(n, mostValidators)), nil
}

// ValidatorPower returns the voting power of a validator in a state, or 0 if it is not a validator.
func ValidatorPower(v *avlstar.Version, publicKey []byte) (uint64, error) {
	value, _, err := v.Get(ValidatorKey(publicKey))
	return decodeUint64(value), err
}
