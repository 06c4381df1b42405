package comet

import (
	"runtime"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/mempool"
	cometnode "github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	protomem "github.com/cometbft/cometbft/proto/tendermint/mempool"
)

const (
	// batchBytes limits a batch of two or more transactions, with txOverhead for each. A receiver
	// ends the connection after a message larger than its own max_tx_bytes (1 MiB by default).
	batchBytes = 64 << 10
	txOverhead = 5 // bytes in a message in addition to the transaction: a tag and a length
	// batchTxs limits the transactions of a peer that are verified together. Then it is the turn of
	// another peer.
	batchTxs = 64
	// inboxBytes limits the transactions of a peer that wait for CheckTx, if there are several.
	inboxBytes = 1 << 20
	// batchWait is how long a transaction waits for others.
	batchWait = time.Millisecond
	// batchRetry is the time after which a batch that p2p did not accept is sent again, as in
	// CometBFT (mempool.PeerCatchupSleepIntervalMS).
	batchRetry = 100 * time.Millisecond
)

// batchTransactions returns an option for CometBFT: its mempool sends transactions in batches, and
// verify, if it is not nil, gets those from peers before CheckTx does and returns the valid ones. A
// message for each transaction, as CometBFT sends, costs a quarter of the CPU time of a
// transaction.
func batchTransactions(verify func(txs [][]byte) (valid [][]byte)) cometnode.Option {
	return func(n *cometnode.Node) {
		flood, is := n.MempoolReactor().(*mempool.Reactor)
		if !is { // mempool.type is nop or app
			return
		}
		r := &batchReactor{
			Reactor: flood,
			pool:    n.Mempool(),
			conf:    n.Config().Mempool,
			limit:   min(batchBytes, n.Config().Mempool.MaxTxBytes),
			verify:  verify,
			turns:   make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		}
		cometnode.CustomReactors(map[string]p2p.Reactor{"MEMPOOL": r})(n)
	}
}

// batchReactor is CometBFT's mempool reactor, which sends to batchers instead of peers, and
// receives from inboxes.
type batchReactor struct {
	*mempool.Reactor
	pool   mempool.Mempool
	conf   *cfg.MempoolConfig
	limit  int                                 // of the bytes of a batch
	verify func(txs [][]byte) (valid [][]byte) // nil: CheckTx verifies each transaction
	// turns has an element for each peer whose transactions are being verified, so that peers that
	// send without end do not take all processors: verification takes half of them, or one, and
	// CheckTx, which has an order, one.
	turns chan struct{}
}

// AddPeer implements p2p.Reactor.
func (r *batchReactor) AddPeer(peer p2p.Peer) { r.Reactor.AddPeer(newBatcher(peer, r.limit)) }

// batcher is a peer as the mempool sees it. One goroutine of the mempool calls Send.
type batcher struct {
	p2p.Peer
	limit int // of the bytes of a batch
	// sending has an element while a batch is sent, so that batches keep their order, and at most
	// two are in memory.
	sending chan struct{}
	mu      struct {
		sync.Mutex
		txs   [][]byte
		bytes int
	}
}

func newBatcher(peer p2p.Peer, limit int) *batcher {
	return &batcher{Peer: peer, limit: limit, sending: make(chan struct{}, 1)}
}

// Send implements p2p.Peer. A transaction that it accepts is sent unless the peer disconnects.
func (b *batcher) Send(e p2p.Envelope) bool {
	m, is := e.Message.(*protomem.Txs)
	if !is {
		return b.Peer.Send(e)
	}
	for _, tx := range m.GetTxs() {
		for !b.add(tx) {
			b.flush()
		}
	}
	return true
}

// add adds a transaction to the current batch, unless it does not fit. The first one always fits.
func (b *batcher) add(tx []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := len(tx) + txOverhead
	switch {
	case len(b.mu.txs) == 0:
		time.AfterFunc(batchWait, b.flush)
	case b.mu.bytes+bytes > b.limit:
		return false
	}
	b.mu.txs, b.mu.bytes = append(b.mu.txs, tx), b.mu.bytes+bytes
	return true
}

// flush sends the current batch, if there is one.
func (b *batcher) flush() {
	b.sending <- struct{}{}
	defer func() { <-b.sending }()
	b.mu.Lock()
	txs := b.mu.txs
	b.mu.txs, b.mu.bytes = nil, 0
	b.mu.Unlock()
	if len(txs) == 0 {
		return
	}
	for !b.Peer.Send(p2p.Envelope{ChannelID: mempool.MempoolChannel, Message: &protomem.Txs{Txs: txs}}) {
		select {
		case <-b.Quit():
			return
		case <-time.After(batchRetry):
		}
	}
}
