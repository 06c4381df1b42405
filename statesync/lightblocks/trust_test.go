package lightblocks

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// Trusted distinguishes peers that deny the trusted block from silent peers, and one peer that has
// the block is enough. A block that is too old cannot be used even if it is true.
func TestTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := headersChain()
		other := c.fork(100)
		pruned := *c
		pruned.base = 400
		var denied map[transport.ID]error
		ask := func(v *Verifier) (*types.LightBlock, error) {
			denied = map[transport.ID]error{}
			return v.Trusted(t.Context(), func(id transport.ID, why error) { denied[id] = why })
		}
		v := testVerifier(t, c, 300, nil)
		_, err := ask(v)
		require.ErrorIs(t, err, ErrNoPeers)
		v.Add(serve("other", other, nil))
		v.Add(serve("pruned", &pruned, nil))
		v.Add(&mute{serve("mute", c, nil)})
		_, err = ask(v)
		require.ErrorIs(t, err, ErrTrustMismatch)
		require.Len(t, denied, 2)
		require.ErrorIs(t, denied["other"], ErrTrustMismatch)
		require.Error(t, denied["pruned"])

		v.Add(serve("honest", c, nil))
		began := time.Now()
		lb, err := ask(v)
		require.NoError(t, err)
		require.Equal(t, c.blocks[299].Hash(), lb.Hash())
		require.Less(t, time.Since(began), time.Second, "the silent one delays nothing")
		_, err = ask(v)
		require.NoError(t, err)
		require.Empty(t, denied, "it is known")

		v = testVerifier(t, c, 300, func(o *Options) { o.TrustPeriod = time.Nanosecond })
		v.Add(serve("honest", c, nil))
		for range 2 {
			_, err = ask(v)
			require.ErrorIs(t, err, ErrTrustExpired)
		}
		v.Close()
		_, err = ask(v)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// mute answers no question for a light block.
type mute struct{ *Provider }

func (mute) LightBlock(ctx context.Context, _ int64) (*types.LightBlock, error) {
	return nil, hang(ctx)
}
