package join_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/cosmos/serve"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const (
	chainID = "cosmos-test"
	height  = 12
)

// headers are the headers that a test trusts.
type headers map[int64][]byte

func (h headers) AppHash(_ context.Context, height int64) ([]byte, error) {
	if h[height] == nil {
		return nil, fmt.Errorf("no header of height %d", height+1)
	}
	return h[height], nil
}

// world is a network of servers of one state, some of which are hostile.
type world struct {
	t       *testing.T
	naive   iavlsynctest.State
	network transporttest.Network
	peers   []transport.Address
	logs    []string
}

func newWorld(t *testing.T, naive iavlsynctest.State) *world { return &world{t: t, naive: naive} }

func randomWorld(t *testing.T, keys int) *world {
	return newWorld(t, iavlsynctest.RandomState(seeds.Rand(t), keys, height))
}

// server returns the handlers of an honest server.
func (w *world) server() *transport.Mux {
	db := nodedbtest.NewMem()
	nodedbtest.WriteState(w.t, db, height, w.naive)
	state, err := nodedb.Open(db, height)
	require.NoError(w.t, err)
	s := serve.New()
	require.NoError(w.t, s.Add(state))
	m := &transport.Mux{}
	s.Register(m)
	return m
}

// add adds a server whose responses are made by change; nil: it is honest.
func (w *world) add(change func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error)) {
	n := len(w.peers) + 1
	var h transport.Handler = w.server()
	if honest := h; change != nil {
		h = transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) { return change(ctx, honest, r) })
	}
	l, err := w.network.Listen(fmt.Sprintf("peer%d:1", n), transporttest.Config{ID: transporttest.ID(n), ChainID: chainID, Handler: h})
	require.NoError(w.t, err)
	w.t.Cleanup(l.Close)
	w.peers = append(w.peers, l.Address())
}

func (w *world) options(db nodedb.DB) join.Options {
	return join.Options{Target: join.InDB(db, 0), Headers: headers{height: w.naive.AppHash()}, Addresses: w.peers,
		Dialer: w.network.Dialer(transporttest.Config{ID: transporttest.ID(99), ChainID: chainID}),
		Report: time.Hour, // keeps progress lines out of the logs
		Log:    func(text string) { w.logs = append(w.logs, text) }}
}

// join joins, and compares the result with the state.
func (w *world) join(db nodedb.DB) *join.Result {
	w.t.Helper()
	r, err := join.Join(context.Background(), w.options(db))
	require.NoError(w.t, err, "%q", w.logs)
	require.EqualValues(w.t, height, r.Height)
	w.same(db)
	return r
}

func (w *world) same(db nodedb.DB) {
	w.t.Helper()
	s, err := nodedb.Open(db, height)
	require.NoError(w.t, err)
	m, err := s.Manifest(iavlsync.Format32)
	require.NoError(w.t, err)
	require.Equal(w.t, w.naive.Manifest(height, 32), m.Encode())
	for i, name := range w.naive.Names() {
		u, err := m.Upper(i)
		require.NoError(w.t, err)
		for k, e := range m.Stores[i].Entries {
			b, err := s.Answer(&iavlsync.Request{Height: height, Store: name, First: u.First[k], Leaves: e.Root.Size})
			require.NoError(w.t, err)
			if b[0] == 0 {
				_, err = iavlsync.VerifyChunk(&e.Root, b[1:])
				require.NoError(w.t, err)
			}
		}
	}
}

var errUnplugged = errors.New("unplugged")
