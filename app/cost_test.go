package app

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/tx"
)

// deletes returns n deletes of absent keys, which need no byte of the sender's quota.
func deletes(n int, prefix string) (operations []tx.Operation) {
	for i := range n {
		operations = append(operations, del(fmt.Sprint(prefix, i)))
	}
	return operations
}

// Storage nodes refuse an update with more changes than a block can make. A block changes two
// records for each key that it names, and two of its own.
func TestStorageNodesTakeEveryBlock(t *testing.T) {
	for version, r := range versions {
		require.LessOrEqual(t, 2*r.maxCost+2, dsm.MaxChanges, "app version %d", version)
	}
}

// A block of transactions that name many keys for their bytes would take minutes if each key is in
// a page on disk. So no validator votes for it, and none proposes it.
func TestCostOfABlock(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	var txs [][]byte
	for nonce := range uint64(26) {
		txs = append(txs, sign(t, "alice", nonce, deletes(tx.MaxOperations, "a")...))
	}
	fit := maxCost / (tx.MaxOperations + 1)
	accepted := func(txs [][]byte) bool {
		res, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: txs})
		require.NoError(t, err)
		return res.IsAccepted()
	}
	require.True(t, accepted(txs[:fit]))
	require.False(t, accepted(txs[:fit+1]))

	blocks := 0
	for waiting := txs; len(waiting) > 0; blocks++ {
		res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: waiting, MaxTxBytes: 4 << 20})
		require.NoError(t, err)
		require.True(t, accepted(res.Txs))
		require.Equal(t, waiting[:min(fit, len(waiting))], res.Txs)
		runBlock(t, a, res.Txs...)
		waiting = waiting[len(res.Txs):]
	}
	require.LessOrEqual(t, blocks, 10)
}

