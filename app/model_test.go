package app

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/tx"
)

// model is a naive implementation of the application: one map of all keys, copied for every
// transaction, in which every query looks at all keys. It has no trees, overlays or counters.
type model struct {
	state map[string]string
	open  bool
	reads int // in this block
	// Validators that signed the last block, by public key. It is nil if there is no last block;
	// then the validators in the state before this block count.
	signed map[string]bool
	before map[string]string // state before the transaction's operations
	height uint64
	// approved says that a proposal that enough admins have approved is being executed, and nonce
	// is the nonce of its transaction.
	approved bool
	nonce    uint64
}

// begin begins a block that has this last commit of validators with these names.
func (m *model) begin(last abci.CommitInfo, names ...string) {
	m.reads, m.signed = 0, map[string]bool{}
	m.height++
	if len(last.Votes) == 0 {
		for k := range m.state {
			if publicKey, ok := strings.CutPrefix(k, "\x00v"); ok {
				m.signed[publicKey] = true
			}
		}
		return
	}
	for _, name := range names {
		for _, v := range last.Votes {
			if v.BlockIdFlag == cmtproto.BlockIDFlagCommit && bytes.Equal(v.Validator.Address, key(name).PubKey().Address()) {
				m.signed[string(account(name))] = true
			}
		}
	}
}

// share returns the share of the power in state that is known to sign: by the last commit, or by b.
func (m *model) share(state map[string]string, b *tx.Body) *big.Rat {
	signs := maps.Clone(m.signed)
	for _, o := range m.executed(b) {
		if v := o.GetSetValidator(); v != nil && v.Confirmed {
			signs[string(v.PublicKey)] = true
		}
	}
	signing, total := new(big.Int), new(big.Int)
	for k, power := range state {
		if publicKey, ok := strings.CutPrefix(k, "\x00v"); ok {
			total.Add(total, new(big.Int).SetBytes([]byte(power)))
			if signs[publicKey] {
				signing.Add(signing, new(big.Int).SetBytes([]byte(power)))
			}
		}
	}
	return new(big.Rat).SetFrac(signing, total)
}

func (m *model) u64(key []byte) uint64 {
	if v, ok := m.state[string(key)]; ok {
		return binary.BigEndian.Uint64([]byte(v))
	}
	return 0
}

func (m *model) setU64(key []byte, n uint64) {
	m.state[string(key)] = string(binary.BigEndian.AppendUint64(nil, n))
}

func (m *model) has(key []byte) bool { _, ok := m.state[string(key)]; return ok }

// longest returns the longest P ≤ key with a record head ‖ P.
func (m *model) longest(head, key string) (string, bool) {
	for n := len(key); n >= 0; n-- {
		if m.has([]byte(head + key[:n])) {
			return key[:n], true
		}
	}
	return "", false
}

func (m *model) count(head string) (n int) {
	for k := range m.state {
		if strings.HasPrefix(k, head) {
			n++
		}
	}
	return n
}

// execute returns the code and the results of the operations.
func (m *model) execute(t *tx.Tx) (tx.Code, []tx.OperationResult) {
	if t.Text != nil {
		if _, covered := m.longest("\x00c", string(t.Text.Key)); covered || !m.open {
			return tx.CodeTextClosed, nil
		}
		m.state[string(t.Text.Key)] = string(t.Text.Value)
		return 0, nil
	}
	b := t.Body
	who := string(b.Account)
	if !m.has([]byte("\x00a"+who)) && m.count("\x00g"+who) == 0 && m.count("\x00g"+string(make([]byte, 32))) == 0 {
		return tx.CodeUnauthorized, nil
	}
	if m.u64([]byte("\x00n"+who)) != b.Nonce {
		return tx.CodeBadNonce, nil
	}
	if !m.has([]byte("\x00a"+who)) && m.count("\x00g"+who) == 0 && b.Nonce == 0 {
		strangers := m.u64([]byte("\x00s")) + 1
		if strangers*avlstar.RecordBytes(34, 8) > m.quotaOfEveryone() {
			return tx.CodeQuota, nil
		}
		m.setU64([]byte("\x00s"), strangers)
	}
	m.setU64([]byte("\x00n"+who), b.Nonce+1)
	m.nonce = b.Nonce
	saved, savedReads := maps.Clone(m.state), m.reads
	var results []tx.OperationResult
	for i := range b.Operations {
		code, result := m.perform(who, &b.Operations[i])
		if code != 0 {
			m.state, m.reads = saved, savedReads
			return code, nil
		}
		results = append(results, result)
	}
	m.before = saved
	if after := m.share(m.state, b); after.Cmp(m.share(saved, b)) < 0 && after.Cmp(big.NewRat(2, 3)) <= 0 {
		m.state, m.reads = saved, savedReads
		return tx.CodeUnconfirmed, nil
	}
	return 0, results
}

