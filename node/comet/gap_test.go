package comet

import (
	"testing"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/blocks"
)

// A gap is read back after a restart, and removed with the databases.
func TestGap(t *testing.T) {
	conf := config.DefaultCometBFT()
	conf.SetRoot(t.TempDir())
	open := func() *Databases {
		d := NewDatabases(conf, log.NewNopLogger(), blocks.Options{})
		_, err := d.Open()
		require.NoError(t, err)
		return d
	}
	d := open()
	gap, err := d.Gap()
	require.NoError(t, err)
	require.Zero(t, gap)
	require.Zero(t, gap.Headers())
	require.NoError(t, d.SetGap(Gap{First: 100, Wanted: 7}))
	require.NoError(t, d.Close())
	d = open()
	gap, err = d.Gap()
	require.NoError(t, err)
	require.Equal(t, Gap{First: 100, Wanted: 7}, gap)
	require.EqualValues(t, 93, gap.Headers())
	child, _, err := d.Above(gap)
	require.NoError(t, err)
	require.Nil(t, child, "the block has not arrived yet")
	left, err := d.Fill(gap, nil)
	require.NoError(t, err)
	require.Equal(t, gap, left)

	// Once a block has stopped the node, headers fetched meanwhile do not change the wanted height.
	require.NoError(t, d.Want(3))
	require.NoError(t, d.SetGap(Gap{}))
	gap, err = d.Gap()
	require.NoError(t, err)
	require.EqualValues(t, 3, gap.Wanted)
	require.NoError(t, d.Close())
}
