package storagenode

import (
	"bytes"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/internal/nodetest"
)

// A start continues from the newest header that was proved here or that the operator trusts, but
// not from one that is older than the trust period: its validators may have left.
func TestTrust(t *testing.T) {
	home, _ := nodetest.Home(t, nil)
	conf := nodetest.Load(t, home)
	doc, err := config.LoadGenesis(conf.CometBFT.GenesisFile())
	require.NoError(t, err)
	period := conf.CometBFT.StateSync.TrustPeriod
	doc.GenesisTime = time.Now().Add(-2 * period)
	own, setting := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for name, c := range map[string]struct {
		saved   int64 // height of the header that was proved here; 0: none
		age     time.Duration
		setting int64 // 0: none
		want    []byte
		err     string
	}{
		"proved here":              {70, time.Hour, 0, own, ""},
		"an older setting":         {70, time.Hour, 60, own, ""},
		"a newer setting":          {70, time.Hour, 80, setting, ""},
		"too old, with a setting":  {90, period + time.Hour, 80, setting, ""},
		"too old, without setting": {90, period + time.Hour, 0, nil, "older than statesync.trust_period"},
		"neither":                  {0, 0, 0, nil, "older than statesync.trust_period"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Process{config: conf, genesis: doc, log: log.NewNopLogger()}
			n.headers.init()
			require.NoError(t, os.RemoveAll(n.trustedPath()))
			if c.saved > 0 {
				n.headers.add(proved{height: c.saved, hash: own, time: time.Now().Add(-c.age)})
			}
			n.saveTrust()
			conf.CometBFT.StateSync.TrustHeight, conf.CometBFT.StateSync.TrustHash = c.setting, hex.EncodeToString(setting)
			o, err := n.trust(t.Context(), nil)
			if c.err != "" {
				require.ErrorIs(t, err, config.ErrInvalid)
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, o.TrustHash)
			require.Equal(t, map[bool]int64{true: c.saved, false: c.setting}[bytes.Equal(c.want, own)], o.TrustHeight)
		})
	}
}

// The first header is trusted only if the validators of the genesis file have signed it.
func TestSignedByGenesis(t *testing.T) {
	validator, stranger := cmttypes.NewMockPV(), cmttypes.NewMockPV()
	setOf := func(pv cmttypes.MockPV) *cmttypes.ValidatorSet {
		return cmttypes.NewValidatorSet([]*cmttypes.Validator{cmttypes.NewValidator(pv.PrivKey.PubKey(), 10)})
	}
	block := func(set *cmttypes.ValidatorSet, signer cmttypes.MockPV) *cmttypes.LightBlock {
		header := &cmttypes.Header{ChainID: "chain", Height: 1, ValidatorsHash: set.Hash()}
		id := cmttypes.BlockID{Hash: header.Hash(), PartSetHeader: cmttypes.PartSetHeader{Total: 1, Hash: make([]byte, 32)}}
		vote := &cmtproto.Vote{Type: cmtproto.PrecommitType, Height: 1, BlockID: id.ToProto()}
		require.NoError(t, signer.SignVote("chain", vote))
		commit := &cmttypes.Commit{Height: 1, BlockID: id, Signatures: []cmttypes.CommitSig{{
			BlockIDFlag: cmttypes.BlockIDFlagCommit, ValidatorAddress: set.Validators[0].Address, Signature: vote.Signature,
		}}}
		return &cmttypes.LightBlock{SignedHeader: &cmttypes.SignedHeader{Header: header, Commit: commit}, ValidatorSet: set}
	}
	genesis := setOf(validator)
	require.NoError(t, signedByGenesis(block(genesis, validator), genesis))
	require.ErrorContains(t, signedByGenesis(block(setOf(stranger), stranger), genesis), "not those of the genesis file")
	require.ErrorContains(t, signedByGenesis(block(genesis, stranger), genesis), "signature")
}