// quotaOfEveryone returns the sum of the quotas of everyone; no sum of a test overflows.
func (m *model) quotaOfEveryone() (sum uint64) {
	for k := range m.state {
		if !strings.HasPrefix(k, "\x00g"+string(make([]byte, 32))) {
			continue
		}
		if m.u64([]byte(k)) == 0 {
			return 1 << 63
		}
		sum += m.u64([]byte(k))
	}
	return sum
}

func (m *model) mayWrite(who, key, value string) tx.Code {
	own, hasOwn := m.longest("\x00g"+who, key)
	all, hasAll := m.longest("\x00g"+string(make([]byte, 32)), key)
	prefix, record := own, "\x00g"+who+own
	if !hasOwn && !hasAll {
		return tx.CodeUnauthorized
	}
	if !hasOwn || hasAll && len(all) > len(own) {
		prefix, record = all, "\x00g"+string(make([]byte, 32))+all
	}
	size := func(state map[string]string) (n uint64) {
		for k, v := range state {
			if strings.HasPrefix(k, prefix) && k[0] != 0 {
				n += avlstar.RecordBytes(len(k), len(v))
			}
		}
		return n
	}
	after := maps.Clone(m.state)
	if value == "" {
		delete(after, key)
	} else {
		after[key] = value
	}
	quota := m.u64([]byte(record))
	if s := size(after); quota != 0 && s > quota && s > size(m.state) {
		return tx.CodeQuota
	}
	return 0
}

func (m *model) operation(who string, operation *tx.Operation) (tx.Code, string) {
	admin := m.has([]byte("\x00a" + who))
	if operation.AdminsOnly() && !m.approved {
		if !admin {
			return tx.CodeNotAdmin, ""
		}
		if m.threshold() > 1 {
			return tx.CodeThreshold, ""
		}
	}
	admin = admin || m.approved
	switch op := operation.Op.(type) {
	case *tx.Operation_Put:
		if code := m.mayWrite(who, string(op.Put.Key), string(op.Put.Value)); code != 0 {
			return code, ""
		}
		m.state[string(op.Put.Key)] = string(op.Put.Value)
	case *tx.Operation_Delete:
		if code := m.mayWrite(who, string(op.Delete.Key), ""); code != 0 {
			return code, ""
		}
		delete(m.state, string(op.Delete.Key))
	case *tx.Operation_CompareAndPut:
		if code := m.mayWrite(who, string(op.CompareAndPut.Key), string(op.CompareAndPut.Value)); code != 0 {
			return code, ""
		}
		if m.state[string(op.CompareAndPut.Key)] != string(op.CompareAndPut.Expected) {
			return tx.CodeCompareFailed, ""
		}
		m.state[string(op.CompareAndPut.Key)] = string(op.CompareAndPut.Value)
	case *tx.Operation_Add:
		return m.add(who, op.Add)
	case *tx.Operation_Read:
		value := m.state[string(op.Read.Key)]
		if m.reads += len(value); m.reads > ReadBudgetBytes {
			return tx.CodeReadBudget, ""
		}
		return 0, value
	case *tx.Operation_Grant:
		if !admin {
			return tx.CodeNotAdmin, ""
		}
		m.setU64(GrantKey(op.Grant.Grantee, op.Grant.Prefix), op.Grant.Quota)
	case *tx.Operation_Revoke:
		if !admin {
			return tx.CodeNotAdmin, ""
		}
		delete(m.state, string(GrantKey(op.Revoke.Grantee, op.Revoke.Prefix)))
	case *tx.Operation_SetValidator:
		if !admin {
			return tx.CodeNotAdmin, ""
		}
		k := "\x00v" + string(op.SetValidator.PublicKey)
		if op.SetValidator.Power == 0 {
			delete(m.state, k)
		} else {
			m.setU64([]byte(k), op.SetValidator.Power)
		}
		if m.count("\x00v") == 0 || op.SetValidator.Power > 1<<58 {
			return tx.CodeInvalidChange, ""
		}
		sum := uint64(0)
		for k := range m.state {
			if strings.HasPrefix(k, "\x00v") {
				sum += m.u64([]byte(k))
			}
		}
		if sum > 1<<58 {
			return tx.CodeInvalidChange, ""
		}
	case *tx.Operation_SetAdmin:
		if !admin {
			return tx.CodeNotAdmin, ""
		}
		k := "\x00a" + string(op.SetAdmin.Account)
		if _, there := m.state[k]; !op.SetAdmin.Remove {
			m.state[k] = "\x01"
		} else if there {
			delete(m.state, k)
			delete(m.state, "\x00o"+k[2:])
			if m.count("\x00a") < m.threshold() {
				return tx.CodeInvalidChange, ""
			}
		}
	default:
		return m.together(who, operation)
	}
	m.recount()
	return 0, ""
}

