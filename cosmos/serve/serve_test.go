package serve_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

const height = 12

// home returns the database of a server with a naive state.
func home(t *testing.T) (*nodedbtest.Mem, iavlsynctest.State) {
	naive := iavlsynctest.RandomState(seeds.Rand(t), 200, height)
	db := nodedbtest.NewMem()
	nodedbtest.WriteState(t, db, height, naive)
	return db, naive
}

func TestServer(t *testing.T) {
	db, naive := home(t)
	s := serve.New()
	failed := 0
	s.Failed = func(error) { failed++ }
	var m transport.Mux
	s.Register(&m)
	ask := func(method transport.Method, body []byte) ([]byte, error) {
		r := transport.Request{Method: method, Body: body}
		require.GreaterOrEqual(t, m.Weigh(r), int64(0))
		return m.Serve(context.Background(), r)
	}
	b, err := ask(iavlsync.MethodOffers, nil)
	require.NoError(t, err)
	require.Equal(t, iavlsync.Offers(nil).Encode(), b)

	state, err := nodedb.Open(db, height)
	require.NoError(t, err)
	require.NoError(t, s.Add(state))
	require.Equal(t, iavlsync.Offers{height}, s.Offers())
	limit, _ := iavlsync.Format8192.Leaves()
	manifest := iavlsync.ManifestRequest{Height: height, Format: iavlsync.Format8192}
	b, err = ask(iavlsync.MethodManifest, manifest.Encode())
	require.NoError(t, err)
	require.Equal(t, naive.Manifest(height, limit), b)
	manifest.Offset = iavlsync.ManifestPartBytes
	b, err = ask(iavlsync.MethodManifest, manifest.Encode())
	require.NoError(t, err)
	require.Empty(t, b)
	q := iavlsync.Request{Height: height, Store: "bank", Leaves: naive["bank"].Size()}
	b, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.NoError(t, err)
	require.Equal(t, append([]byte{0}, naive["bank"].Chunk()...), b)
	q.Packed = true
	b, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.NoError(t, err)
	_, b, err = packed.NewUnpacker().Split(b)
	require.NoError(t, err)
	require.Equal(t, naive["bank"].Chunk(), b)

	q.Leaves++
	_, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.ErrorIs(t, err, transport.ErrRefused)
	for _, method := range []transport.Method{iavlsync.MethodManifest, iavlsync.MethodLeaves} {
		_, err = ask(method, []byte("rubbish"))
		require.ErrorIs(t, err, transport.ErrRefused)
	}
	q.Height, q.Leaves = height+1, 1
	_, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.ErrorIs(t, err, transport.ErrGone)
	require.Zero(t, failed)

	for _, key := range db.Keys() { // the disk loses all its content
		db.Delete([]byte(key))
	}
	q.Height = height
	_, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.ErrorIs(t, err, iavlsync.ErrDamagedStore)
	require.Equal(t, 1, failed)
	s.Remove(height)
	_, err = ask(iavlsync.MethodLeaves, q.Encode())
	require.ErrorIs(t, err, transport.ErrGone)
}

func TestDamagedStateIsNotOffered(t *testing.T) {
	db, naive := home(t)
	commit := nodedb.Commit{Height: height}
	for _, name := range naive.Names() {
		commit.Stores = append(commit.Stores, nodedb.CommitStore{Name: name, Version: height, Hash: naive["gov"].Hash()})
	}
	nodedbtest.WriteCommit(t, db, &commit)
	state, err := nodedb.Open(db, height)
	require.NoError(t, err)
	err = serve.New().Add(state)
	require.True(t, errors.Is(err, nodedb.ErrOtherState), "%v", err)
}

// A client cannot make the server cut a state: eight requests for fine manifests would hold all
// workers for as long as that takes.
func TestFineManifestsAreRefused(t *testing.T) {
	db, _ := home(t)
	s := serve.New()
	var m transport.Mux
	s.Register(&m)
	state, err := nodedb.Open(db, height)
	require.NoError(t, err)
	require.NoError(t, s.Add(state))
	for _, f := range []iavlsync.Format{iavlsync.Format512, iavlsync.Format32} {
		_, err := state.Manifest(f)
		require.NoError(t, err)
		r := transport.Request{Method: iavlsync.MethodManifest, Body: (&iavlsync.ManifestRequest{Height: height, Format: f}).Encode()}
		_, err = m.Serve(context.Background(), r)
		require.ErrorIs(t, err, transport.ErrRefused)
	}
}

// gatedDB is a database whose reads wait while gate is locked.
type gatedDB struct {
	*nodedbtest.Mem
	gate    sync.RWMutex
	waiting chan struct{} // gets an element from each read that begins
}

func (d *gatedDB) Get(key []byte) ([]byte, error) {
	select {
	case d.waiting <- struct{}{}:
	default: // nobody counts
	}
	d.gate.RLock()
	defer d.gate.RUnlock()
	return d.Mem.Get(key)
}

// Requests for fine manifests read nothing, and requests for leaves that wait for the disk delay
// neither manifests nor other methods.
func TestRequestsDoNotHoldUpOthers(t *testing.T) {
	const workers, other = 8, transport.Method(200)
	mem, naive := home(t)
	db := &gatedDB{Mem: mem, waiting: make(chan struct{}, workers)}
	s := serve.New()
	state, err := nodedb.Open(db, height)
	require.NoError(t, err)
	require.NoError(t, s.Add(state))
	mux := new(transport.Mux)
	s.Register(mux)
	mux.Handle(other, transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return []byte("header"), nil }))
	server, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: transporttest.Key(1), ChainID: "chain", Handler: mux, Lanes: serve.Lanes()})
	require.NoError(t, err)
	defer server.Close() //nolint:errcheck // the test is over
	dialer := tcp.NewDialer(tcp.Options{Key: transporttest.Key(2), ChainID: "chain"})
	// A connection has its own limit.
	ask := func(method transport.Method, body []byte) ([]byte, error) {
		conn, err := dialer.Dial(t.Context(), transport.Address{HostPort: server.Addr().String()})
		if err != nil {
			return nil, err
		}
		defer conn.Close() //nolint:errcheck // only read from
		return conn.Call(t.Context(), transport.Call{Method: method, Body: body, Max: 1 << 20})
	}
	leaves := (&iavlsync.Request{Height: height, Store: "bank", Leaves: naive["bank"].Size()}).Encode()
	want := append([]byte{0}, naive["bank"].Chunk()...)

	db.gate.Lock()
	for len(db.waiting) > 0 {
		<-db.waiting
	}
	for range workers {
		_, err := ask(iavlsync.MethodManifest, (&iavlsync.ManifestRequest{Height: height, Format: iavlsync.Format32}).Encode())
		require.ErrorIs(t, err, transport.ErrRefused)
	}
	require.Empty(t, db.waiting)
	var held sync.WaitGroup
	for range workers {
		held.Go(func() {
			b, err := ask(iavlsync.MethodLeaves, leaves)
			assert.NoError(t, err)
			assert.Equal(t, want, b)
		})
	}
	for range workers {
		<-db.waiting
	}
	_, err = ask(iavlsync.MethodManifest, (&iavlsync.ManifestRequest{Height: height, Format: iavlsync.Format8192}).Encode())
	require.NoError(t, err)
	_, err = ask(other, nil)
	require.NoError(t, err)
	db.gate.Unlock()
	held.Wait()
}
