package lightblocks

import (
	"bytes"
	"testing"
	"time"

	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync/lightclient"
)

func TestHeights(t *testing.T) {
	for _, h := range []int64{0, 1, 1 << 40, 1<<63 - 1} {
		got, err := decodeHeight(encodeHeight(h))
		require.NoError(t, err)
		require.Equal(t, h, got)
	}
	for _, body := range [][]byte{nil, make([]byte, 7), make([]byte, 9), encodeHeight(-1)} {
		_, err := decodeHeight(body)
		require.Error(t, err)
	}
}

func TestLightBlockTravels(t *testing.T) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	for _, lb := range c.blocks {
		body, err := encodeLightBlock(lb)
		require.NoError(t, err)
		got, err := decodeLightBlock(body, testChain, lb.Height)
		require.NoError(t, err)
		require.Equal(t, lb.Hash(), got.Hash())
		require.Equal(t, lb.ValidatorSet.ProposerPriorityHash(), got.ValidatorSet.ProposerPriorityHash())
		require.NoError(t, lightclient.CheckCommit(got))

		_, err = decodeLightBlock(body, testChain, lb.Height+1)
		require.ErrorContains(t, err, "height")
		_, err = decodeLightBlock(body, "another", lb.Height)
		require.ErrorContains(t, err, "chain")
		_, err = decodeLightBlock(body[:len(body)-1], testChain, 0)
		require.Error(t, err)
	}
}

// largestLightBlock returns a light block of CometBFT's largest validator set, whose validators are
// all the same.
func largestLightBlock(t *testing.T) *types.LightBlock {
	t.Helper()
	c := sharedChain(chainOptions{heights: 3, validators: 4})
	lb := copyBlock(c.blocks[1])
	one := lb.ValidatorSet.Validators[0]
	lb.ValidatorSet.Validators, lb.Commit.Signatures = nil, nil
	for range types.MaxVotesCount {
		val := one.Copy()
		val.VotingPower, val.ProposerPriority = 1<<40, -1<<62
		lb.ValidatorSet.Validators = append(lb.ValidatorSet.Validators, val)
		lb.Commit.Signatures = append(lb.Commit.Signatures, types.CommitSig{BlockIDFlag: types.BlockIDFlagCommit,
			ValidatorAddress: one.Address, Timestamp: time.Unix(1<<33, 999999999), Signature: bytes.Repeat([]byte{7}, 64)})
	}
	return lb
}

// The limit is well above the size of a light block of CometBFT's largest validator set.
func TestLargestLightBlockFits(t *testing.T) {
	body, err := encodeLightBlock(largestLightBlock(t))
	require.NoError(t, err)
	t.Logf("%d validators: %d bytes", types.MaxVotesCount, len(body))
	require.Less(t, len(body), MaxLightBlock)
}

// CometBFT's conversion from protobuf would panic over these parameters.
func TestIncompleteParamsAreRefused(t *testing.T) {
	good := types.DefaultConsensusParams().ToProto()
	body, err := good.Marshal()
	require.NoError(t, err)
	params, err := decodeParams(body)
	require.NoError(t, err)
	require.Equal(t, types.DefaultConsensusParams().Hash(), params.Hash())
	for _, pb := range []cmtproto.ConsensusParams{{}, {Block: good.Block}, {Block: good.Block, Evidence: good.Evidence, Validator: good.Validator}} {
		body, err := pb.Marshal()
		require.NoError(t, err)
		_, err = decodeParams(body)
		require.ErrorContains(t, err, "missing")
	}
	bad := *good.Block
	bad.MaxBytes = -7
	body, err = (&cmtproto.ConsensusParams{Block: &bad, Evidence: good.Evidence, Validator: good.Validator, Version: good.Version}).Marshal()
	require.NoError(t, err)
	_, err = decodeParams(body)
	require.Error(t, err)
}

func testEvidence(t testing.TB) types.Evidence {
	t.Helper()
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	return newEvidence(c.fork(8).blocks[7], c.blocks[7], c.blocks[6])
}

// FuzzDecoders: any input yields either an error or a value that encodes and decodes to itself.
func FuzzDecoders(f *testing.F) {
	c := sharedChain(chainOptions{heights: 12, validators: 4, turnover: 5})
	for _, lb := range c.blocks[3:6] {
		body, err := encodeLightBlock(lb)
		require.NoError(f, err)
		f.Add(body)
	}
	body, err := encodeParams(c.params)
	require.NoError(f, err)
	f.Add(body)
	body, err = encodeEvidence(testEvidence(f))
	require.NoError(f, err)
	f.Add(body)
	f.Add(encodeHeight(7))
	f.Fuzz(func(t *testing.T, body []byte) {
		if lb, err := decodeLightBlock(body, testChain, 0); err == nil {
			again, err := encodeLightBlock(lb)
			require.NoError(t, err)
			same, err := decodeLightBlock(again, testChain, lb.Height)
			require.NoError(t, err)
			require.Equal(t, lb.Hash(), same.Hash())
			_ = lightclient.CheckCommit(lb)
			_ = lightclient.Guard(func() error { _, err := successor(lb.ValidatorSet, lb.ValidatorSet); return err })
			sane(lb.ValidatorSet)
			withoutWrongSignatures(lb)
		}
		if params, err := decodeParams(body); err == nil {
			again, err := encodeParams(params)
			require.NoError(t, err)
			same, err := decodeParams(again)
			require.NoError(t, err)
			require.Equal(t, params.Hash(), same.Hash())
		}
		if ev, err := decodeEvidence(body); err == nil {
			_, err := encodeEvidence(ev)
			require.NoError(t, err)
		}
		if h, err := decodeHeight(body); err == nil {
			require.Equal(t, body, encodeHeight(h))
		}
	})
}
