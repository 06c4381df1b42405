package app

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/app/program"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

const testChain = "test-chain"

var ctx = context.Background()

// key returns the deterministic key of a named account or validator.
func key(name string) ed25519.PrivKey { return ed25519.GenPrivKeyFromSecret([]byte(name)) }

func account(name string) []byte { return key(name).PubKey().Bytes() }

func hexOf(name string) string { return hex.EncodeToString(account(name)) }

// sign returns a transaction signed by name.
func sign(t testing.TB, name string, nonce uint64, operations ...tx.Operation) []byte {
	return signFor(t, testChain, name, nonce, operations...)
}

func signFor(t testing.TB, chain, name string, nonce uint64, operations ...tx.Operation) []byte {
	t.Helper()
	raw, err := tx.Sign(key(name), chain, &tx.Body{Nonce: nonce, Operations: operations})
	require.NoError(t, err)
	return raw
}

// forge signs a body, even if tx.Sign would refuse it.
func forge(t testing.TB, chain, name string, nonce uint64, operations ...tx.Operation) []byte {
	t.Helper()
	body, err := (&tx.Body{Account: account(name), Nonce: nonce, Operations: operations}).Marshal()
	require.NoError(t, err)
	signature, err := key(name).Sign(tx.SignBytes(chain, body))
	require.NoError(t, err)
	signed, err := (&tx.SignedTx{Body: body, Signature: signature}).Marshal()
	require.NoError(t, err)
	return append([]byte{0}, signed...)
}

func put(key, value string) tx.Operation {
	return tx.Operation{Op: &tx.Operation_Put{Put: &tx.Put{Key: []byte(key), Value: []byte(value)}}}
}

func del(key string) tx.Operation {
	return tx.Operation{Op: &tx.Operation_Delete{Delete: &tx.Delete{Key: []byte(key)}}}
}

func cas(key, expected, value string) tx.Operation {
	return tx.Operation{Op: &tx.Operation_CompareAndPut{CompareAndPut: &tx.CompareAndPut{Key: []byte(key), Expected: []byte(expected), Value: []byte(value)}}}
}

func read(key string) tx.Operation {
	return tx.Operation{Op: &tx.Operation_Read{Read: &tx.Read{Key: []byte(key)}}}
}

func grantOp(grantee []byte, prefix string, quota uint64) tx.Operation {
	return tx.Operation{Op: &tx.Operation_Grant{Grant: &tx.Grant{Grantee: grantee, Prefix: []byte(prefix), Quota: quota}}}
}

func revokeOp(grantee []byte, prefix string) tx.Operation {
	return tx.Operation{Op: &tx.Operation_Revoke{Revoke: &tx.Revoke{Grantee: grantee, Prefix: []byte(prefix)}}}
}

func validatorOp(publicKey []byte, power uint64) tx.Operation {
	return tx.Operation{Op: &tx.Operation_SetValidator{SetValidator: &tx.SetValidator{PublicKey: publicKey, Power: power}}}
}

func confirmedOp(publicKey []byte, power uint64) tx.Operation {
	return tx.NewConfirmedValidator(publicKey, power)
}

// vote is the entry of a validator in a last commit. Its power does not count: records do.
func vote(name string, flag cmtproto.BlockIDFlag) abci.VoteInfo {
	return abci.VoteInfo{Validator: abci.Validator{Address: key(name).PubKey().Address(), Power: 1}, BlockIdFlag: flag}
}

// signedBy is a last commit.
func signedBy(names ...string) (commit abci.CommitInfo) {
	for _, name := range names {
		commit.Votes = append(commit.Votes, vote(name, cmtproto.BlockIDFlagCommit))
	}
	return commit
}

// extended returns a commit in the form that the proposer of the next block receives.
func extended(commit abci.CommitInfo) (e abci.ExtendedCommitInfo) {
	for _, v := range commit.Votes {
		e.Votes = append(e.Votes, abci.ExtendedVoteInfo{Validator: v.Validator, BlockIdFlag: v.BlockIdFlag})
	}
	return e
}

func adminOp(account []byte, remove bool) tx.Operation {
	return tx.Operation{Op: &tx.Operation_SetAdmin{SetAdmin: &tx.SetAdmin{Account: account, Remove: remove}}}
}

func upgradeOp(version, height uint64) tx.Operation {
	return tx.Operation{Op: &tx.Operation_ScheduleUpgrade{ScheduleUpgrade: &tx.ScheduleUpgrade{Version: version, Height: height}}}
}

