package app

import (
	"bytes"
	"encoding/binary"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/result"
	"github.com/starling-kv/starling/tx"
)

const fuzzGenesis = `{"chunk_bytes": 100, "open": true, "admins": ["@root"], "grants": [
	{"grantee": "@alice", "prefix": "a", "quota": 60}, {"grantee": "@bob", "prefix": ""}]}`

// bob has the rights to execute fuzzTxn.
var fuzzTxn = tx.NewTxn([]tx.Compare{{Key: []byte("b")}, {Key: ParamsKey(), Present: true}},
	[]tx.Operation{put("b", "1"), put("a", "1"), tx.NewReadRange([]byte("a"), nil, 2), read("b")}, []tx.Operation{del("b"), tx.NewDeleteRange([]byte("a"), []byte("c"), 5)})

// fuzzSeeds returns transactions of every kind.
func fuzzSeeds(f *testing.F) [][]byte {
	f.Helper()
	return [][]byte{
		[]byte("k=v"), []byte("a=v"), []byte("k:v"), {}, {0}, {0, 0x0a},
		sign(f, "alice", 0, put("a", "1"), del("a"), cas("a", "", "2"), read("a"), read(string(ParamsKey()))),
		sign(f, "alice", 1, put("a", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")),
		sign(f, "bob", 0, put("b", "1"), put("c", "1")),
		sign(f, "root", 0, grantOp(nil, "c", 10), revokeOp(account("alice"), "a"), adminOp(account("bob"), false)),
		sign(f, "root", 0, validatorOp(account("v2"), 5), validatorOp(account("v1"), 0)),
		sign(f, "root", 0, adminOp(account("root"), true)),
		sign(f, "bob", 0, fuzzTxn, tx.NewDeletePart([]byte("a"), nil, 2), tx.NewReadRange(nil, nil, 9), tx.NewCompare([]byte("b"), nil)),
		signFor(f, "other", "alice", 0, put("a", "1")),
		sign(f, "root", 0, must(tx.NewPropose(1, adminOp(account("bob"), false), tx.NewSetThreshold(2)))),
		sign(f, "root", 1, must(tx.NewPropose(9, grantOp(nil, "d", 10), validatorOp(account("v2"), 5)))),
		sign(f, "bob", 0, tx.NewApprove(account("root"), [tx.DigestBytes]byte{})),
		sign(f, "root", 2, tx.NewWithdraw()),
	}
}

// frame packs transactions into the input of FuzzFinalizeBlock; unframe reads any bytes as such
// input.
func frame(txs ...[]byte) []byte {
	var b []byte
	for _, raw := range txs {
		b = binary.BigEndian.AppendUint16(b, uint16(len(raw)))
		b = append(b, raw...)
	}
	return b
}

func unframe(b []byte) (txs [][]byte) {
	for len(b) >= 2 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		txs = append(txs, b[2:2+n])
		b = b[2+n:]
	}
	return txs
}

// Any transactions: no panic, the same results twice, refusals change nothing, and CometBFT accepts
// the validator updates.
func FuzzFinalizeBlock(f *testing.F) {
	seeds := fuzzSeeds(f)
	for _, raw := range seeds {
		f.Add(frame(raw))
		f.Add(frame(seeds[6], raw, seeds[9]))
	}
	f.Add(frame(seeds...))
	f.Fuzz(func(t *testing.T, data []byte) {
		txs := unframe(data)
		a := startChain(t, &memoryStore{}, fuzzGenesis)
		checked, params := a.check.state()
		checked.Release()
		require.NotNil(t, params)
		before := a.block.version.AppHash()
		res := finalize(t, a, txs...)
		require.Equal(t, res, finalize(t, a, txs...))
		require.Len(t, res.TxResults, len(txs))
		traceless := true
		for _, r := range res.TxResults {
			switch tx.Code(r.Code) {
			case tx.CodeMalformed, tx.CodeTooLarge, tx.CodeBadSignature, tx.CodeBadNonce, tx.CodeTextClosed, tx.CodeReserved:
			default:
				traceless = false
			}
		}
		if traceless {
			require.Equal(t, before[:], res.AppHash)
		}
		power := map[string]int64{string(account("v1")): 10}
		for _, u := range res.ValidatorUpdates {
			if u.Power == 0 {
				require.Contains(t, power, string(u.PubKey.GetEd25519()))
				delete(power, string(u.PubKey.GetEd25519()))
			} else {
				power[string(u.PubKey.GetEd25519())] = u.Power
			}
		}
		require.NotEmpty(t, power)
		require.NoError(t, commitBlock(a))

		prepared, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: txs, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		accepted, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: prepared.Txs})
		require.NoError(t, err)
		require.True(t, accepted.IsAccepted(), "a validator rejects what another one proposed")
	})
}

