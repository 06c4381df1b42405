package app

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

func TestConstantsOfPrograms(t *testing.T) {
	require.Equal(t, program.AddressBytes, tx.AddressBytes)
	require.Equal(t, program.MaxInitBytes, tx.MaxProgramBytes)
	require.True(t, tx.IsProgramKey(program.Prefix(nil)))
	require.Equal(t, []byte{reserved, tagProgram}, program.Prefix(nil))
	require.EqualValues(t, tx.NewestAppVersion, len(versions))
	largest := tx.Body{Operations: []tx.Operation{tx.NewCall(nil, nil, tx.MaxProgramGas, 4000, 0)}}
	require.Less(t, cost(&tx.Tx{Body: &largest}), tx.MaxOperations)
	require.LessOrEqual(t, uint64(tx.MaxOperations*tx.GasPerKey), uint64(maxGas), "a transaction fits in a block")
}

// startPrograms returns a chain of version 2 in which alice has deployed a program with slots s0 to
// s39, whose values are the names of the next ones.
func startPrograms(t *testing.T) *App {
	t.Helper()
	a := newTestAppWith(t, &memoryStore{}, toyEngine{})
	_, err := a.InitChain(ctx, initRequest(witnessedState))
	require.NoError(t, err)
	runBlock(t, a, append(prefill(t), sign(t, "root", 0, upgradeOp(2, 2)))...)
	runBlock(t, a)
	var steps []string
	for i := range 40 {
		steps = append(steps, fmt.Sprintf("set s%d s%d", i, i+1))
	}
	res := runBlock(t, a, sign(t, "root", 1, grantOp(account("alice"), "\x00x", 0), grantOp(account("bob"), "\x00x", 1<<20)),
		sign(t, "alice", 4, tx.NewDeploy([]byte("code\n"), []byte(strings.Join(steps, "; ")), 1e6, 90)))
	require.Equal(t, []tx.Code{0, 0}, codes(res))
	return a
}

// bareWithPrograms returns an application that has the root's hash of the latest state of local.
func bareWithPrograms(t *testing.T, local *App, source Source) *App {
	t.Helper()
	height, v := local.Latest()
	defer v.Release()
	a, err := New(Options{
		Store: &shardedStore{t: t, height: height, at: v.Commitment()}, Source: source, KeepRecent: 4, ChainID: testChain,
		ProposalTime: time.Hour, Programs: toyEngine{}, Retention: avlstar.Retention{},
	})
	require.NoError(t, err)
	return a
}

// A call on a tree in which nodes are missing has the result of full-state mode. Keys that the
// sender names in touch save rounds, and change nothing.
func TestProgramsOnWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := toyEngine{}.deployed(account("alice"), 0)
		call := func(name string, nonce uint64, input string, touch ...[]byte) []byte {
			return sign(t, name, nonce, tx.NewCall(to, []byte(input), 1e5, 50, 0, touch...))
		}
		rounds := func(txs ...[]byte) int {
			local := startPrograms(t)
			source := newFakeSource(t, nil)
			source.has(local)
			a := bareWithPrograms(t, local, source)
			defer a.Stop()
			require.Equal(t, runBlock(t, local, txs...), runBlock(t, a, txs...))
			return source.requests()
		}
		// The key of the second slot depends on the value of the first.
		const input = "follow s3 new; set s7 -; set fresh 1; get s9"
		slots := [][]byte{toySlot(to, "s3"), toySlot(to, "s4"), toySlot(to, "s7"), toySlot(to, "s9"), toySlot(to, "fresh")}
		without := rounds(call("alice", 5, input))
		with := rounds(call("alice", 5, input, slots...))
		require.Less(t, with, without)
		t.Logf("requests without touch: %d, with it: %d", without, with)
		rounds(call("alice", 5, input), call("bob", 0, "follow s4 other; get s3; revert too late"), call("bob", 1, "set s20 -; set s21 x; log topic data", slots[0]),
			sign(t, "bob", 2, put("ab1", "x"), tx.NewAdd([]byte("abn"), 5), tx.NewDeploy([]byte("code\n"), []byte("set a 1"), 1e5, 9)),
			sign(t, "alice", 6, tx.NewAdd([]byte("a0"), 1)), sign(t, "alice", 7, tx.NewCall(make([]byte, 20), nil, 1e5, 9, 0)))
	})
}

