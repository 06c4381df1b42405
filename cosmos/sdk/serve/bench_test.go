package serve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// BenchmarkCommit commits the same blocks alternately on two applications, one of which serves
// every fifth state. It reports the ratio of their 99th percentiles.
func BenchmarkCommit(b *testing.B) {
	for _, engine := range []dbm.BackendType{dbm.GoLevelDBBackend, dbm.PebbleDBBackend} {
		b.Run(string(engine), func(b *testing.B) {
			var apps []servertypes.Application
			for _, creator := range []servertypes.AppCreator{generation.Creator(newApp), serve.Creator(generation.Creator(newApp))} {
				db, err := dbm.NewDB("application", engine, b.TempDir())
				require.NoError(b, err)
				app := generation.Create(creator, generation.NewNopLogger(), db, options{"state-sync.snapshot-interval": interval})
				_, err = app.InitChain(&abci.RequestInitChain{ChainId: chainID, InitialHeight: 1, Time: time.Unix(1, 0)})
				require.NoError(b, err)
				apps = append(apps, app)
			}
			var took [2][]time.Duration
			for height := int64(1); b.Loop(); height++ {
				for i := range apps {
					app := (i + int(height)) % 2
					_, err := apps[app].FinalizeBlock(&abci.RequestFinalizeBlock{Height: height, Time: time.Unix(height, 0)})
					require.NoError(b, err)
					from := time.Now()
					_, err = apps[app].Commit()
					require.NoError(b, err)
					took[app] = append(took[app], time.Since(from))
				}
			}
			for i := range took {
				slices.Sort(took[i])
				require.NoError(b, apps[i].Close())
			}
			at := func(app, percent int) float64 { return took[app][(len(took[app])-1)*percent/100].Seconds() * 1e3 }
			for _, percent := range []int{50, 99} {
				b.ReportMetric(at(1, percent), fmt.Sprintf("ms-p%d", percent))
				b.ReportMetric(at(1, percent)/at(0, percent), fmt.Sprintf("ratio-p%d", percent))
			}
		})
	}
}
