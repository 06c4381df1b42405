package client

import (
	"context"
	"testing"

	cmtbytes "github.com/cometbft/cometbft/libs/bytes"
	rpcclient "github.com/cometbft/cometbft/rpc/client"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// shifted answers correctly, with valid proofs, but from a height other than the requested one.
type shifted struct {
	*fakeNode
	by int64
}

func (n *shifted) ABCIQueryWithOptions(ctx context.Context, path string, data cmtbytes.HexBytes, opts rpcclient.ABCIQueryOptions) (*ctypes.ResultABCIQuery, error) {
	opts.Height += n.by
	return n.fakeNode.ABCIQueryWithOptions(ctx, path, data, opts)
}

// TestAnotherHeight: a node must not answer for the height of AtHeight from a lower or a higher
// one, because the proofs are valid for either.
func TestAnotherHeight(t *testing.T) {
	chain := newFakeChain(t)
	for _, value := range []string{"1", "2", "3", "4"} { // blocks 3 to 6
		chain.block([]avlstar.Change{{Key: []byte("k"), Value: []byte(value)}})
	}
	chain.grow(1)
	for name, options := range map[string][]Option{"believing": nil, "verifying": {WithVerification(Trust{Genesis: chain.genesis()})}} {
		t.Run(name, func(t *testing.T) {
			for _, by := range []int64{-1, 0, 1} {
				c, err := New(testContext(t), []RPC{&shifted{&fakeNode{chain: chain, name: "primary"}, by}}, options...)
				require.NoError(t, err)
				value, errGet := c.Get(testContext(t), []byte("k"), AtHeight(4))
				_, errRange := c.Range(testContext(t), []byte("k"), nil, AtHeight(4))
				if by == 0 {
					require.NoError(t, errGet)
					require.NoError(t, errRange)
					require.Equal(t, "2", string(value.Value))
					continue
				}
				require.ErrorIs(t, errGet, ErrUnproved)
				require.ErrorContains(t, errGet, "4 was asked for")
				require.ErrorIs(t, errRange, ErrUnproved)
			}
		})
	}
}
