package client

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cometbft/cometbft/crypto/ed25519"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

func validatorRecord(publicKey []byte, power uint64) avlstar.Change {
	return avlstar.Change{Key: append([]byte{0, 'v'}, publicKey...), Value: binary.BigEndian.AppendUint64(nil, power)}
}

func believing(t *testing.T, node RPC) *Client {
	c, err := New(testContext(t), []RPC{node})
	require.NoError(t, err)
	return c
}

// TestValidators: Validators returns the records of the state and the signatures of its block. A
// vote for nil does not count, and neither does that of a key without a record.
func TestValidators(t *testing.T) {
	chain := newFakeChain(t)
	want, changes := map[string]Validator{}, []avlstar.Change{}
	for i, v := range chain.validators[:3] {
		pub, err := v.GetPubKey()
		require.NoError(t, err)
		want[string(pub.Bytes())] = Validator{pub.Bytes(), uint64(i + 1), true}
		changes = append(changes, validatorRecord(pub.Bytes(), uint64(i+1)))
	}
	unknown := ed25519.GenPrivKeyFromSecret([]byte("unknown")).PubKey().Bytes()
	want[string(unknown)] = Validator{unknown, 96, false}
	changes = append(changes, validatorRecord(unknown, 96), avlstar.Change{Key: []byte{0, 'w'}, Value: []byte("x")})
	slices.SortFunc(changes, func(a, b avlstar.Change) int { return bytes.Compare(a.Key, b.Key) })
	chain.block(changes)
	chain.grow(2)

	honest := &fakeNode{chain: chain, name: "primary"}
	for name, c := range map[string]*Client{"believing": believing(t, honest), "verifying": trusting(t, Trust{Genesis: chain.genesis()}, honest)} {
		t.Run(name, func(t *testing.T) {
			all, err := c.Validators(testContext(t))
			require.NoError(t, err)
			require.EqualValues(t, 4, all.Height)
			require.Equal(t, name == "verifying", all.Verified)
			got := map[string]Validator{}
			for _, v := range all.List {
				got[string(v.PublicKey)] = v
			}
			require.Equal(t, want, got)
			require.Len(t, all.List, len(want))
		})
	}

	absent := chain.blocks[3].Commit.Signatures[1]
	nodes := believing(t, &fakeNode{chain: chain, name: "primary", lie: func(a any) error {
		if r, ok := a.(*ctypes.ResultCommit); ok {
			r.Commit.Signatures[1].BlockIDFlag = types.BlockIDFlagNil
		}
		return nil
	}})
	all, err := nodes.Validators(testContext(t))
	require.NoError(t, err)
	for _, v := range all.List {
		signs := string(v.PublicKey) != string(unknown) && string(ed25519.PubKey(v.PublicKey).Address()) != string(absent.ValidatorAddress)
		require.Equal(t, signs, v.Signed)
	}
}

// TestValidatorsOfABrokenNode: answers of a faulty node, without a proof that is checked.
func TestValidatorsOfABrokenNode(t *testing.T) {
	publicKey := ed25519.GenPrivKeyFromSecret([]byte("v")).PubKey().Bytes()
	record := func(changes ...avlstar.Change) func(any) error {
		return func(a any) error {
			if r, ok := a.(*ctypes.ResultABCIQuery); ok {
				var entries []avlstar.KV
				for _, c := range changes {
					entries = append(entries, avlstar.KV{Key: c.Key, Value: c.Value})
				}
				r.Response.Value = encodeRangeResponse(entries, nil)
			}
			return nil
		}
	}
	commit := func(change func(*ctypes.ResultCommit)) func(any) error {
		return func(a any) error {
			if r, ok := a.(*ctypes.ResultCommit); ok {
				change(r)
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		lie  func(any) error
		want string
	}{
		"no commit":      {commit(func(r *ctypes.ResultCommit) { r.Commit = nil }), "not the requested commit"},
		"another commit": {commit(func(r *ctypes.ResultCommit) { r.Commit.Height++ }), "not the requested commit"},
		"a short key":    {record(validatorRecord(publicKey[1:], 1)), "does not decode"},
		"a short power":  {record(avlstar.Change{Key: append([]byte{0, 'v'}, publicKey...), Value: []byte{1}}), "does not decode"},
		"too much power": {record(validatorRecord(publicKey, 1<<60), validatorRecord(publicKey, 1)), "sum up to more"},
		"all of it":      {record(validatorRecord(publicKey, 1<<60-1)), ""},
		"another page": {func(a any) error {
			if r, ok := a.(*ctypes.ResultABCIQuery); ok {
				r.Response.Value = encodeRangeResponse(nil, []byte{0, 'v', 'x'})
			}
			return nil
		}, "all validators"},
	} {
		t.Run(name, func(t *testing.T) {
			chain := newFakeChain(t)
			_, err := believing(t, &fakeNode{chain: chain, name: "primary", lie: c.lie}).Validators(testContext(t))
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
