package signer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	"github.com/cometbft/cometbft/privval"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/crashfs"
	"github.com/starling-kv/starling/internal/seeds"
)

const chain = "test-chain"

var key = ed25519.GenPrivKeyFromSecret([]byte("signer"))

// home returns the path of a new validator's signing state.
func home(t *testing.T, fs vfs.FS, dir string) string {
	t.Helper()
	path := fs.PathJoin(dir, "priv_validator_state.json")
	replace(t, fs, path, privval.FilePVLastSignState{})
	return path
}

func replace(t *testing.T, fs vfs.FS, path string, state privval.FilePVLastSignState) {
	t.Helper()
	text, err := cmtjson.MarshalIndent(state, "", "  ")
	require.NoError(t, err)
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = file.Write(text)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())
	dir, err := fs.OpenDir(fs.PathDir(path))
	require.NoError(t, err)
	require.NoError(t, dir.Sync())
	require.NoError(t, dir.Close())
}

func open(t *testing.T, fs vfs.FS, path string) *Signer {
	t.Helper()
	s, err := Open(fs, key, path)
	require.NoError(t, err)
	return s
}

// block returns the ID of one of some blocks; 0: nil.
func block(n byte) (id cmtproto.BlockID) {
	if n > 0 {
		hash := make([]byte, 32)
		hash[0] = n
		id.Hash, id.PartSetHeader = hash, cmtproto.PartSetHeader{Total: 1, Hash: hash}
	}
	return id
}

// request is a vote or a proposal to sign.
type request struct {
	kind   cmtproto.SignedMsgType
	height int64
	round  int32
	block  byte
	at     int64 // seconds
	extend bool
}

func draw(random *rand.Rand, height int64) request {
	kinds := []cmtproto.SignedMsgType{cmtproto.ProposalType, cmtproto.PrevoteType, cmtproto.PrecommitType}
	return request{kinds[random.IntN(3)], height + random.Int64N(3) - 1, random.Int32N(2), byte(random.IntN(3)), random.Int64N(3), random.IntN(4) == 0} //nolint:gosec // below 3
}

func (r request) String() string {
	return fmt.Sprintf("%v %d/%d block %d at %d", r.kind, r.height, r.round, r.block, r.at)
}

// sign returns what a validator signs: the time and the signature.
func (r request) sign(v types.PrivValidator) (at time.Time, signature []byte, err error) {
	if r.kind == cmtproto.ProposalType {
		p := &cmtproto.Proposal{Type: r.kind, Height: r.height, Round: r.round, PolRound: -1, BlockID: block(r.block + 1), Timestamp: time.Unix(r.at, 0).UTC()}
		err = v.SignProposal(chain, p)
		return p.Timestamp, p.Signature, err
	}
	vote := &cmtproto.Vote{Type: r.kind, Height: r.height, Round: r.round, BlockID: block(r.block), Timestamp: time.Unix(r.at, 0).UTC()}
	if r.extend {
		vote.Extension = []byte("extension")
	}
	err = v.SignVote(chain, vote)
	return vote.Timestamp, append(vote.Signature, vote.ExtensionSignature...), err
}

