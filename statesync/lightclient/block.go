package lightclient

import (
	"errors"
	"fmt"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/types"
)

// CheckBasic checks everything but signatures: that a light block is complete, consistent in
// itself, and of the given chain and height (0: any height). It never panics.
func CheckBasic(lb *types.LightBlock, chainID string, height int64) error {
	if lb == nil {
		return errors.New("it is empty")
	}
	if err := Guard(func() error { return lb.ValidateBasic(chainID) }); err != nil {
		return err
	}
	if height != 0 && lb.Height != height {
		return fmt.Errorf("it is of height %d, not %d", lb.Height, height)
	}
	return nil
}

// NewBlock assembles a light block from the parts that RPC delivers, and checks it as CheckBasic
// does. Unlike there, height 0 is not a wildcard. Proposer priorities are those of the validators.
func NewBlock(header *types.SignedHeader, validators []*types.Validator, chainID string, height int64) (*types.LightBlock, error) {
	if err := checkValidators(validators); err != nil {
		return nil, err
	}
	set, err := types.ValidatorSetFromExistingValidators(validators)
	if err != nil {
		return nil, err
	}
	lb := &types.LightBlock{SignedHeader: header, ValidatorSet: set}
	if err := CheckBasic(lb, chainID, 0); err != nil {
		return nil, err
	}
	if lb.Height != height {
		return nil, fmt.Errorf("it is of height %d, not %d", lb.Height, height)
	}
	return lb, nil
}

// GenesisRoot returns an artificial block before the first one, made from the genesis document.
// From it, Follows verifies the first header with the genesis validators, and a later header if a
// third of them signed it. Its time is just before the genesis time, which is the time of the first
// header. It has no commit, because nobody signed it.
func GenesisRoot(genesis *types.GenesisDoc) (*types.LightBlock, error) {
	validators := make([]*types.Validator, 0, len(genesis.Validators))
	for _, g := range genesis.Validators {
		validators = append(validators, &types.Validator{PubKey: g.PubKey, VotingPower: g.Power})
	}
	if err := checkValidators(validators); err != nil {
		return nil, fmt.Errorf("genesis: %w", err)
	}
	for _, v := range validators { // Address panics over keys that were not checked
		v.Address = v.PubKey.Address()
	}
	set := types.NewValidatorSet(validators)
	header := &types.Header{
		ChainID:            genesis.ChainID,
		Height:             max(genesis.InitialHeight, 1) - 1,
		Time:               genesis.GenesisTime.Add(-time.Nanosecond),
		ValidatorsHash:     set.Hash(),
		NextValidatorsHash: set.Hash(),
	}
	return &types.LightBlock{SignedHeader: &types.SignedHeader{Header: header}, ValidatorSet: set}, nil
}

// checkValidators refuses validators that make CometBFT's validator sets panic: keys of a wrong
// length (Starling's are all ed25519), duplicate validators, and impossible voting powers.
func checkValidators(validators []*types.Validator) error {
	if len(validators) == 0 {
		return errors.New("no validators")
	}
	total, seen := int64(0), make(map[string]bool, len(validators))
	for i, v := range validators {
		if v == nil || v.VotingPower < 0 || v.VotingPower > types.MaxTotalVotingPower-total {
			return fmt.Errorf("validator %d is missing or has an impossible power", i)
		}
		key, ok := v.PubKey.(ed25519.PubKey)
		if !ok || len(key) != ed25519.PubKeySize {
			return fmt.Errorf("validator %d has no ed25519 key", i)
		}
		if seen[string(key)] {
			return fmt.Errorf("validator %d is listed twice", i)
		}
		seen[string(key)] = true
		total += v.VotingPower
	}
	if total == 0 {
		return errors.New("the validators have no power")
	}
	return nil
}
