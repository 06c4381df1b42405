package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	abci "github.com/cometbft/cometbft/abci/types"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/cometbft/cometbft/types"
	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// serveWebsocket runs one conversation for each connection, as a node would, and then closes it.
func serveWebsocket(t *testing.T, talk func(*websocket.Conn)) RPC {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upgrader := websocket.Upgrader{}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		var request rpctypes.RPCRequest
		if conn.ReadJSON(&request) == nil && request.Method == "subscribe" {
			talk(conn)
		}
	}))
	t.Cleanup(server.Close)
	n, err := NewRPC(server.URL)
	require.NoError(t, err)
	return n
}

func confirm(conn *websocket.Conn) {
	_ = conn.WriteJSON(rpctypes.NewRPCSuccessResponse(rpctypes.JSONRPCIntID(1), &ctypes.ResultSubscribe{}))
}

func TestWebsocket(t *testing.T) {
	event := &ctypes.ResultEvent{Query: "q", Data: types.EventDataTx{TxResult: abci.TxResult{
		Height: 7, Tx: []byte("raw"), Result: abci.ExecTxResult{Events: []abci.Event{fakeEvent([]byte("k"), "put")}},
	}}}
	n := serveWebsocket(t, func(conn *websocket.Conn) {
		confirm(conn)
		for range 3 {
			_ = conn.WriteJSON(rpctypes.NewRPCSuccessResponse(rpctypes.JSONRPCIntID(1), event))
		}
	})
	events, err := n.Events(testContext(t), "q")
	require.NoError(t, err)
	for range 3 {
		found := changes(<-events, nil)
		require.Len(t, found, 1)
		require.Equal(t, Event{Height: 7, TxHash: types.Tx("raw").Hash(), Key: []byte("k"), Kind: "put"}, found[0])
	}
	_, open := <-events
	require.False(t, open, "the node hung up")
}

func TestWebsocketRefused(t *testing.T) {
	refusal := rpctypes.RPCServerError(rpctypes.JSONRPCIntID(1), context.Canceled)
	for name, talk := range map[string]func(*websocket.Conn){
		"error":   func(conn *websocket.Conn) { _ = conn.WriteJSON(refusal) },
		"hang up": func(*websocket.Conn) {},
		"junk":    func(conn *websocket.Conn) { _ = conn.WriteMessage(websocket.TextMessage, []byte("{")) },
	} {
		_, err := serveWebsocket(t, talk).Events(testContext(t), "q")
		require.Error(t, err, name)
	}
	// The same after the confirmation ends the subscription.
	for name, talk := range map[string]func(*websocket.Conn){
		"error": func(conn *websocket.Conn) { _ = conn.WriteJSON(refusal) },
		"junk":  func(conn *websocket.Conn) { _ = conn.WriteMessage(websocket.TextMessage, []byte(`{"result": 7}`)) },
	} {
		events, err := serveWebsocket(t, func(conn *websocket.Conn) { confirm(conn); talk(conn) }).Events(testContext(t), "q")
		require.NoError(t, err, name)
		_, open := <-events
		require.False(t, open, name)
	}
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	n, err := NewRPC(server.URL)
	require.NoError(t, err)
	_, err = n.Events(testContext(t), "q")
	require.ErrorIs(t, err, ErrUnreachable)
}

// TestWebsocketEnds: a subscription ends with its context, even while the node is silent.
func TestWebsocketEnds(t *testing.T) {
	gone := make(chan struct{})
	n := serveWebsocket(t, func(conn *websocket.Conn) {
		confirm(conn)
		_, _, _ = conn.ReadMessage()
		close(gone)
	})
	ctx, cancel := context.WithCancel(testContext(t))
	events, err := n.Events(ctx, "q")
	require.NoError(t, err)
	cancel()
	_, open := <-events
	require.False(t, open)
	<-gone

	// never confirms
	silent := serveWebsocket(t, func(conn *websocket.Conn) { _, _, _ = conn.ReadMessage() })
	ctx, cancel = context.WithCancel(testContext(t))
	go cancel()
	_, err = silent.Events(ctx, "q")
	require.ErrorIs(t, err, context.Canceled)
}
