package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/types"
)

// DefaultTrustPeriod is how old a header may be for its validators to vouch for newer ones.
const DefaultTrustPeriod = 7 * 24 * time.Hour

const (
	// maxClockDrift is how far in our future a header may lie, as CometBFT's light client has it.
	maxClockDrift = 10 * time.Second
	// headerPatience bounds the wait for the block after the one that was read.
	headerPatience = 30 * time.Second
	// witnessPatience bounds what a witness that lags or hangs costs.
	witnessPatience = 10 * time.Second
	// maxBackwards bounds the headers that are fetched one by one to reach one before all that are trusted.
	maxBackwards = 1000
)

// Trust is where the chain of trust starts: a block header that somebody vouches for, by height and hash, or a genesis document,
// whose validators then vouch for the first block. Where both are given the header counts, and the genesis only names the chain.
type Trust struct {
	Height int64
	Hash   []byte

	Genesis *types.GenesisDoc

	// Period is how long validators are held to what they signed (0: DefaultTrustPeriod). If the header, or the genesis, is older,
	// those who were validators then could have sold their keys since; a header from a block explorer or another node that
	// is trusted must take its place.
	Period time.Duration
}

// verifier is a light client. See the package comment for what it believes.
//
//	trusted:  ──■────────■───■──────────────────■──► height        ■ signed header with its validators
//	                          └─ light.Verify, by halves if the validators changed too much
//	          ◄─ light.VerifyBackwards, header by header
type verifier struct {
	trust     Trust
	chainID   string
	primary   RPC
	witnesses []RPC
	now       func() time.Time

	mu struct {
		sync.Mutex
		trusted []*types.LightBlock // ascending height; the first is the root of trust
	}
}

func newVerifier(trust Trust) (*verifier, error) {
	if trust.Period == 0 {
		trust.Period = DefaultTrustPeriod
	}
	switch {
	case trust.Period < 0:
		return nil, errors.New("client: the trust period is negative")
	case trust.Height > 0 && len(trust.Hash) != 32:
		return nil, fmt.Errorf("client: the trusted header's hash has %d bytes, want 32", len(trust.Hash))
	case trust.Height < 0, trust.Height == 0 && len(trust.Hash) > 0:
		return nil, errors.New("client: a trusted header needs its height")
	case trust.Height == 0 && trust.Genesis == nil:
		return nil, errors.New("client: verification needs a trusted header or a genesis document")
	case trust.Height == 0 && len(trust.Genesis.Validators) == 0:
		return nil, errors.New("client: the trusted genesis document names no validators: give a trusted header")
	}
	return &verifier{trust: trust, now: time.Now}, nil
}

// await waits until the chain has this height and returns its verified header.
func (v *verifier) await(ctx context.Context, height int64) (*types.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, headerPatience)
	defer cancel()
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		header, err := v.header(ctx, height)
		if !errors.Is(err, errNotYet) {
			return header, err
		}
		if pause(ctx, wait) != nil {
			return nil, fmt.Errorf("%w: block %d, whose header proves the state after block %d, did not come in time: is the chain standing still? An older height can be read at once",
				ErrUntrusted, height, height-1)
		}
	}
}

// header returns the verified header of a height, errNotYet if the primary does not have it yet.
func (v *verifier) header(ctx context.Context, height int64) (*types.Header, error) {
	if err := v.start(ctx); err != nil {
		return nil, err
	}
	below, above := v.around(height)
	if below != nil && below.Height == height && below.Commit != nil {
		return below.Header, nil
	}
	if below == nil {
		return v.backwards(ctx, above, height)
	}
	target, err := fetchLightBlock(ctx, v.primary, v.chainID, height)
	if err != nil {
		return nil, err
	}
	path, err := v.forward(ctx, v.primary, below, target)
	if err != nil {
		return nil, fmt.Errorf("%w: header %d of %s: %w", ErrUntrusted, height, v.primary.Remote(), err)
	}
	if err := v.confirm(ctx, below, target); err != nil {
		return nil, err
	}
	v.add(path)
	return target.Header, nil
}