// Small transactions fill the room that a large one left.
func TestCostLeavesRoomForSmallOnes(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"open": true, "grants": [{"grantee": "@alice", "prefix": "a"}]}`)
	var txs [][]byte
	for nonce := range uint64(7) {
		txs = append(txs, sign(t, "alice", nonce, deletes(tx.MaxOperations, "a")...))
	}
	txs = append(txs, []byte("text=1"))
	res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: 1, Txs: txs, MaxTxBytes: 4 << 20})
	require.NoError(t, err)
	require.Equal(t, append(txs[:6:6], txs[7]), res.Txs)
}

// Every transaction that tx.Decode accepts fits into a block.
func TestLargestTransactionFits(t *testing.T) {
	for _, rules := range versions {
		require.LessOrEqual(t, cost(&tx.Tx{Body: &tx.Body{Operations: make([]tx.Operation, tx.MaxOperations)}}), rules.maxCost)
	}
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	value := strings.Repeat("v", tx.MaxValueBytes)
	key := "a" + strings.Repeat("k", tx.MaxKeyBytes-1)
	largest := sign(t, "alice", 0, cas(key, value, value))
	most := sign(t, "alice", 1, deletes(tx.MaxOperations, "a")...)
	res, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: [][]byte{largest, most}})
	require.NoError(t, err)
	require.True(t, res.IsAccepted())
}

// If the limit of a version is below the cost of a transaction that can be decoded, CheckTx refuses
// the transaction: no block could contain it.
func TestCheckTxRefusesWhatNoBlockHolds(t *testing.T) {
	usual := versions[0].maxCost
	t.Cleanup(func() { versions[0].maxCost = usual })
	versions[0].maxCost = 3
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	for n, want := range map[int]tx.Code{2: tx.CodeOK, 3: tx.CodeTooLarge} {
		raw := sign(t, "alice", 0, deletes(n, "a")...)
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw})
		require.NoError(t, err)
		require.Equal(t, want, tx.Code(res.Code), res.Log)
		proposed, err := a.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: [][]byte{raw}})
		require.NoError(t, err)
		require.Equal(t, want == tx.CodeOK, proposed.IsAccepted(), "a block of exactly the limit is accepted")
	}
}

// A proposer with a slow disk proposes the transactions that it executes in time, and always at
// least one.
func TestProposalTime(t *testing.T) {
	state := newPagedState(t)
	txs := [][]byte{
		sign(t, "alice", 5, put("a1", "x")), // a wrong nonce is skipped, whatever the time
		sign(t, "alice", 1, append(deletes(50, "a"), put("a7", "x"))...),
		sign(t, "bob", 0, put("a17", "x")),
		[]byte("text=2"),
	}
	for limit, want := range map[time.Duration][][]byte{time.Second: txs[1:2], time.Hour: txs[1:]} {
		synctest.Test(t, func(t *testing.T) {
			a, pages := state.app(t)
			a.options.ProposalTime = limit
			pages.delay = 2 * time.Second
			for range 2 { // and in every round
				began := time.Now()
				res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: a.Height() + 1, Txs: txs, MaxTxBytes: 1 << 20})
				require.NoError(t, err)
				require.Equal(t, want, res.Txs)
				if limit == time.Second {
					// The records of two accounts are read one after another, but not those of 51
					// keys.
					require.Less(t, time.Since(began), 20*time.Second)
				}
			}
		})
	}
}

// Transactions that only write are proposed without reading the keys that they write. Transactions
// that read see the writes before them.
func TestWritesAreProposedUnexecuted(t *testing.T) {
	state := newPagedState(t)
	var txs [][]byte
	for nonce := range uint64(3) {
		txs = append(txs, sign(t, "alice", 1+nonce, deletes(50, "a")...))
	}
	paged, pages := state.app(t)
	pagesRead := func(txs [][]byte) int64 {
		res, err := paged.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: paged.Height() + 1, Txs: txs, MaxTxBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, txs, res.Txs)
		return pages.clients.Swap(0)
	}
	require.Zero(t, pagesRead(txs))
	require.NotZero(t, pagesRead(append(txs, sign(t, "alice", 4, read("a1")))))

	a := startChain(t, &memoryStore{}, aliceOwnsA)
	txs = [][]byte{sign(t, "alice", 0, put("a", strings.Repeat("x", ReadBudgetBytes/2)))}
	for nonce := range uint64(3) {
		txs = append(txs, sign(t, "alice", 1+nonce, read("a")))
	}
	res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: 2, Txs: txs, MaxTxBytes: 4 << 20})
	require.NoError(t, err)
	require.Equal(t, txs[:3], res.Txs, "the third read exceeds the block's budget")
}

// Transactions that were executed for a proposal and left out are not executed again in the next
// round, so that others get their turn.
func TestPassedOverOnceAtAHeight(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	var reads []tx.Operation
	for range tx.MaxOperations {
		reads = append(reads, read("a"))
	}
	var (
		grants []tx.Operation
		txs    [][]byte
	)
	for i := range 8 {
		name := fmt.Sprint("reader ", i)
		grants = append(grants, grantOp(account(name), name, 0))
		txs = append(txs, sign(t, name, 0, reads...))
	}
	runBlock(t, a, sign(t, "root", 0, grants...))
	passed := func(height int64) int {
		res, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: height, Txs: txs, MaxTxBytes: 4 << 20})
		require.NoError(t, err)
		require.Equal(t, txs[:3], res.Txs)
		return len(a.passed.of(height))
	}
	first := passed(2)
	require.NotZero(t, first)
	require.LessOrEqual(t, 3+first, maxCost/tx.MaxOperations, "what is tried costs no more than a block")
	require.Greater(t, passed(2), first, "another round tries others")
	require.Equal(t, first, passed(3), "the next block tries them again")
}

// The rights of all operations are checked before anything else, and no client's value is read: a
// refusal costs the sender no nonce, so the sender could repeat the transaction forever.
func TestRightsFirst(t *testing.T) {
	state := newPagedState(t)
	a, pages := state.app(t)
	for name, c := range map[string]struct {
		want tx.Code
		raw  []byte
	}{
		"the last operation has no right":         {tx.CodeUnauthorized, sign(t, "alice", 1, append(deletes(100, "a"), put("b", "1"))...)},
		"and an earlier one fails":                {tx.CodeUnauthorized, sign(t, "alice", 1, cas("a1", "wrong", "x"), put("b", "1"))},
		"an earlier one fails":                    {tx.CodeOK, sign(t, "alice", 1, cas("a1", "wrong", "x"), put("a2", "1"))},
		"its own grant comes first":               {tx.CodeOK, sign(t, "root", 2, grantOp(account("root"), "z", 0), put("z1", "1"))},
		"its own grant comes later":               {tx.CodeUnauthorized, sign(t, "root", 2, put("z1", "1"), grantOp(account("root"), "z", 0))},
		"it takes a grant back from itself":       {tx.CodeUnauthorized, sign(t, "carol", 0, put("x", "1"), put("b", "1"))},
		"it stops being an admin":                 {tx.CodeNotAdmin, sign(t, "root", 2, adminOp(account("root"), true), grantOp(account("root"), "z", 0))},
		"it is an admin again":                    {tx.CodeNotAdmin, sign(t, "root", 2, adminOp(account("root"), true), adminOp(account("root"), false))},
		"no admin changes validators":             {tx.CodeNotAdmin, sign(t, "alice", 1, validatorOp(account("v2"), 1))},
		"no admin schedules upgrades":             {tx.CodeNotAdmin, sign(t, "alice", 1, upgradeOp(2, 9))},
		"whoever has a right may read all":        {tx.CodeOK, sign(t, "alice", 1, read("x"), read("a1"))},
		"an account that holds nothing but \"*\"": {tx.CodeOK, sign(t, "dave", 0, put("c1", "1"))},
		"and writes elsewhere":                    {tx.CodeUnauthorized, sign(t, "dave", 0, put("c1", "1"), put("d", "1"))},
	} {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: c.raw})
		require.NoError(t, err)
		require.Equal(t, c.want, tx.Code(res.Code), "%s: %s", name, res.Log)
		a.check.reset(a.block.version, a.block.params, nil, false, nil)
	}

	require.Zero(t, pages.clients.Load(), "no right depends on values")
}

// A transaction that somebody else submitted over RPC can still enter the mempool.
func TestSameBytesAreAdmittedAgain(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	check := func(raw []byte) tx.Code {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw})
		require.NoError(t, err)
		return tx.Code(res.Code)
	}
	first, second := sign(t, "alice", 0, put("a", "1")), sign(t, "alice", 1, put("a", "2"))
	for range 3 { // an attacker's check, and then the mempool's
		require.Equal(t, tx.CodeOK, check(first))
		require.Equal(t, tx.CodeOK, check(second))
	}
	require.Equal(t, tx.CodeBadNonce, check(sign(t, "alice", 0, put("a", "3"))))
	require.Equal(t, tx.CodeOK, check(sign(t, "alice", 2, put("a", "3"))), "each counts once")

	runBlock(t, a, first)
	require.Equal(t, tx.CodeBadNonce, check(first), "it is in a block")
	require.Equal(t, tx.CodeOK, check(second))
}

// The transactions that CheckTx remembers are bounded, and the newest are remembered.
func TestAdmittedIsBounded(t *testing.T) {
	a := startChain(t, &memoryStore{}, aliceOwnsA)
	id := func(n uint64) (id [32]byte) { copy(id[:], encodeUint64(n)); return id }
	from := sender{account: [32]byte(account("alice"))}
	for n := range uint64(maxAdmitted + 10) {
		from.nonce = n
		require.Nil(t, a.check.admit(id(n), from, true, false))
	}
	require.Len(t, a.check.mu.admitted, maxAdmitted)
	from.nonce = maxAdmitted + 9
	require.Nil(t, a.check.admit(id(from.nonce), from, true, false))
	from.nonce = 0
	require.Equal(t, tx.CodeBadNonce, a.check.admit(id(0), from, true, false).Code)
}

// Anybody can make keys. On a chain on which everyone may write a little, each key would leave a
// nonce record of 47 bytes forever, under no quota, if strangers were not bounded.
func TestStrangersAreBounded(t *testing.T) {
	room := 3 * strangerBytes
	a := startChain(t, &memoryStore{}, fmt.Sprintf(`{"admins": ["@root"], "grants": [{"grantee": "@alice", "prefix": "a"},
		{"grantee": "*", "prefix": "c", "quota": %d}, {"grantee": "*", "prefix": "d", "quota": %d}]}`, room-10, 10+strangerBytes-1))
	check := func(raw []byte, kind abci.CheckTxType) tx.Code {
		res, err := a.CheckTx(ctx, &abci.RequestCheckTx{Tx: raw, Type: kind})
		require.NoError(t, err)
		return tx.Code(res.Code)
	}
	var firsts [][]byte
	for i := range 5 {
		firsts = append(firsts, sign(t, fmt.Sprint("stranger ", i), 0, read("x")))
		require.Equal(t, tx.CodeOK, check(firsts[i], abci.CheckTxType_New), "there is room for each alone")
	}
	proposal, err := a.PrepareProposal(ctx, &abci.RequestPrepareProposal{Height: 1, Txs: firsts, MaxTxBytes: 1 << 20})
	require.NoError(t, err)
	require.Equal(t, firsts[:3], proposal.Txs)
	res := runBlock(t, a, append([][]byte{sign(t, "alice", 0, put("a", "1"))}, firsts...)...)
	require.Equal(t, []tx.Code{0, 0, 0, 0, tx.CodeQuota, tx.CodeQuota}, codes(res))
	v := latest(t, a)
	require.Equal(t, encodeUint64(3), must(first(v.Get(StrangersKey()))))
	require.Nil(t, must(first(v.Get(NonceKey(account("stranger 3"))))), "no trace")

	require.Equal(t, tx.CodeQuota, check(firsts[4], abci.CheckTxType_Recheck), "it leaves the mempool")
	require.Equal(t, tx.CodeQuota, check(sign(t, "stranger 9", 0, read("x")), abci.CheckTxType_New))
	require.Equal(t, tx.CodeOK, check(sign(t, "stranger 0", 1, read("x")), abci.CheckTxType_New), "it has its record")
	require.Equal(t, tx.CodeOK, check(sign(t, "alice", 1, read("x")), abci.CheckTxType_New))

	// A grant of its own, the admin's right, or a larger quota makes room, also in the same block.
	res = runBlock(t, a, sign(t, "root", 0, grantOp(account("stranger 3"), "s", 0), adminOp(account("stranger 5"), false)),
		firsts[3], sign(t, "stranger 5", 0, grantOp(nil, "d", 2*strangerBytes)), firsts[4], sign(t, "stranger 6", 0, read("x")))
	require.Equal(t, []tx.Code{0, 0, 0, 0, tx.CodeQuota}, codes(res))
	// If everyone may write without a limit, there is no limit for their nonces. Undone changes do
	// not count.
	res = runBlock(t, a, sign(t, "root", 1, grantOp(nil, "e", 0), put("no right", "1")), sign(t, "stranger 6", 0, read("x")),
		sign(t, "root", 2, grantOp(nil, "e", 0)), sign(t, "stranger 6", 0, read("x")), sign(t, "root", 3, revokeOp(nil, "e")),
		sign(t, "stranger 7", 0, read("x")))
	require.Equal(t, []tx.Code{tx.CodeUnauthorized, tx.CodeQuota, 0, 0, 0, tx.CodeQuota}, codes(res))
}

// first returns the value of three results.
func first(value []byte, _ bool, err error) ([]byte, error) { return value, err }

// The small trees of tests are read ahead too, as large ones are.
func init() { minUncached = 0 }

// TestKeysAreLookedForOnce: the keys of a block are read ahead, each once, in consecutive windows,
// and none behind the end of the block.
func TestKeysAreLookedForOnce(t *testing.T) {
	base, err := avlstar.Empty(avlstar.DefaultChunkBytes)
	require.NoError(t, err)
	put := func(i int) tx.Operation {
		return tx.Operation{Op: &tx.Operation_Put{Put: &tx.Put{Key: fmt.Appendf(nil, "key %d", i), Value: []byte("1")}}}
	}
	var txs []decoded
	var want []string
	for i := range 50 {
		switch i % 3 {
		case 0:
			txs = append(txs, decoded{err: tx.Errorf(tx.CodeUnreadable, "")})
		case 1:
			txs = append(txs, decoded{tx: &tx.Tx{Text: &tx.Text{Key: fmt.Appendf(nil, "text %d", i)}}})
			want = append(want, string(txs[i].tx.Text.Key))
		default:
			body := &tx.Body{Account: account(fmt.Sprint(i))}
			want = append(want, string(AdminKey(body.Account)), string(GrantKey(body.Account, nil)), string(NonceKey(body.Account)))
			for op := range i {
				body.Operations = append(body.Operations, put(op))
				want = append(want, fmt.Sprint("key ", op))
			}
			txs = append(txs, decoded{tx: &tx.Tx{Body: body}})
		}
	}
	require.Greater(t, len(want), 2*cachedKeys)
	all := lookahead{base: base, txs: txs}
	var got []string
	for key := range all.keys() {
		got = append(got, string(key))
	}
	require.Equal(t, want, got)

	l, windows := lookahead{base: base, txs: txs}, 0
	for i := range txs {
		l.tx = i
		for op := 0; txs[i].tx != nil && txs[i].tx.Body != nil && op < len(txs[i].tx.Body.Operations); op++ {
			before := l.done
			if l.reach(op); l.done != before {
				windows++
				require.False(t, l.done.before(place{i, op + 1, 0}), "it must read ahead")
			}
		}
	}
	require.GreaterOrEqual(t, windows, len(want)/cachedKeys)
	require.LessOrEqual(t, windows, len(want)/cachedKeys+2)
}
