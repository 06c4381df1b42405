package e2ebench

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
)

// conn is a websocket to a node's RPC server. The server processes one request after another. Only
// one goroutine may call send.
type conn struct {
	ws   *websocket.Conn
	next int64

	mu   sync.Mutex
	asks map[int64]string // transactions without a response yet, by request ID

	refused func(tx string, why error)
	ended   chan struct{}
	err     error // why the connection ended; set before ended is closed
}

// dial opens a connection to the RPC server at url (http://host:port). It calls refused for each
// transaction that the node rejects.
func dial(ctx context.Context, url string, refused func(tx string, why error)) (*conn, error) {
	ws, resp, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+"/websocket", nil)
	if err != nil {
		return nil, fmt.Errorf("websocket of %s: %w", url, err)
	}
	if resp.Body != nil {
		resp.Body.Close()
	}
	c := &conn{ws: ws, asks: make(map[int64]string), refused: refused, ended: make(chan struct{})}
	go func() {
		c.err = c.receive()
		close(c.ended)
	}()
	return c, nil
}

// send submits a transaction to the node. It does not wait for the response.
func (c *conn) send(tx string) error {
	c.mu.Lock()
	c.next++
	id := c.next
	c.asks[id] = tx
	c.mu.Unlock()
	request := make([]byte, 0, 128+base64.StdEncoding.EncodedLen(len(tx)))
	request = append(request, `{"jsonrpc":"2.0","method":"broadcast_tx_sync","id":`...)
	request = strconv.AppendInt(request, id, 10)
	request = append(request, `,"params":{"tx":"`...)
	request = base64.StdEncoding.AppendEncode(request, []byte(tx))
	request = append(request, `"}}`...)
	return c.ws.WriteMessage(websocket.TextMessage, request)
}

// answer is CometBFT's response to broadcast_tx_sync.
type answer struct {
	ID     int64 `json:"id"`
	Result struct {
		Code uint32 `json:"code"`
		Log  string `json:"log"`
	} `json:"result"`
	Error *struct {
		Message string `json:"message"`
		Data    string `json:"data"`
	} `json:"error"`
}

func (c *conn) receive() error {
	for {
		_, message, err := c.ws.ReadMessage()
		if err != nil {
			return err
		}
		var a answer
		if err := json.Unmarshal(message, &a); err != nil {
			return fmt.Errorf("decoding the node's response: %w", err)
		}
		c.mu.Lock()
		tx, asked := c.asks[a.ID]
		delete(c.asks, a.ID)
		c.mu.Unlock()
		switch {
		case !asked:
			return fmt.Errorf("response to a request that was never sent: %.200s", message)
		case a.Error != nil:
			c.refused(tx, fmt.Errorf("%s: %s", a.Error.Message, a.Error.Data))
		case a.Result.Code != 0:
			c.refused(tx, fmt.Errorf("code %d: %s", a.Result.Code, a.Result.Log))
		}
	}
}

func (c *conn) close() {
	_ = c.ws.Close() // no goroutine reads from it anymore
	<-c.ended
}
