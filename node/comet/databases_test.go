package comet

import (
	"testing"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/blocks"
)

// If a goroutine of a stopped CometBFT reads its block store, the goroutine ends, not the process.
func TestLateReadersEnd(t *testing.T) {
	for _, backend := range []string{config.BlockZoneBackend, "goleveldb"} {
		t.Run(backend, func(t *testing.T) {
			conf := cfg.TestConfig().SetRoot(t.TempDir())
			conf.DBBackend = backend
			d := NewDatabases(conf, log.NewNopLogger(), blocks.Options{})
			store, err := d.Blocks()
			require.NoError(t, err)
			require.Nil(t, store.LoadSeenCommit(1))
			require.NoError(t, d.Close())
			ended, went := make(chan struct{}), false
			go func() {
				defer close(ended)
				store.LoadSeenCommit(1)
				went = true
			}()
			<-ended
			require.False(t, went, "the goroutine read a closed database")
		})
	}
}