// add returns the new number.
func (m *model) add(who string, op *tx.Add) (tx.Code, string) {
	key := string(op.Key)
	if code := m.mayWrite(who, key, ""); code == tx.CodeUnauthorized {
		return code, ""
	}
	number := new(big.Int)
	if old, there := m.state[key]; there {
		_, ok := number.SetString(old, 10)
		if !ok || !number.IsInt64() || number.String() != old {
			return tx.CodeNotNumber, ""
		}
	}
	number.Add(number, big.NewInt(op.Delta))
	if least, most := op.Limits(); number.Cmp(big.NewInt(least)) < 0 || number.Cmp(big.NewInt(most)) > 0 {
		return tx.CodeOutOfBounds, ""
	}
	if code := m.mayWrite(who, key, number.String()); code != 0 {
		return code, ""
	}
	m.state[key] = number.String()
	return 0, m.state[key]
}

// recount computes the 0x00 'c' records from the grants.
func (m *model) recount() {
	counts := map[string]uint64{}
	for k := range m.state {
		if strings.HasPrefix(k, "\x00c") {
			delete(m.state, k)
		}
		if strings.HasPrefix(k, "\x00g") {
			counts[k[34:]]++
		}
	}
	for prefix, n := range counts {
		m.setU64(CoverKey([]byte(prefix)), n)
	}
}

// generator makes random transactions over few accounts, keys and prefixes, most of which can
// succeed.
type generator struct {
	*rand.Rand
	t       *testing.T
	names   []string
	numbers bool // also operations of app version 2
}

func (g *generator) pick(from ...string) string { return from[g.IntN(len(from))] }

func (g *generator) key() string {
	return g.pick("a", "a", "ab", "abc", "b", "ba", "c") + g.pick("", "", "1", "2", "3", "\xff")
}

// value returns a value. A long one stays on storage nodes when it is written over.
func (g *generator) value() string {
	if g.IntN(6) == 0 {
		return strings.Repeat(g.pick("x", "y"), 1100+g.IntN(2)*g.IntN(3000))
	}
	return strings.Repeat(g.pick("x", "y"), 1+g.IntN(40))
}

func (g *generator) grantee() []byte {
	if g.IntN(4) == 0 {
		return nil
	}
	return account(g.pick(g.names...))
}

func (g *generator) prefix() string { return g.pick("", "a", "ab", "abc", "b", "c", "a1", "\xff") }

// number returns an addition, mostly to a key whose values are numbers.
func (g *generator) number() tx.Operation {
	key := []byte(g.pick("an1", "an1", "an2", "abn", "bn", "cn", g.key()))
	delta := []int64{1, 1, 3, -2, 1 << 62, -1 << 63}[g.IntN(6)]
	if g.IntN(2) == 0 {
		return tx.NewAdd(key, delta)
	}
	return tx.NewBoundedAdd(key, delta, -g.Int64N(5), g.Int64N(30))
}