// start puts the root of trust in place.
func (v *verifier) start(ctx context.Context) error {
	v.mu.Lock()
	started := len(v.mu.trusted) > 0
	v.mu.Unlock()
	if started {
		return nil
	}
	if v.trust.Height == 0 {
		root, err := genesisRoot(v.trust.Genesis)
		if err != nil {
			return err
		}
		v.add([]*types.LightBlock{root})
		return nil
	}
	// Any node will do, since the hash is known: the primary may have pruned the block, or have joined after it.
	var failures []error
	for _, from := range append([]RPC{v.primary}, v.witnesses...) {
		root, err := v.trustedHeader(ctx, from)
		if err == nil {
			v.add([]*types.LightBlock{root})
			return nil
		}
		failures = append(failures, err)
	}
	return fmt.Errorf("%w: the trusted header: %w", ErrUntrusted, errors.Join(failures...))
}

// trustedHeader fetches the header that the user vouches for.
func (v *verifier) trustedHeader(ctx context.Context, from RPC) (*types.LightBlock, error) {
	root, err := fetchLightBlock(ctx, from, v.chainID, v.trust.Height)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(root.Hash(), v.trust.Hash) {
		return nil, fmt.Errorf("header %d has hash %X at %s, %X is the trusted one: a wrong hash, or a node that lies", v.trust.Height, root.Hash(), from.Remote(), v.trust.Hash)
	}
	if err := root.ValidatorSet.VerifyCommitLight(v.chainID, root.Commit.BlockID, root.Height, root.Commit); err != nil {
		return nil, fmt.Errorf("signatures of header %d at %s: %w", v.trust.Height, from.Remote(), err)
	}
	return root, nil
}

// genesisRoot stands for a block before the first one, made by the genesis document: light.Verify then holds the first header to
// the genesis validators, or a later one if a third of them signed it. (The first header's time is the genesis time itself.)
func genesisRoot(genesis *types.GenesisDoc) (*types.LightBlock, error) {
	validators := make([]*types.Validator, 0, len(genesis.Validators))
	for _, g := range genesis.Validators {
		validators = append(validators, &types.Validator{PubKey: g.PubKey, VotingPower: g.Power})
	}
	if err := checkValidators(validators); err != nil {
		return nil, fmt.Errorf("client: genesis: %w", err)
	}
	for _, v := range validators { // of a key that was not checked this would panic
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

// around returns the highest trusted block at or below height, and the lowest above; nil where there is none.
func (v *verifier) around(height int64) (below, above *types.LightBlock) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := sort.Search(len(v.mu.trusted), func(i int) bool { return v.mu.trusted[i].Height > height })
	if i > 0 {
		below = v.mu.trusted[i-1]
	}
	if i < len(v.mu.trusted) {
		above = v.mu.trusted[i]
	}
	return below, above
}

// maxTrusted bounds the memory of a client that lives long; the root of trust stays, and the newest ones.
const maxTrusted = 256

func (v *verifier) add(blocks []*types.LightBlock) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range blocks {
		i := sort.Search(len(v.mu.trusted), func(i int) bool { return v.mu.trusted[i].Height >= b.Height })
		if i < len(v.mu.trusted) && v.mu.trusted[i].Height == b.Height {
			continue
		}
		v.mu.trusted = append(v.mu.trusted[:i], append([]*types.LightBlock{b}, v.mu.trusted[i:]...)...)
	}
	if extra := len(v.mu.trusted) - maxTrusted; extra > 0 {
		v.mu.trusted = append(v.mu.trusted[:1], v.mu.trusted[1+extra:]...)
	}
}