// Operations decoded from any bytes and properly signed, as a hostile account or admin can send
// them. A restarted node gets the same results, and the sum of powers and the set of admins can
// still be changed.
func FuzzSignedOperations(f *testing.F) {
	for _, operations := range [][]tx.Operation{
		{put("a", "1"), del("a"), cas("a", "", "2"), read("a"), read(string(ParamsKey()))},
		{grantOp(nil, "c", 10), revokeOp(account("alice"), "a"), grantOp(account("bob"), "", 1)},
		{validatorOp(account("v2"), 1<<58-10), validatorOp(account("v2"), 1<<64-1), validatorOp(account("v1"), 0)},
		{fuzzTxn, fuzzTxn, tx.NewDeletePart([]byte("a"), nil, 2), tx.NewReadRange(nil, nil, 9), tx.NewComparePresent([]byte("b"))},
		{adminOp(account("bob"), false), adminOp(account("root"), true), adminOp(account("bob"), true)},
		{adminOp(account("bob"), false), tx.NewSetThreshold(2), adminOp(account("bob"), true), tx.NewSetThreshold(1)},
		{must(tx.NewPropose(2, adminOp(account("bob"), false), tx.NewSetThreshold(2), adminOp(account("root"), true)))},
		{must(tx.NewPropose(2, adminOp(account("bob"), false), adminOp(account("root"), true), grantOp(nil, "c", 10)))},
		{tx.NewApprove(account("root"), [tx.DigestBytes]byte{})}, {tx.NewWithdraw()},
	} {
		body, err := (&tx.Body{Operations: operations}).Marshal()
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var body tx.Body
		if body.Unmarshal(data) != nil {
			return
		}
		var txs [][]byte
		for _, name := range []string{"alice", "bob", "root", "carol"} {
			txs = append(txs, forge(t, testChain, name, 0, body.Operations...))
		}
		store := &memoryStore{}
		a, other := startChain(t, store, fuzzGenesis), startChain(t, &memoryStore{}, fuzzGenesis)
		require.Equal(t, runBlock(t, other), runBlock(t, a))
		require.Equal(t, runBlock(t, other, txs...), runBlock(t, newTestApp(t, store), txs...))
		x := other.newExecutor(newOverlay(other.block.version), other.block.params, 3)
		require.True(t, must(x.anyUnder(record(tagAdmin))))
		require.LessOrEqual(t, must(x.threshold()), must(x.countAdmins()))
		counted := must(x.countValidators())
		require.Positive(t, counted.count)
		require.LessOrEqual(t, counted.power.Total, uint64(MaxTotalPower))
	})
}

// A transaction that CheckTx admits leaves a trace if it is the next one in a block.
func FuzzCheckTx(f *testing.F) {
	for _, raw := range fuzzSeeds(f) {
		f.Add(raw, false)
		f.Add(raw, true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, recheck bool) {
		a := startChain(t, &memoryStore{}, fuzzGenesis)
		req := &abci.RequestCheckTx{Tx: raw}
		if recheck {
			req.Type = abci.CheckTxType_Recheck
		}
		res, err := a.CheckTx(ctx, req)
		require.NoError(t, err)
		prepared, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: [][]byte{raw}, MaxTxBytes: 1 << 30})
		require.NoError(t, err)
		if res.Code == 0 {
			require.Len(t, prepared.Txs, 1)
			require.True(t, bytes.Equal(prepared.Txs[0], raw) || raw[0] != reserved)
		}
	})
}

// Any query: no panic, and a refusal has the codespace of Starling.
func FuzzQuery(f *testing.F) {
	for _, path := range []string{PathKey, PathRange, PathNonce, PathSnapshots, PathHeights, result.Path, ""} {
		f.Add(path, []byte("a"), int64(0), true)
		f.Add(path, account("alice"), int64(1), false)
	}
	request, err := (&RangeRequest{Start: []byte("a"), End: []byte("b"), Limit: 1}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(PathRange, request, int64(1), true)
	a := startChain(f, &memoryStore{}, fuzzGenesis)
	runBlock(f, a, sign(f, "alice", 0, put("a", "1"), put("aa", "2")))
	f.Fuzz(func(t *testing.T, path string, data []byte, height int64, prove bool) {
		res, err := a.Query(ctx, &abci.RequestQuery{Path: path, Data: data, Height: height, Prove: prove})
		require.NoError(t, err)
		if res.Code != 0 {
			require.Equal(t, tx.Codespace, res.Codespace)
			require.NotEmpty(t, res.Log)
			return
		}
		if path == PathRange && prove && height <= 1 {
			_, _, err := provedRange(a, data)
			require.NoError(t, err)
		}
		if path == PathKey && prove {
			_, _, err := provedKey(a, data, height)
			require.NoError(t, err)
		}
	})
}
