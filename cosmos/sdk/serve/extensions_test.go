package serve_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// code is an extension snapshotter like that of a module with contracts.
type code struct {
	name  string
	files [][]byte
	fails error // the error of RestoreExtension
}

func (c *code) SnapshotName() string       { return c.name }
func (c *code) SnapshotFormat() uint32     { return 7 }
func (c *code) SupportedFormats() []uint32 { return []uint32{7} }

func (c *code) SnapshotExtension(_ uint64, write generation.ExtensionPayloadWriter) error {
	for _, f := range c.files {
		if err := write(f); err != nil {
			return err
		}
	}
	return nil
}

func (c *code) RestoreExtension(height uint64, format uint32, read generation.ExtensionPayloadReader) error {
	if height != interval || format != 7 {
		return fmt.Errorf("height %d, format %d", height, format)
	}
	for {
		b, err := read()
		if errors.Is(err, io.EOF) {
			return c.fails
		}
		if err != nil {
			return err
		}
		c.files = append(c.files, bytes.Clone(b))
	}
}

// contracts returns the creator of an application with a store of contracts, and their code in
// extensions, in the order of names; without a snapshot manager if there are none, not even an
// empty list.
func contracts(t *testing.T, extensions ...*code) generation.NewApp {
	return func(logger generation.Logger, db dbm.DB, o servertypes.AppOptions) servertypes.Application {
		app := newBase(logger, db, "wasm")
		if extensions != nil {
			store, err := generation.NewSnapshotStore(dbm.NewMemDB(), t.TempDir())
			require.NoError(t, err)
			every, _ := o.Get("state-sync.snapshot-interval").(int)
			app.SetSnapshot(store, generation.NewSnapshotOptions(uint64(every), 2))
			for _, c := range extensions {
				require.NoError(t, app.SnapshotManager().RegisterExtensions(c))
			}
		}
		return loaded(app)
	}
}

// ours waits until a snapshot in verified chunks is offered, and returns it. There must be only
// one.
func ours(t *testing.T, app servertypes.Application) (s *abci.Snapshot) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, s = range listOurs(t, app) {
		}
		return s != nil
	}, time.Minute, 10*time.Millisecond)
	return s
}

// listOurs returns the snapshots in verified chunks, in any format.
func listOurs(t *testing.T, app servertypes.Application) (list []*abci.Snapshot) {
	t.Helper()
	r, err := app.ListSnapshots(&abci.RequestListSnapshots{})
	require.NoError(t, err)
	for _, have := range r.Snapshots {
		if have.Format != generation.CurrentFormat {
			list = append(list, have)
		}
	}
	return list
}

