package comet

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/mempool"
	"github.com/cometbft/cometbft/p2p"
	protomem "github.com/cometbft/cometbft/proto/tendermint/mempool"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// receiver is a peer that records messages.
type receiver struct {
	p2p.Peer
	refuse func() bool // nil: it accepts all
	gone   chan struct{}

	mu  sync.Mutex
	got [][][]byte // guarded by mu: the transactions of each message
}

func (r *receiver) Quit() <-chan struct{} { return r.gone }

func (r *receiver) Send(e p2p.Envelope) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil && r.refuse() {
		return false
	}
	r.got = append(r.got, e.Message.(*protomem.Txs).GetTxs())
	return true
}

// messages returns the transactions of each message so far.
func (r *receiver) messages() [][][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

func message(txs ...[]byte) p2p.Envelope {
	return p2p.Envelope{ChannelID: mempool.MempoolChannel, Message: &protomem.Txs{Txs: txs}}
}

// Transactions of one millisecond are one message.
func TestBatchOfAMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{gone: make(chan struct{})}
		b := newBatcher(r, batchBytes)
		for i := range 100 {
			require.True(t, b.Send(message(fmt.Append(nil, i))))
		}
		require.Empty(t, r.messages())
		<-time.After(batchWait)
		synctest.Wait()
		require.Len(t, r.messages(), 1)
		require.Len(t, r.messages()[0], 100)
		require.True(t, b.Send(message([]byte("later"))))
		<-time.After(batchWait)
		synctest.Wait()
		require.Equal(t, [][]byte{[]byte("later")}, r.messages()[1])
	})
}

// Every transaction arrives once and in order, in messages within the limit, whatever p2p refuses.
func TestBatches(t *testing.T) {
	rng := seeds.Rand(t)
	refusals := rand.New(rand.NewPCG(rng.Uint64(), 0)) // of another goroutine
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{gone: make(chan struct{}), refuse: func() bool { return refusals.IntN(10) == 0 }}
		b := newBatcher(r, batchBytes)
		var sent [][]byte
		for i := range 5000 {
			size := 1 + rng.IntN(1000)
			if rng.IntN(200) == 0 {
				size = rng.IntN(2 * batchBytes)
			}
			tx := append(fmt.Appendf(nil, "%d:", i), make([]byte, size)...)
			sent = append(sent, tx)
			require.True(t, b.Send(message(tx)))
			if rng.IntN(300) == 0 {
				<-time.After(time.Duration(rng.IntN(3)) * batchWait)
			}
		}
		<-time.After(time.Minute)
		synctest.Wait()
		var got [][]byte
		for _, txs := range r.messages() {
			m := protomem.Txs{Txs: txs}
			n := m.Size()
			require.True(t, n <= batchBytes || len(txs) == 1, "%d bytes in %d transactions", n, len(txs))
			got = append(got, txs...)
		}
		require.Equal(t, sent, got)
		require.Less(t, len(r.messages()), 200)
	})
}

// A batch for a peer that disconnects ends, and nothing waits for it.
func TestBatchOfALostPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{gone: make(chan struct{}), refuse: func() bool { return true }}
		b := newBatcher(r, batchBytes)
		require.True(t, b.Send(message([]byte("lost"))))
		<-time.After(time.Second)
		close(r.gone)
		synctest.Wait() // the bubble ends only once no goroutine is left
		require.Empty(t, r.messages())
	})
}
