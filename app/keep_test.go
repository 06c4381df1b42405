package app

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/tx"
)

// The keys of one grant are overwritten in each block. The number of kept versions does not bound
// the memory that they hold, but the bytes do. The last version always stays, and the refusal of a
// query below the oldest version names the kept heights.
func TestKeptVersionsAreBoundedByBytes(t *testing.T) {
	const keys, bound, blocks = 2000, 1 << 20, 30
	overwrite := func(nonce uint64, n int) []byte {
		operations := make([]tx.Operation, n)
		for i := range operations {
			operations[i] = put(fmt.Sprintf("k%05d", i), fmt.Sprint(nonce))
		}
		return sign(t, "alice", nonce, operations...)
	}
	held := func(a *App) (sum, oldest uint64) {
		recent := a.published.Load().recent
		for _, c := range recent {
			sum += c.version.HeldBytes()
		}
		return sum, recent[0].version.HeldBytes()
	}
	start := func(bytes uint64) *App {
		a, err := New(Options{Store: &memoryStore{}, KeepRecent: 20, KeepRecentBytes: bytes, ChainID: testChain})
		require.NoError(t, err)
		_, err = a.InitChain(ctx, initRequest(`{"grants": [{"grantee": "@alice", "prefix": "k"}]}`))
		require.NoError(t, err)
		return a
	}

	attacked, without := start(bound), start(0)
	for i := range uint64(blocks) {
		for _, a := range []*App{attacked, without} {
			runBlock(t, a, overwrite(i, keys))
		}
	}
	all, _ := held(without)
	require.EqualValues(t, blocks-19, without.Oldest())
	require.Greater(t, all, uint64(5*bound), "the attack has no effect")
	sum, _ := held(attacked)
	require.LessOrEqual(t, sum, uint64(bound))
	oldest := attacked.Oldest()
	require.Greater(t, oldest, int64(blocks-10))
	require.Less(t, oldest, int64(blocks))
	memory := latest(t, attacked).Memory()
	require.Less(t, 2*(memory.NodeBytes+memory.LeafBytes), latest(t, without).Memory().NodeBytes+latest(t, without).Memory().LeafBytes)

	res, err := attacked.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("k"), Height: oldest - 1})
	require.NoError(t, err)
	require.Equal(t, uint32(tx.CodeUnknownHeight), res.Code)
	require.Contains(t, res.Log, fmt.Sprintf("height %d is not kept here: heights %d to %d are ([state] pruning_keep_recent and pruning_keep_recent_bytes in app.toml)", oldest-1, oldest, blocks))
	res, err = attacked.Query(ctx, &abci.RequestQuery{Path: PathKey, Data: []byte("k"), Height: oldest})
	require.NoError(t, err)
	require.Zero(t, res.Code)

	res, err = attacked.Query(ctx, &abci.RequestQuery{Path: PathHeights})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf(`{"oldest":%d,"latest":%d}`, oldest, blocks), string(res.Value))
	res, err = newTestApp(t, &memoryStore{}).Query(ctx, &abci.RequestQuery{Path: PathHeights})
	require.NoError(t, err)
	require.Equal(t, `{"oldest":0,"latest":0}`, string(res.Value))

	// With small blocks, the number counts again.
	for i := range uint64(25) {
		runBlock(t, attacked, overwrite(blocks+i, 1))
	}
	require.EqualValues(t, blocks+25-19, attacked.Oldest())

	// If one block alone exceeds the bound, only the last version stays.
	tight := start(1)
	runBlock(t, tight, overwrite(0, keys))
	runBlock(t, tight, overwrite(1, 1))
	require.EqualValues(t, 2, tight.Oldest())
	runBlock(t, tight) // the block changes nothing, so the version is the same and holds nothing
	require.EqualValues(t, 2, tight.Oldest())
}