// A simulation on a tree in which nodes are missing answers as in full-state mode. Its result is
// that of the transaction in the next block.
func TestSimulateOnWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := toyEngine{}.deployed(account("alice"), 0)
		local := startPrograms(t)
		defer local.Stop()
		source := newFakeSource(t, nil)
		source.has(local)
		a := bareWithPrograms(t, local, source)
		defer a.Stop()
		simulate := func(a *App, body *tx.Body) *tx.Simulation {
			res := must(a.Query(ctx, &abci.RequestQuery{Path: PathSimulate, Data: must(body.Marshal())}))
			require.Zero(t, res.Code, res.Log)
			answer := new(tx.Simulation)
			require.NoError(t, answer.Unmarshal(res.Value))
			return answer
		}
		compared := 0
		for _, operation := range []tx.Operation{
			tx.NewCall(to, []byte("follow s3 new; set s7 -; get s9; log topic data"), 1e5, 50, 50), tx.NewCall(to, []byte("get s3; revert no"), 1e5, 50, 50),
			tx.NewCall(to, []byte("get s1; get s2; get s3"), 2000, 50, 50), tx.NewDeploy([]byte("code\n"), []byte("set a 1"), 1e5, 9),
			tx.NewCall(make([]byte, 20), nil, 1e5, 9, 9), put("a0", "new"), read("ab7"), tx.NewAdd([]byte("a0"), 1),
		} {
			body := &tx.Body{Account: account("alice"), Operations: []tx.Operation{operation}}
			want := simulate(local, body)
			require.Equal(t, want, simulate(a, body), "%s", operation.String())
			if want.Code == 0 {
				compared++
				result := must(local.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: local.Height() + 1, Txs: [][]byte{sign(t, "alice", 5, operation)}}))
				require.Equal(t, must(want.Result.Marshal()), result.TxResults[0].Data)
			}
		}
		require.Equal(t, 4, compared)
		require.Positive(t, source.requests(), "no node was missing")
	})
}

// The time of a block counts only in versions whose programs see it, and a block that is executed
// again has the same result.
func TestTimeOfBlocks(t *testing.T) {
	a := startPrograms(t)
	defer a.Stop()
	to := toyEngine{}.deployed(account("alice"), 0)
	raw := sign(t, "alice", 5, tx.NewCall(to, []byte("env"), 1e5, 9, 0))
	at := func(seconds int64) *abci.ResponseFinalizeBlock {
		return must(a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: 4, Time: time.Unix(seconds, 0), Txs: [][]byte{raw}}))
	}
	result := must(tx.DecodeResult(at(1_700_000_000).TxResults[0].Data))
	require.Equal(t, testChain+" 4 1700000000", string(result.Results[0].Value))
	require.Equal(t, at(5), at(5))
	require.NotEqual(t, at(5).TxResults[0].Data, at(6).TxResults[0].Data)
	require.Zero(t, (&versions[0]).timeOf(time.Unix(5, 0)))
	require.Zero(t, (&versions[1]).timeOf(time.Time{}))
}

// Records of programs do not stay in memory as those of rights do.
func TestKeepRecordsWithoutPrograms(t *testing.T) {
	slot := toySlot(make([]byte, 20), "s")
	require.False(t, KeepRecords(slot, append(slot, 0)))
	require.True(t, KeepRecords(ParamsKey(), slot))
	require.True(t, KeepRecords(slot, []byte("a")))
}
