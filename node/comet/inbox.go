package comet

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cometbft/cometbft/mempool"
	"github.com/cometbft/cometbft/p2p"
	protomem "github.com/cometbft/cometbft/proto/tendermint/mempool"

	"github.com/starling-kv/starling/internal/wake"
)

// inboxKey is the key of a peer's inbox among the values of the peer.
const inboxKey = "Starling.inbox"

// Receive implements p2p.Reactor. It leaves transactions in the peer's inbox, because the goroutine
// that calls it reads everything from the peer: votes would wait until CheckTx has seen all
// transactions that came before them.
func (r *batchReactor) Receive(e p2p.Envelope) {
	m, is := e.Message.(*protomem.Txs)
	if !is || r.verify == nil || r.WaitSync() {
		r.Reactor.Receive(e)
		return
	}
	in, is := e.Src.Get(inboxKey).(*inbox)
	if !is { // the first message of this peer; only one goroutine receives from it
		in = newInbox()
		e.Src.Set(inboxKey, in)
		go r.check(e.Src, in)
	}
	in.put(m.GetTxs(), e.Src.Quit())
}

// check passes the transactions of a peer to CheckTx, in order, until the peer disconnects.
func (r *batchReactor) check(peer p2p.Peer, in *inbox) {
	defer func() {
		if cause := recover(); cause != nil { // as p2p does where it calls Receive
			r.Switch.StopPeerForError(peer, fmt.Errorf("transactions: %w", Panicked(cause)))
		}
	}()
	for {
		txs := in.take(peer.Quit())
		if txs == nil {
			return
		}
		if txs = r.verified(txs, peer.Quit()); len(txs) > 0 {
			r.Reactor.Receive(p2p.Envelope{Src: peer, ChannelID: mempool.MempoolChannel, Message: &protomem.Txs{Txs: txs}})
		}
		select {
		case <-peer.Quit():
			return
		default:
		}
	}
}

// verified waits for the peer's turn, and returns the valid transactions; none if the peer
// disconnects. If the mempool is full, CheckTx refuses all of them without looking.
func (r *batchReactor) verified(txs [][]byte, quit <-chan struct{}) [][]byte {
	if r.full(txs[0]) {
		return txs
	}
	select {
	case r.turns <- struct{}{}:
		defer func() { <-r.turns }()
		return r.verify(txs)
	case <-quit:
		return nil
	}
}

func (r *batchReactor) full(tx []byte) bool {
	return r.pool.Size() >= r.conf.Size || r.pool.SizeBytes()+int64(len(tx)) > r.conf.MaxTxsBytes
}

// inbox holds the transactions of a peer that CheckTx has not seen yet. One goroutine puts them in,
// another takes them out.
type inbox struct {
	more, less chan struct{} // have an element after a change; capacity 1
	mu         struct {
		sync.Mutex
		txs   [][]byte
		bytes int // of memory that txs take
	}
}

func newInbox() *inbox {
	return &inbox{more: make(chan struct{}, 1), less: make(chan struct{}, 1)}
}

// put puts the transactions of a message in as there is room for them, until the peer disconnects.
func (in *inbox) put(txs [][]byte, quit <-chan struct{}) {
	for txs = in.add(txs); len(txs) > 0; txs = in.add(txs) {
		select {
		case <-in.less:
		case <-quit:
			return
		}
	}
}

// add puts those transactions in that fit, and returns the rest. The first one fits if it is alone.
func (in *inbox) add(txs [][]byte) (rest [][]byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := 0
	for ; n < len(txs); n++ {
		bytes := memory(txs[n])
		if len(in.mu.txs)+n > 0 && in.mu.bytes+bytes > inboxBytes {
			break
		}
		in.mu.bytes += bytes
	}
	in.mu.txs = append(in.mu.txs, txs[:n]...)
	wake.Up(in.more)
	return txs[n:]
}

// take waits for transactions, and returns the first ones, at most batchTxs; nil once the peer has
// disconnected.
func (in *inbox) take(quit <-chan struct{}) [][]byte {
	for {
		if txs := in.next(); txs != nil {
			return txs
		}
		select {
		case <-in.more:
		case <-quit:
			return nil
		}
	}
}

func (in *inbox) next() (txs [][]byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.mu.txs) == 0 {
		return nil
	}
	first := in.mu.txs[:min(batchTxs, len(in.mu.txs))]
	txs = slices.Clone(first)
	for _, tx := range txs {
		in.mu.bytes -= memory(tx)
	}
	clear(first) // the array may be used for longer than they are
	in.mu.txs = in.mu.txs[len(first):]
	wake.Up(in.less)
	return txs
}

// memory returns the bytes that a transaction takes, with its slice.
func memory(tx []byte) int { return len(tx) + 40 }