// forward verifies target from trusted, with blocks in between fetched from source: the skipping verification of CometBFT's light
// client specification (verification_002_draft.md). It returns the blocks that are verified now, target last.
func (v *verifier) forward(ctx context.Context, source RPC, trusted, target *types.LightBlock) ([]*types.LightBlock, error) {
	var verified []*types.LightBlock
	ahead := []*types.LightBlock{target} // a stack, lowest height on top
	for len(ahead) > 0 {
		next := ahead[len(ahead)-1]
		err := light.Verify(trusted.SignedHeader, trusted.ValidatorSet, next.SignedHeader, next.ValidatorSet, v.trust.Period, v.now(), maxClockDrift, light.DefaultTrustLevel)
		var tooDifferent light.ErrNewValSetCantBeTrusted
		var expired light.ErrOldHeaderExpired
		switch {
		case err == nil:
			verified = append(verified, next)
			trusted, ahead = next, ahead[:len(ahead)-1]
		case errors.As(err, &expired):
			return nil, fmt.Errorf("what is trusted (height %d) is older than the trust period of %v: start from the height and hash of a recent header that you have from somebody you trust (%w)", trusted.Height, v.trust.Period, err)
		case errors.As(err, &tooDifferent) && next.Height > trusted.Height+1:
			pivot, err := fetchLightBlock(ctx, source, v.chainID, trusted.Height+(next.Height-trusted.Height)/2)
			if err != nil {
				return nil, fmt.Errorf("validators changed since height %d, so headers in between are needed: %w", trusted.Height, err)
			}
			ahead = append(ahead, pivot)
		default:
			return nil, err
		}
	}
	return verified, nil
}

// backwards follows the hashes from a trusted header down. Before the first block there is nothing, and care is needed: its
// LastBlockID is empty, and so is the hash of a header that names no validators.
func (v *verifier) backwards(ctx context.Context, from *types.LightBlock, height int64) (*types.Header, error) {
	if height < 1 || height < from.Height-maxBackwards {
		return nil, fmt.Errorf("%w: height %d is too far below the lowest trusted header, %d: start from an older one", ErrUntrusted, height, from.Height)
	}
	trusted := from.Header
	for trusted.Height > height {
		if len(trusted.LastBlockID.Hash) == 0 {
			return nil, fmt.Errorf("%w: the chain starts at height %d, there is no header %d", ErrUntrusted, trusted.Height, height)
		}
		h := trusted.Height - 1
		commit, err := v.primary.Commit(ctx, &h)
		if err != nil {
			return nil, lightError(v.primary, h, err)
		}
		if commit.Header == nil || commit.Header.Height != h {
			return nil, lightError(v.primary, h, errors.New("it sent another header, or none"))
		}
		if err := light.VerifyBackwards(commit.Header, trusted); err != nil {
			return nil, fmt.Errorf("%w: header %d of %s: %w", ErrUntrusted, h, v.primary.Remote(), err)
		}
		trusted = commit.Header
	}
	return trusted, nil
}

// confirm asks every witness for the same header. One that has another one, just as well signed, shows a fork.
func (v *verifier) confirm(ctx context.Context, trusted, target *types.LightBlock) error {
	if len(v.witnesses) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, witnessPatience)
	defer cancel()
	verdicts := make(chan error, len(v.witnesses))
	for _, w := range v.witnesses {
		go func() { verdicts <- v.ask(ctx, w, trusted, target) }()
	}
	confirmed := false
	var failures []error
	for range v.witnesses {
		switch err := <-verdicts; {
		case err == nil:
			confirmed = true
		case errors.Is(err, ErrConflict):
			return err
		default:
			failures = append(failures, err)
		}
	}
	if confirmed {
		return nil
	}
	return fmt.Errorf("%w: no witness confirms header %d of %s (with a single address nobody is asked): %w", ErrUntrusted, target.Height, v.primary.Remote(), errors.Join(failures...))
}

// ask returns nil if the witness has target, ErrConflict if it has another header that verifies, else why it is no witness.
func (v *verifier) ask(ctx context.Context, witness RPC, trusted, target *types.LightBlock) error {
	for wait := firstPoll; ; wait = min(2*wait, longPoll) {
		theirs, err := fetchLightBlock(ctx, witness, v.chainID, target.Height)
		switch {
		case errors.Is(err, errNotYet):
			if pause(ctx, wait) != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case bytes.Equal(theirs.Hash(), target.Hash()):
			return nil
		}
		if _, err := v.forward(ctx, witness, trusted, theirs); err != nil {
			return fmt.Errorf("%s has another header, which does not verify: %w", witness.Remote(), err)
		}
		return fmt.Errorf("%w %d: %X at %s, %X at %s. More than a third of the validators signed both; do not rely on this chain before its operators have looked at it",
			ErrConflict, target.Height, target.Hash(), v.primary.Remote(), theirs.Hash(), witness.Remote())
	}
}

