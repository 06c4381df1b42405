package e2ebench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// block is a block that a client has seen.
type block struct {
	height int64
	at     time.Time // when a client received its event, after its execution
	txs    int
}

// ledger records pending transactions, and what became of the others.
type ledger struct {
	room chan struct{} // one element per pending transaction; its capacity is the limit

	mu        sync.Mutex
	underway  map[string]time.Time // pending transactions: when each was sent, or was due
	blocks    []block
	latencies []arrival
	refusals  int
	refusal   error // the first refusal
}

// arrival is a transaction in a block.
type arrival struct {
	sent    time.Time
	latency time.Duration
}

func newLedger(inFlight int) *ledger {
	return &ledger{room: make(chan struct{}, inFlight), underway: make(map[string]time.Time)}
}

// begin records a transaction as sent. It waits while the maximum number is pending, and returns
// false if ctx ends meanwhile.
func (l *ledger) begin(ctx context.Context, tx string, at func() time.Time) bool {
	select {
	case l.room <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underway[tx] = at()
	return true
}

// refused removes a transaction that a node rejected.
func (l *ledger) refused(tx string, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals++
	if l.refusal == nil {
		l.refusal = why
	}
	if _, ours := l.underway[tx]; ours {
		delete(l.underway, tx)
		<-l.room
	}
}

// seen records a block.
func (l *ledger) seen(height int64, at time.Time, txs [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, block{height, at, len(txs)})
	for _, tx := range txs {
		if sent, ours := l.underway[string(tx)]; ours {
			l.latencies = append(l.latencies, arrival{sent, at.Sub(sent)})
			delete(l.underway, string(tx))
			<-l.room
		}
	}
}

// pending returns the number of transactions sent but not yet in a block.
func (l *ledger) pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.underway)
}

// watch records every block that the node at url announces, until ctx ends. It calls started as
// soon as no further block can be missed.
func (l *ledger) watch(ctx context.Context, url string, started func()) error {
	ws, resp, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+"/websocket", nil)
	if err != nil {
		return fmt.Errorf("websocket of %s: %w", url, err)
	}
	if resp.Body != nil {
		resp.Body.Close()
	}
	defer context.AfterFunc(ctx, func() { _ = ws.Close() })() // ends the read below
	defer func() { _ = ws.Close() }()                         // no goroutine reads from it anymore
	const subscribe = `{"jsonrpc":"2.0","method":"subscribe","id":0,"params":{"query":"tm.event='NewBlockHeader'"}}`
	if err := ws.WriteMessage(websocket.TextMessage, []byte(subscribe)); err != nil {
		return err
	}
	for {
		_, message, err := ws.ReadMessage()
		at := time.Now()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // closed because ctx ended
		}
		if err != nil {
			return fmt.Errorf("the subscription to new blocks ended: %w", err)
		}
		height, err := newHeight(message)
		switch {
		case err != nil:
			return err
		case height == 0:
			started()
			continue
		}
		txs, err := blockTxs(ctx, url, height)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the result is no longer needed
		}
		if err != nil {
			return err
		}
		l.seen(height, at, txs)
	}
}

// newHeight returns the height in an event, or 0 for the response to the subscription.
func newHeight(message []byte) (int64, error) {
	var event struct {
		Result struct {
			Data struct {
				Value struct {
					Header struct {
						Height string `json:"height"`
					} `json:"header"`
				} `json:"value"`
			} `json:"data"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(message, &event); err != nil {
		return 0, fmt.Errorf("decoding the node's event: %w", err)
	}
	if event.Error != nil {
		return 0, fmt.Errorf("the node rejected the subscription to new blocks: %s", event.Error)
	}
	if event.Result.Data.Value.Header.Height == "" {
		return 0, nil
	}
	return strconv.ParseInt(event.Result.Data.Value.Header.Height, 10, 64)
}

// blockTxs fetches the transactions of a block.
func blockTxs(ctx context.Context, url string, height int64) ([][]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/block?height=%d", url, height), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", height, err)
	}
	defer resp.Body.Close()
	var answer struct {
		Result struct {
			Block struct {
				Data struct {
					Txs [][]byte `json:"txs"`
				} `json:"data"`
			} `json:"block"`
		} `json:"result"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("block %d: %w", height, err)
	}
	if answer.Error != nil {
		return nil, fmt.Errorf("block %d: %s", height, answer.Error)
	}
	return answer.Result.Block.Data.Txs, nil
}