// The signer and CometBFT's FilePV sign, and refuse, the same.
func TestSameAsFilePV(t *testing.T) {
	random := rand.New(rand.NewPCG(seeds.New(t), 0)) //nolint:gosec // it must be reproducible
	dir := t.TempDir()
	ours := home(t, vfs.Default, dir)
	s := open(t, vfs.Default, ours)
	theirs := privval.NewFilePV(key, filepath.Join(dir, "key.json"), filepath.Join(dir, "state.json"))
	height, signed := int64(2), 0
	for i := range 1000 {
		if random.IntN(4) == 0 {
			height++
		}
		r := draw(random, height)
		at, signature, err := r.sign(s)
		wantAt, want, wantErr := r.sign(theirs)
		require.Equal(t, wantErr == nil, err == nil, "%d: %v: %v, FilePV: %v", i, r, err, wantErr)
		if err != nil {
			continue
		}
		signed++
		require.Equal(t, want, signature, "%d: %v", i, r)
		require.True(t, at.Equal(wantAt), "%d: %v", i, r)
		if random.IntN(100) == 0 { // as after a kill
			s = open(t, vfs.Default, ours)
		}
		if random.IntN(20) > 0 {
			continue
		}
		// Another program finds what FilePV would have written.
		var state privval.FilePVLastSignState
		text, err := os.ReadFile(ours)
		require.NoError(t, err)
		require.NoError(t, cmtjson.Unmarshal(text, &state))
		require.Equal(t, theirs.LastSignState.Height, state.Height)
		require.Equal(t, theirs.LastSignState.SignBytes, state.SignBytes)
	}
	require.Greater(t, signed, 150)
	_, _, err := request{kind: cmtproto.SignedMsgType(9)}.sign(s)
	require.ErrorContains(t, err, "unknown type")
}

// A power failure before any change of the disk never makes a validator sign twice: what was sent
// is known afterwards.
func TestPowerFailures(t *testing.T) {
	seed := seeds.New(t)
	cuts := 0
	for round := range uint64(4) {
		sent := map[int64]request{} // by height
		crashfs.AtEachChange(t, seed+round, 1, func(fs *crashfs.FS) {
			clear(sent)
			path := home(t, fs, crashfs.Dir)
			s := open(t, fs, path)
			for height := range int64(20) {
				r := request{kind: cmtproto.PrevoteType, height: height + 1, block: 1}
				_, _, err := r.sign(s)
				require.NoError(t, err)
				fs.Done.Add(1)
				sent[height+1] = r
			}
			require.NoError(t, s.Close())
		}, func(t *testing.T, c *crashfs.FS) {
			t.Helper()
			path := c.PathJoin(crashfs.Dir, "priv_validator_state.json")
			s, err := Open(c.Left, key, path)
			if c.Confirmed == 0 && err != nil {
				return // the home is not complete
			}
			require.NoError(t, err)
			cuts++
			for height := int64(1); height <= c.Confirmed; height++ {
				_, _, err := request{kind: cmtproto.PrevoteType, height: height, block: 2}.sign(s)
				require.Error(t, err, "height %d of %d", height, c.Confirmed)
			}
			if c.Confirmed > 0 { // the last signature is given again
				_, _, err = sent[c.Confirmed].sign(s)
				if s.last.Height == c.Confirmed {
					require.NoError(t, err)
				}
			}
			_, _, err = request{kind: cmtproto.PrevoteType, height: c.Confirmed + 2, block: 2}.sign(s)
			require.NoError(t, err)
		})
	}
	require.Greater(t, cuts, 200)
}