// initRequest returns the InitChain of a chain with one validator, v1.
func initRequest(appState string) *abci.RequestInitChain {
	params := cmttypes.DefaultConsensusParams()
	params.Block.MaxBytes = 4 << 20 // the default differs between releases of CometBFT
	proto := params.ToProto()
	return &abci.RequestInitChain{
		ChainId:         testChain,
		InitialHeight:   1,
		ConsensusParams: &proto,
		Validators:      []abci.ValidatorUpdate{abci.Ed25519ValidatorUpdate(account("v1"), 10)},
		AppStateBytes:   []byte(withAccounts(appState)),
	}
}

// withAccounts replaces "@name" by the account's key.
func withAccounts(text string) string {
	for {
		i := strings.Index(text, `"@`)
		if i < 0 {
			return text
		}
		end := i + 2 + strings.IndexByte(text[i+2:], '"')
		text = text[:i+1] + hexOf(text[i+2:end]) + text[end:]
	}
}

func newTestApp(t testing.TB, store Store) *App {
	t.Helper()
	return newTestAppWith(t, store, nil)
}

// newTestAppWith is newTestApp with an engine of programs.
func newTestAppWith(t testing.TB, store Store, programs program.Engine) *App {
	t.Helper()
	// A test must not depend on its speed, unless it tests that.
	a, err := New(Options{Store: store, KeepRecent: 4, ChainID: testChain, ProposalTime: time.Hour, Programs: programs})
	require.NoError(t, err)
	return a
}

// startChain is newTestApp followed by InitChain.
func startChain(t testing.TB, store Store, appState string) *App {
	t.Helper()
	a := newTestApp(t, store)
	_, err := a.InitChain(ctx, initRequest(appState))
	require.NoError(t, err)
	return a
}

// finalize executes a block at the next height, without a last commit, and without committing it.
func finalize(t testing.TB, a *App, txs ...[]byte) *abci.ResponseFinalizeBlock {
	t.Helper()
	return finalizeAfter(t, a, abci.CommitInfo{}, txs...)
}

// finalizeAfter is finalize of a block with a last commit.
func finalizeAfter(t testing.TB, a *App, last abci.CommitInfo, txs ...[]byte) *abci.ResponseFinalizeBlock {
	t.Helper()
	a.block.Lock()
	next := a.block.height + 1
	if a.block.height == 0 {
		next = a.block.initial
	}
	a.block.Unlock()
	res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: next, Txs: txs, DecidedLastCommit: last})
	require.NoError(t, err)
	return res
}

func runBlock(t testing.TB, a *App, txs ...[]byte) *abci.ResponseFinalizeBlock {
	t.Helper()
	return runBlockAfter(t, a, abci.CommitInfo{}, txs...)
}

// runBlockAfter is runBlock with a last commit.
func runBlockAfter(t testing.TB, a *App, last abci.CommitInfo, txs ...[]byte) *abci.ResponseFinalizeBlock {
	t.Helper()
	res := finalizeAfter(t, a, last, txs...)
	_, err := a.Commit(ctx, &abci.RequestCommit{})
	require.NoError(t, err)
	_, v := a.Latest()
	defer v.Release()
	hash := v.AppHash()
	require.Equal(t, hash[:], res.AppHash)
	return res
}

// must returns v, and panics on an error. It is for states that can be read.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// entries returns all entries of v, which are valid until v is released.
func entries(t testing.TB, v *avlstar.Version) (all []avlstar.KV) {
	t.Helper()
	for kv, err := range v.Ascend(nil, nil) {
		require.NoError(t, err)
		all = append(all, kv)
	}
	return all
}

// latest returns the last committed state, retained until the test ends; nil if there is none.
func latest(t testing.TB, a *App) *avlstar.Version {
	t.Helper()
	_, v := a.Latest()
	if v != nil {
		t.Cleanup(v.Release)
	}
	return v
}

// appHash returns the AppHash after block height, if that state is kept.
func appHash(a *App, height int64) (avlstar.Hash, error) {
	c, refused := a.acquire(height)
	if refused != nil {
		return avlstar.Hash{}, refused
	}
	defer c.version.Release()
	return c.version.AppHash(), nil
}

func codes(res *abci.ResponseFinalizeBlock) []tx.Code {
	var codes []tx.Code
	for _, r := range res.TxResults {
		codes = append(codes, tx.Code(r.Code))
	}
	return codes
}

// memoryStore is a Store that keeps the content of a disk: leaves and the heights of inner nodes.
// It checks that the application respects the contract, and fails on request. With lag it has a
// backlog of blocks, which are written later, or lost (crash).
type memoryStore struct {
	lag int // number of the newest blocks that are not written yet

	mu struct {
		sync.Mutex
		height      int64 // durable
		chunkBytes  uint64
		leaves      map[string][]byte
		heights     map[string]uint8
		given       int64            // height of the last Commit
		last        *avlstar.Version // version of given, for comparison only: no reference is held
		waiting     []waitingBlock
		failCommits error
	}
}