func (g *generator) operation(state map[string]string) tx.Operation {
	if g.numbers && g.IntN(8) == 0 {
		return g.number()
	}
	switch g.IntN(30) {
	case 24, 25, 26, 27, 28, 29:
		return g.newOperation(state)
	case 0, 1:
		return del(g.key())
	case 2, 3:
		k := g.key()
		return cas(k, g.pick("", state[k], state[k], "x"), g.value())
	case 4, 5:
		return read(g.pick(g.key(), string(NonceKey(account(g.pick(g.names...)))), string(ParamsKey())))
	case 6, 7:
		return grantOp(g.grantee(), g.prefix(), uint64(g.IntN(2)*g.IntN(400)))
	case 8:
		return revokeOp(g.grantee(), g.prefix())
	case 9, 10, 13:
		who, power := account(g.pick(validatorNames...)), []uint64{0, 0, 1, 5, 1 << 58, 1<<58 - 5, 1<<64 - 1}[g.IntN(7)]
		if power > 0 && g.IntN(2) == 0 {
			return confirmedOp(who, power)
		}
		return validatorOp(who, power)
	case 11:
		return adminOp(account(g.pick(g.names...)), g.IntN(2) == 0)
	case 12:
		return tx.NewSetThreshold(1 + uint64(g.IntN(2)*g.IntN(4)))
	default:
		return put(g.key(), g.value())
	}
}

// validatorNames are the keys that may become validators.
var validatorNames = []string{"v1", "v2", "v3"}

// lastCommit returns a commit by some of them.
func (g *generator) lastCommit() (commit abci.CommitInfo) {
	for _, name := range validatorNames {
		flags := []cmtproto.BlockIDFlag{cmtproto.BlockIDFlagAbsent, cmtproto.BlockIDFlagNil, cmtproto.BlockIDFlagCommit, cmtproto.BlockIDFlagCommit}
		commit.Votes = append(commit.Votes, vote(name, flags[g.IntN(len(flags))]))
	}
	return commit
}

// transaction returns a transaction whose nonce is usually the next one.
func (g *generator) transaction(m *model, waiting map[string]uint64) []byte {
	if g.IntN(8) == 0 {
		return []byte(g.key() + g.pick("=", ":") + g.value())
	}
	name := g.pick("root", g.pick(g.names...))
	nonce := m.u64(NonceKey(account(name))) + waiting[name]
	switch g.IntN(12) {
	case 0:
		nonce += uint64(g.IntN(3))
	default:
		waiting[name]++
	}
	operations := make([]tx.Operation, 1+g.IntN(4))
	for i := range operations {
		operations[i] = g.operation(m.state)
	}
	if g.IntN(4) == 0 {
		operations = []tx.Operation{g.together(m)}
	}
	raw := sign(g.t, name, nonce, operations...)
	if g.IntN(30) == 0 {
		raw[g.IntN(len(raw))] ^= 1 << g.IntN(8)
	}
	return raw
}