func TestNewestOfBothFiles(t *testing.T) {
	fs := vfs.NewMem()
	path := home(t, fs, "")
	at := func(height int64) request { return request{kind: cmtproto.PrecommitType, height: height, block: 1} }
	refuses := func(s *Signer, height int64) {
		t.Helper()
		_, _, err := at(height).sign(s)
		require.ErrorContains(t, err, "height regression")
	}
	require.NoError(t, open(t, fs, path).Close()) // without a signature there are no slots
	_, err := fs.Stat(SlotsFile(path))
	require.Error(t, err)
	s := open(t, fs, path)
	for height := int64(1); height <= 6; height++ {
		_, _, err := at(height).sign(s)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	_, _, err = at(7).sign(s)
	require.ErrorIs(t, err, ErrClosed)

	// priv_validator_state.json is older, damaged, or newer than the slots.
	replace(t, fs, path, privval.FilePVLastSignState{Height: 3, Step: stepPrecommit})
	refuses(open(t, fs, path), 5)
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	refuses(open(t, fs, path), 5)
	replace(t, fs, path, privval.FilePVLastSignState{Height: 9, Step: stepPrecommit})
	refuses(open(t, fs, path), 8)

	// The slots of another key do not count.
	other, err := Open(fs, ed25519.GenPrivKeyFromSecret([]byte("other")), path)
	require.NoError(t, err)
	require.Equal(t, int64(9), other.last.Height)
	replace(t, fs, path, privval.FilePVLastSignState{})
	other, err = Open(fs, ed25519.GenPrivKeyFromSecret([]byte("other")), path)
	require.NoError(t, err)
	require.Zero(t, other.last.Height)
	_, _, err = at(1).sign(other)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	refuses(open(t, fs, path), 5) // nor are they forgotten

	require.NoError(t, fs.Remove(path))
	_, err = Open(fs, key, path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDamagedSlots(t *testing.T) {
	fs := vfs.NewMem()
	path := home(t, fs, "")
	s := open(t, fs, path)
	for height := int64(1); height <= 2; height++ {
		_, _, err := request{kind: cmtproto.PrevoteType, height: height, block: 1}.sign(s)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	replace(t, fs, path, privval.FilePVLastSignState{})
	damage := func(offset int64) {
		file, err := fs.OpenReadWrite(SlotsFile(path), vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = file.WriteAt([]byte("?"), offset)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	damage(20) // the slot of height 2
	require.Equal(t, int64(1), open(t, fs, path).last.Height)
	damage(slotBytes + 20)
	_, err := Open(fs, key, path)
	require.ErrorContains(t, err, "both slots are damaged")
}

// failing is a disk that does not sync.
type failing struct {
	vfs.FS
	syncs *int
}

type failingFile struct {
	vfs.File
	syncs *int
}

func (f failing) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return failingFile{file, f.syncs}, err
}

func (f failingFile) SyncData() error {
	if *f.syncs--; *f.syncs < 0 {
		return os.ErrInvalid
	}
	return f.File.SyncData()
}

// A signature that is not durable is not given, and nothing is signed after it.
func TestDiskFails(t *testing.T) {
	syncs := 0
	fs := failing{vfs.NewMem(), &syncs}
	path := home(t, fs, "")
	require.Panics(t, func() { _, _, _ = request{kind: cmtproto.PrevoteType, height: 1}.sign(open(t, fs, path)) }, "at its first use")
	syncs = 2
	s := open(t, fs, path)
	_, _, err := request{kind: cmtproto.PrevoteType, height: 1}.sign(s)
	require.NoError(t, err)
	require.Panics(t, func() { _, _, _ = request{kind: cmtproto.PrevoteType, height: 2}.sign(s) })
	syncs = 100
	require.Panics(t, func() { _, _, _ = request{kind: cmtproto.PrevoteType, height: 3}.sign(s) })
}

// A process is killed between the write of a signature and its sync, and the next one sends that
// signature, which it finds in the memory of the system. Then the power fails.
func TestKilledBeforeTheSync(t *testing.T) {
	mem := vfs.NewCrashableMem()
	require.NoError(t, mem.MkdirAll(crashfs.Dir, 0o755))
	root, err := mem.OpenDir("/")
	require.NoError(t, err)
	require.NoError(t, root.Sync())
	path := home(t, mem, crashfs.Dir)
	syncs := 2
	s := open(t, failing{mem, &syncs}, path)
	_, _, err = request{kind: cmtproto.PrevoteType, height: 1, block: 1}.sign(s)
	require.NoError(t, err)
	second := request{kind: cmtproto.PrevoteType, height: 2, block: 1}
	require.Panics(t, func() { _, _, _ = second.sign(s) })

	_, _, err = second.sign(open(t, mem, path))
	require.NoError(t, err)
	left := mem.CrashClone(vfs.CrashCloneCfg{})
	_, _, err = request{kind: cmtproto.PrevoteType, height: 2, block: 2}.sign(open(t, left, path))
	require.ErrorIs(t, err, ErrConflict)
}
