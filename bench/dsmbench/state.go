package dsmbench

import (
	"context"

	abci "github.com/cometbft/cometbft/abci/types"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/appstore"
)

// firstHeight is the height of the state before the first block of transfers.
const firstHeight = 1

// loadBatch is the number of keys written at a time.
const loadBatch = 50_000

// newState makes the state before the first block, which the caller must release: the state of an
// application after genesis and an empty block, with the accounts, and a grant and a nonce for each
// signer.
func newState(g *generator, done func(keys int)) (*avlstar.Version, error) {
	v, err := afterGenesis()
	if err != nil {
		return nil, err
	}
	var changes []avlstar.Change
	put := func(key, value []byte) { changes = append(changes, avlstar.Change{Key: key, Value: value}) }
	flush := func() error {
		next, err := v.Apply(changes)
		if err != nil {
			return err
		}
		v.Release()
		done(len(changes))
		v, changes = next, changes[:0]
		return nil
	}
	put(app.CoverKey([]byte{accountPrefix}), uint64Value(uint64(g.Signers)))
	for i := range g.Signers {
		account := g.account(i)
		put(app.GrantKey(account, []byte{accountPrefix}), uint64Value(0))
		put(app.NonceKey(account), uint64Value(g.nonces[i]))
	}
	for i := range g.Keys {
		put(g.key(i), g.value(i))
		if len(changes) >= loadBatch {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return v, flush()
}

// afterGenesis returns the state after an empty block.
func afterGenesis() (*avlstar.Version, error) {
	ctx := context.Background()
	a, err := app.New(app.Options{Store: &appstore.Memory{}, ChainID: chainID})
	if err != nil {
		return nil, err
	}
	params := cmttypes.DefaultConsensusParams()
	params.Block.MaxBytes = 4 << 20
	proto := params.ToProto()
	validator := newGenerator(spec{Keys: 10, Signers: 1}).account(0)
	if _, err := a.InitChain(ctx, &abci.RequestInitChain{
		ChainId: chainID, InitialHeight: firstHeight, ConsensusParams: &proto, AppStateBytes: []byte(`{"admins": [], "grants": []}`),
		Validators: []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(validator, 10)},
	}); err != nil {
		return nil, err
	}
	if _, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: firstHeight}); err != nil {
		return nil, err
	}
	if _, err := a.Commit(ctx, &abci.RequestCommit{}); err != nil {
		return nil, err
	}
	_, v := a.Latest()
	return v, nil
}