var errNotYet = errors.New("the node does not have this block yet")

// fetchLightBlock fetches a header with its commit and validators from a node and checks that they belong together, but not
// whether anybody trusts them.
func fetchLightBlock(ctx context.Context, from RPC, chainID string, height int64) (*types.LightBlock, error) {
	commit, err := from.Commit(ctx, &height)
	if err != nil {
		return nil, lightError(from, height, err)
	}
	validators, err := fetchValidators(ctx, from, height)
	if err != nil {
		return nil, lightError(from, height, err)
	}
	if err := checkValidators(validators); err != nil {
		return nil, fmt.Errorf("%w: block %d at %s: %w", ErrUntrusted, height, from.Remote(), err)
	}
	set, err := types.ValidatorSetFromExistingValidators(validators)
	if err != nil {
		return nil, fmt.Errorf("%w: block %d at %s: %w", ErrUntrusted, height, from.Remote(), err)
	}
	block := &types.LightBlock{SignedHeader: &commit.SignedHeader, ValidatorSet: set}
	if err := block.ValidateBasic(chainID); err != nil {
		return nil, fmt.Errorf("%w: block %d at %s: %w", ErrUntrusted, height, from.Remote(), err)
	}
	if block.Height != height {
		return nil, fmt.Errorf("%w: block %d at %s: it sent block %d", ErrUntrusted, height, from.Remote(), block.Height)
	}
	return block, nil
}

// fetchValidators reads the pages of a validator set. CometBFT allows types.MaxVotesCount validators and fills every page but the
// last, so a node cannot make us read on for ever, nor one by one.
func fetchValidators(ctx context.Context, from RPC, height int64) ([]*types.Validator, error) {
	var all []*types.Validator
	perPage := 100
	for page := 1; ; page++ {
		result, err := from.Validators(ctx, &height, &page, &perPage)
		if err != nil {
			return nil, err
		}
		all = append(all, result.Validators...)
		if len(result.Validators) < perPage || len(all) >= result.Total {
			return all, nil
		}
		if len(all) > types.MaxVotesCount {
			return nil, fmt.Errorf("more than %d validators", types.MaxVotesCount)
		}
	}
}

// checkValidators refuses what makes CometBFT's validator sets panic: keys of a wrong length (Starling's are ed25519 all), the same
// validator twice, no voting power or too much.
func checkValidators(validators []*types.Validator) error {
	if len(validators) == 0 {
		return errors.New("no validators")
	}
	total, seen := int64(0), make(map[string]bool, len(validators))
	for i, v := range validators {
		if v == nil || v.VotingPower < 0 || v.VotingPower > types.MaxTotalVotingPower-total {
			return fmt.Errorf("validator %d is none, or has an impossible power", i)
		}
		key, ok := v.PubKey.(ed25519.PubKey)
		if !ok || len(key) != ed25519.PubKeySize {
			return fmt.Errorf("validator %d has no ed25519 key", i)
		}
		if seen[string(key)] {
			return fmt.Errorf("validator %d is there twice", i)
		}
		seen[string(key)] = true
		total += v.VotingPower
	}
	if total == 0 {
		return errors.New("the validators have no power")
	}
	return nil
}

// lightError sorts CometBFT's answers, of which there is only the text (rpc/core/env.go, getHeight).
func lightError(from RPC, height int64, err error) error {
	if answered(err) && strings.Contains(err.Error(), "must be less than or equal to") {
		return fmt.Errorf("block %d at %s: %w", height, from.Remote(), errNotYet)
	}
	return fmt.Errorf("block %d at %s: %w", height, from.Remote(), err)
}