// waitingBlock is a block that was handed over and is not durable yet.
type waitingBlock struct {
	height        int64
	v, base       *avlstar.Version // hold references
	changes, seen []avlstar.Change // the changes as they were handed over, and a copy of them
}

func (b waitingBlock) release() {
	b.v.Release()
	if b.base != nil {
		b.base.Release()
	}
}

func (s *memoryStore) Load() (int64, *avlstar.Version, error) {
	s.crash()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.height == 0 {
		return 0, nil, nil
	}
	v, err := avlstar.FromLeaves(s.mu.chunkBytes, func(yield func(avlstar.Leaf, error) bool) {
		for _, k := range slices.Sorted(maps.Keys(s.mu.leaves)) {
			if !yield(avlstar.Leaf{Key: []byte(k), Value: s.mu.leaves[k], Height: s.mu.heights[k]}, nil) {
				return
			}
		}
	})
	s.mu.last = v
	return s.mu.height, v, err
}

// crash drops the blocks that are not durable.
func (s *memoryStore) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.mu.waiting {
		b.release()
	}
	s.mu.waiting, s.mu.given, s.mu.last = nil, s.mu.height, nil
}

func (s *memoryStore) Durable() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.height
}

func (s *memoryStore) Commit(height int64, v, base *avlstar.Version, changes []avlstar.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.failCommits != nil {
		return s.mu.failCommits
	}
	if base != s.mu.last {
		return errors.New("base is not the version that was committed last")
	}
	if s.mu.given != 0 && height != s.mu.given+1 {
		return fmt.Errorf("height %d after %d", height, s.mu.given)
	}
	b := waitingBlock{height: height, v: v, base: base, changes: changes}
	for i, c := range changes {
		if i > 0 && string(changes[i-1].Key) >= string(c.Key) {
			return errors.New("changes are not in order")
		}
		b.seen = append(b.seen, avlstar.Change{Key: bytes.Clone(c.Key), Value: bytes.Clone(c.Value)})
	}
	v.Retain()
	if base != nil {
		base.Retain()
	}
	s.mu.waiting = append(s.mu.waiting, b)
	s.mu.given, s.mu.last = height, v
	for len(s.mu.waiting) > s.lag {
		if err := s.write(s.mu.waiting[0]); err != nil {
			return err
		}
		s.mu.waiting = s.mu.waiting[1:]
	}
	return nil
}

// write makes a block durable. The caller holds s.mu.
func (s *memoryStore) write(b waitingBlock) error {
	defer b.release()
	if s.mu.leaves == nil {
		s.mu.leaves, s.mu.heights, s.mu.chunkBytes = map[string][]byte{}, map[string]uint8{}, b.v.ChunkBytes()
	}
	for i, c := range b.changes {
		if !bytes.Equal(c.Key, b.seen[i].Key) || !bytes.Equal(c.Value, b.seen[i].Value) {
			return fmt.Errorf("a change of block %d was changed after it was handed over", b.height)
		}
		if c.Value == nil {
			delete(s.mu.leaves, string(c.Key))
			delete(s.mu.heights, string(c.Key))
			continue
		}
		s.mu.leaves[string(c.Key)] = bytes.Clone(c.Value)
	}
	for k, h := range b.v.NewInner(b.base) {
		s.mu.heights[string(k)] = h
	}
	s.mu.height = b.height
	return nil
}

// fakeSnapshots records the heights that the application reports.
type fakeSnapshots struct {
	abci.BaseApplication
	mu struct {
		sync.Mutex
		heights []int64
	}
	oldest int64
	listed []uint64 // the heights that ListSnapshots returns
}

func (f *fakeSnapshots) Committed(height int64, _ *avlstar.Version) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.heights = append(f.mu.heights, height)
}

func (f *fakeSnapshots) OldestServed() int64 { return f.oldest }

func (f *fakeSnapshots) Offered() []SnapshotInfo {
	return []SnapshotInfo{{Height: 8, Format: 1, Chunks: 2, Hash: "ab"}}
}

func (f *fakeSnapshots) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	list := &abci.ResponseListSnapshots{}
	for _, h := range f.listed {
		s := &abci.Snapshot{Height: h, Format: 1, Chunks: 2, Hash: []byte{0xab}, Metadata: []byte("m")}
		list.Snapshots = append(list.Snapshots, s)
	}
	return list, nil
}
