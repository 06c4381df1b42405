package comet

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"testing/synctest"

	abci "github.com/cometbft/cometbft/abci/types"
	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/mempool"
	"github.com/cometbft/cometbft/p2p"
	protomem "github.com/cometbft/cometbft/proto/tendermint/mempool"
	"github.com/cometbft/cometbft/proxy"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// Transactions come out in order and once each, at most batchTxs together, and a reader that is
// slow makes the writer wait before the inbox is larger than its limit.
func TestInbox(t *testing.T) {
	rng := seeds.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		in, quit := newInbox(), make(chan struct{})
		const all = 5000
		go func() {
			for i := 0; i < all; {
				var txs [][]byte
				for range min(1+rng.IntN(300), all-i) {
					txs = append(txs, append(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, i%1000)...))
					i++
				}
				in.put(txs, quit)
			}
		}()
		for i := 0; i < all; {
			if i%7 == 0 {
				synctest.Wait() // the writer waits for room, or has ended
			}
			in.mu.Lock()
			sum := 0
			for _, tx := range in.mu.txs {
				sum += memory(tx)
			}
			require.Equal(t, sum, in.mu.bytes)
			require.LessOrEqual(t, in.mu.bytes, inboxBytes)
			in.mu.Unlock()
			txs := in.take(quit)
			require.LessOrEqual(t, len(txs), batchTxs)
			for _, tx := range txs {
				require.EqualValues(t, i, binary.BigEndian.Uint32(tx))
				i++
			}
		}
		require.Zero(t, in.mu.bytes)
		in.put([][]byte{make([]byte, 2*inboxBytes)}, quit) // alone, it may be larger
		go func() { in.put([][]byte{{1}}, quit) }()
		synctest.Wait()
		require.Len(t, in.mu.txs, 1)
		close(quit)
		synctest.Wait()
		in.take(quit)
		require.Nil(t, in.take(quit), "the peer has disconnected")
	})
}

// sender is a peer from which transactions come.
type sender struct {
	p2p.Peer
	values        map[string]any
	gone, stopped chan struct{}
}

func (s *sender) ID() p2p.ID             { return "sender" }
func (s *sender) Get(key string) any     { return s.values[key] }
func (s *sender) Set(key string, to any) { s.values[key] = to }
func (s *sender) Quit() <-chan struct{}  { return s.gone }
func (s *sender) String() string         { return "sender" }

// IsRunning is what a Switch asks before it stops a peer.
func (s *sender) IsRunning() bool {
	close(s.stopped)
	return false
}

// checked is an application that receives each transaction from a channel.
type checked struct {
	abci.BaseApplication
	txs chan string
}

func (c checked) CheckTx(_ context.Context, req *abci.RequestCheckTx) (*abci.ResponseCheckTx, error) {
	c.txs <- string(req.Tx)
	if string(req.Tx) == "panic" {
		panic("a fault of CheckTx")
	}
	return &abci.ResponseCheckTx{}, nil
}

// Receive does not wait for CheckTx, which sees the valid transactions in order. A panic of CheckTx
// stops the peer only. Nothing is verified while the mempool is full, or for a peer that has gone.
func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := checked{txs: make(chan string)}
		client, err := clientCreator{app}.NewABCIClient()
		require.NoError(t, err)
		conf := cfg.TestConfig()
		pool := mempool.NewCListMempool(conf.Mempool, proxy.NewAppConnMempool(client, proxy.NopMetrics()), 0)
		r := &batchReactor{
			Reactor: mempool.NewReactor(conf.Mempool, pool, false),
			pool:    pool,
			conf:    conf.Mempool,
			turns:   make(chan struct{}, 1),
			verify: func(txs [][]byte) [][]byte {
				return slices.DeleteFunc(txs, func(tx []byte) bool { return string(tx) == "wrong" })
			},
		}
		r.Switch = p2p.NewSwitch(conf.P2P, nil)
		peer := &sender{values: map[string]any{}, gone: make(chan struct{}), stopped: make(chan struct{})}
		r.InitPeer(peer)
		receive := func(txs ...string) {
			var m protomem.Txs
			for _, tx := range txs {
				m.Txs = append(m.Txs, []byte(tx))
			}
			r.Receive(p2p.Envelope{Src: peer, ChannelID: mempool.MempoolChannel, Message: &m})
		}
		receive("wrong")
		receive("1", "wrong", "2")
		receive("3", "panic")
		for _, want := range []string{"1", "2", "3", "panic"} {
			require.Equal(t, want, <-app.txs)
		}
		<-peer.stopped
		require.Equal(t, 3, pool.Size())

		conf.Mempool.Size = 3
		peer.values = map[string]any{} // another peer
		r.verify = func([][]byte) [][]byte { panic("the mempool is full") }
		receive("4")
		synctest.Wait()
		conf.Mempool.Size = 4

		r.turns <- struct{}{} // another peer's
		receive("5")
		synctest.Wait()
		close(peer.gone)
		synctest.Wait() // the bubble ends only once no goroutine is left: the turn never comes
	})
}