// TestExtensions checks that extension chunks follow the chunks of the state, and that the SDK's
// manager restores them with the joiner's RestoreExtension after the state is installed.
func TestExtensions(t *testing.T) {
	rnd := rand.NewChaCha8([32]byte{1})
	file := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rnd.Read(b)
		return b
	}
	wasm, other := &code{name: "wasm", files: [][]byte{file(6_000_000), file(1), file(9_000_000)}}, &code{name: "zz", files: [][]byte{file(100)}}
	create := func(c generation.NewApp, o options) servertypes.Application {
		return wrapped(c, generation.NewNopLogger(), dbm.NewMemDB(), o)
	}
	from := wrapped(contracts(t, wasm, other), generation.NewNopLogger(), open(t, dbm.GoLevelDBBackend, t.TempDir()),
		options{"state-sync.snapshot-interval": interval})
	begin(t, from)
	var hash []byte
	for h := int64(1); h <= interval; h++ {
		hash = block(t, h, from)
	}
	s := ours(t, from)
	_, rest, err := iavlsync.SplitManifest(iavlsync.Format(s.Format), s.Metadata)
	require.NoError(t, err)
	state := s.Chunks - 2
	require.Len(t, rest, 2*32, "15 MB that cannot be compressed")
	offer := func(to servertypes.Application, change func(s *abci.Snapshot)) abci.ResponseOfferSnapshot_Result {
		changed := *s
		change(&changed)
		r, err := to.OfferSnapshot(&abci.RequestOfferSnapshot{Snapshot: &changed, AppHash: hash})
		require.NoError(t, err)
		return r.Result
	}
	same := func(*abci.Snapshot) {}
	load := func(k uint32) []byte {
		r, err := from.LoadSnapshotChunk(&abci.RequestLoadSnapshotChunk{Height: s.Height, Format: s.Format, Chunk: k})
		require.NoError(t, err)
		return r.Chunk
	}
	require.Empty(t, load(s.Chunks))
	apply := func(to servertypes.Application, k uint32, chunk []byte) *abci.ResponseApplySnapshotChunk {
		r, err := to.ApplySnapshotChunk(&abci.RequestApplySnapshotChunk{Index: k, Chunk: chunk, Sender: "somebody"})
		require.NoError(t, err)
		return r
	}

	restored, more := &code{name: "wasm"}, &code{name: "zz"}
	to := create(contracts(t, restored, more), options{})
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT, offer(to, func(s *abci.Snapshot) {
		s.Metadata, s.Chunks = s.Metadata[:len(s.Metadata)-len(rest)], state
	}), "without the code the application would fail later")
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT, offer(to, func(s *abci.Snapshot) { s.Metadata = s.Metadata[:len(s.Metadata)-32] }))
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT_SENDER, offer(to, func(s *abci.Snapshot) { s.Metadata = s.Metadata[:len(s.Metadata)-1] }))
	require.Equal(t, abci.ResponseOfferSnapshot_REJECT, offer(create(contracts(t), options{}), same), "no manager")

	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(to, same))
	early := apply(to, state, load(state))
	require.Equal(t, abci.ResponseApplySnapshotChunk_RETRY, early.Result)
	require.Empty(t, early.RejectSenders, "the chunk is early but valid")
	for k := range s.Chunks {
		if k >= state {
			require.Empty(t, restored.files, "extensions are restored after the last chunk")
		}
		lie := append(bytes.Clone(load(k)), 0)
		r := apply(to, k, lie)
		require.Equal(t, abci.ResponseApplySnapshotChunk_RETRY, r.Result)
		require.Equal(t, []string{"somebody"}, r.RejectSenders)
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, apply(to, k, load(k)).Result)
	}
	require.Equal(t, wasm.files, restored.files)
	require.Equal(t, other.files, more.files)
	list, err := to.ListSnapshots(&abci.RequestListSnapshots{})
	require.NoError(t, err)
	require.Empty(t, list.Snapshots, "the manager's own snapshot, which has no stores, is deleted")
	info, err := to.Info(&abci.RequestInfo{})
	require.NoError(t, err)
	require.EqualValues(t, interval, info.LastBlockHeight)
	require.Equal(t, hash, info.LastBlockAppHash)
	block(t, interval+1, from, to)

	// A node is killed after the state is installed and before the extensions are restored.
	db := dbm.NewMemDB()
	killed := wrapped(contracts(t, &code{name: "wasm"}, &code{name: "zz"}), generation.NewNopLogger(), db, options{})
	require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(killed, same))
	for k := range s.Chunks - 1 {
		require.Equal(t, abci.ResponseApplySnapshotChunk_ACCEPT, apply(killed, k, load(k)).Result)
		_, err := killed.Info(&abci.RequestInfo{})
		require.NoError(t, err, "the join is in progress")
	}
	again := wrapped(contracts(t, &code{name: "wasm"}, &code{name: "zz"}), generation.NewNopLogger(), db, options{})
	require.Equal(t, abci.ResponseOfferSnapshot_ABORT, offer(again, same))
	_, err = again.InitChain(&abci.RequestInitChain{ChainId: chainID, InitialHeight: 1, Time: time.Unix(1, 0)})
	require.ErrorContains(t, err, "without its extension files")
	_, err = again.Info(&abci.RequestInfo{})
	require.ErrorContains(t, err, "without its extension files", "CometBFT would panic: it has no blocks, but the state has a height")
	has, err := db.Has([]byte("starling-join/files"))
	require.NoError(t, err)
	require.True(t, has)

	// An extension whose restore fails, and an extension that the application does not have.
	for _, bad := range [][]*code{{{name: "wasm", fails: errors.New("no room")}, {name: "zz"}}, {{name: "wasm"}}} {
		to := create(contracts(t, bad...), options{})
		require.Equal(t, abci.ResponseOfferSnapshot_ACCEPT, offer(to, same))
		var last abci.ResponseApplySnapshotChunk_Result
		for k := range s.Chunks {
			last = apply(to, k, load(k)).Result
		}
		require.Equal(t, abci.ResponseApplySnapshotChunk_ABORT, last)
		require.NoError(t, to.Close())
	}
	require.NoError(t, to.Close())
	require.NoError(t, from.Close())
}

// TestNoSnapshotOfFiles checks that a state whose module keeps files is not offered without them,
// and that the log says why.
func TestNoSnapshotOfFiles(t *testing.T) {
	for _, c := range []struct {
		extensions []*code
		says       string
	}{
		{nil, "the SDK has made no snapshot of this height"},
		{[]*code{}, "the SDK's snapshot of this height has no files"},
	} {
		var lines logged
		app := wrapped(contracts(t, c.extensions...), generation.NewLogger(&lines), open(t, dbm.GoLevelDBBackend, t.TempDir()), serving())
		begin(t, app)
		for h := int64(1); h <= interval; h++ {
			block(t, h, app)
		}
		require.Eventually(t, func() bool { return strings.Contains(lines.String(), c.says) }, time.Minute, 10*time.Millisecond)
		require.Empty(t, listOurs(t, app))
		require.NoError(t, app.Close())
	}
}

// logged collects the log of an application.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