// Random blocks are compared with the model and with CometBFT's validator set, on two instances:
// one executes the blocks that the other proposes, and is restarted at times.
func TestAgainstModel(t *testing.T) {
	g := &generator{Rand: seeds.Rand(t), t: t, names: []string{"alice", "bob", "carol", "root"}, numbers: true}
	const appState = `{"chunk_bytes": 150, "open": true, "admins": ["@root"], "grants": [
		{"grantee": "@alice", "prefix": "a"}, {"grantee": "@bob", "prefix": "ab", "quota": 100}, {"grantee": "*", "prefix": "c", "quota": 50}]}`
	stores := []*memoryStore{{}, {}}
	start := func(store *memoryStore) *App {
		a := newTestAppWith(t, store, toyEngine{})
		_, err := a.InitChain(ctx, initRequest(appState))
		require.NoError(t, err)
		runBlock(t, a, sign(t, "root", 0, upgradeOp(2, 2)))
		runBlock(t, a)
		return a
	}
	proposer, follower := start(stores[0]), start(stores[1])
	m := &model{state: map[string]string{}, open: true, height: 2}
	for _, kv := range entries(t, follower.block.version) {
		m.state[string(kv.Key)] = string(kv.Value)
	}
	validators := cmttypes.NewValidatorSet([]*cmttypes.Validator{cmttypes.NewValidator(key("v1").PubKey(), 10)})
	seen, together := map[tx.Code]int{}, 0
	blocks, codes := 150, []tx.Code{tx.CodeOK, tx.CodeUnauthorized, tx.CodeBadNonce, tx.CodeCompareFailed, tx.CodeQuota, tx.CodeTextClosed,
		tx.CodeNotAdmin, tx.CodeInvalidChange, tx.CodeUnconfirmed, tx.CodeRangeLimit, tx.CodeThreshold, tx.CodeNotNumber, tx.CodeOutOfBounds}
	if testing.Short() {
		blocks, codes = 30, nil // too few for the rare ones
	}
	missed := func(code tx.Code) bool { return seen[code] == 0 }
	for i := 0; i < blocks || !testing.Short() && together == 0 || slices.ContainsFunc(codes, missed); i++ {
		require.Less(t, i, 100*blocks, "the random blocks miss one of %v: %v; executed proposals: %d", codes, seen, together)
		var txs [][]byte
		waiting := map[string]uint64{}
		last := abci.CommitInfo{}
		if i > 0 {
			last = g.lastCommit()
		}
		for range g.IntN(30) {
			txs = append(txs, g.transaction(m, waiting))
		}
		if g.IntN(2) == 0 { // the selection of a proposer, otherwise all of them
			prepared, err := proposer.PrepareProposal(ctx, &abci.RequestPrepareProposal{Txs: txs, MaxTxBytes: 1 << 20, LocalLastCommit: extended(last)})
			require.NoError(t, err)
			txs = prepared.Txs
			accepted, err := follower.ProcessProposal(ctx, &abci.RequestProcessProposal{Txs: txs})
			require.NoError(t, err)
			require.True(t, accepted.IsAccepted())
		}
		// A block of a round without a decision.
		finalize(t, proposer, g.transaction(m, map[string]uint64{}))
		res := runBlockAfter(t, proposer, last, txs...)
		if g.IntN(5) == 0 {
			follower = newTestAppWith(t, stores[1], toyEngine{})
		}
		again := runBlockAfter(t, follower, last, txs...)
		require.Equal(t, res, again, "block %d", i)

		m.begin(last, validatorNames...)
		for j, raw := range txs {
			var (
				code   tx.Code
				values []tx.OperationResult
			)
			if decoded, err := tx.Decode(raw, testChain); err != nil {
				code = refusal(err, tx.CodeMalformed).Code
			} else {
				code, values = m.execute(decoded)
			}
			r := res.TxResults[j]
			seen[code]++
			require.Equal(t, code, tx.Code(r.Code), "block %d, transaction %d: %s", i, j, r.Log)
			var result tx.Result
			require.NoError(t, result.Unmarshal(r.Data))
			require.Len(t, result.Results, len(values))
			for n, value := range values {
				requireResult(t, value, result.Results[n])
				if string(value.Value) == "\x01" {
					together++
				}
			}
		}
		checkState(t, proposer, m)
		checkValidators(t, validators, res.ValidatorUpdates, m)
	}
	t.Log("codes:", seen, "proposals that were executed:", together)
}

func checkState(t *testing.T, a *App, m *model) {
	t.Helper()
	_, v := a.Latest()
	defer v.Release()
	require.Equal(t, len(m.state), int(v.Len()))
	for _, kv := range entries(t, v) {
		if want, ok := m.state[string(kv.Key)]; !ok || want != string(kv.Value) {
			require.Fail(t, "state differs", "key %q: %q, the model has %q (%t)", kv.Key, kv.Value, want, ok)
		}
	}
}

// checkValidators applies the updates as CometBFT does, which must succeed, and compares the set
// with the records.
func checkValidators(t *testing.T, set *cmttypes.ValidatorSet, updates []abci.ValidatorUpdate, m *model) {
	t.Helper()
	require.True(t, slices.IsSortedFunc(updates, func(a, b abci.ValidatorUpdate) int {
		return bytes.Compare(a.PubKey.GetEd25519(), b.PubKey.GetEd25519())
	}))
	changes, err := cmttypes.PB2TM.ValidatorUpdates(updates)
	require.NoError(t, err)
	if len(changes) > 0 {
		require.NoError(t, set.UpdateWithChangeSet(changes))
	}
	require.Equal(t, m.count("\x00v"), set.Size())
	for _, v := range set.Validators {
		require.Equal(t, uint64(v.VotingPower), m.u64(ValidatorKey(v.PubKey.Bytes())), fmt.Sprint(v))
	}
}
