package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	cmtjson "github.com/cometbft/cometbft/libs/json"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	rpctypes "github.com/cometbft/cometbft/rpc/jsonrpc/types"
	"github.com/gorilla/websocket"
)

const (
	pingEvery = 3 * time.Second
	// silence is how long a websocket may be silent, even to pings, before it counts as lost.
	silence = 3 * pingEvery
	// eventBuffer is the number of events that wait for a slow reader. When it is full, reading
	// stops, and the node notices.
	eventBuffer = 256
)

// Events subscribes over a websocket of its own, so that its loss is noticed: CometBFT's client
// resubscribes silently, and the caller would never learn that events are missing.
func (n *node) Events(ctx context.Context, query string) (<-chan ctypes.ResultEvent, error) {
	u := *n.url
	u.Scheme = map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
	u.Path = "/websocket"
	header := map[string][]string{}
	if u.User != nil {
		password, _ := u.User.Password()
		header["Authorization"] = []string{basicAuth(u.User.Username(), password)}
		u.User = nil
	}
	conn, response, err := websocket.DefaultDialer.DialContext(ctx, u.String(), header)
	if err != nil {
		return nil, fmt.Errorf("%w: subscribe at %s: %w", ErrUnreachable, n.Remote(), err)
	}
	_ = response.Body.Close() // the connection is hijacked: the body is empty
	s := &subscription{conn: conn}
	if err := s.subscribe(ctx, query); err != nil {
		_ = conn.Close() // the subscription failed anyway
		return nil, fmt.Errorf("subscribe at %s: %w", n.Remote(), err)
	}
	events := make(chan ctypes.ResultEvent, eventBuffer)
	go s.run(ctx, events)
	return events, nil
}

type subscription struct {
	conn *websocket.Conn // written by one goroutine, read by another
}

// subscribe sends the request and waits for its confirmation.
func (s *subscription) subscribe(ctx context.Context, query string) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	request, err := rpctypes.MapToRequest(rpctypes.JSONRPCIntID(1), "subscribe", map[string]any{"query": query})
	if err != nil {
		return err
	}
	s.conn.SetReadLimit(maxAnswerBytes)
	if err := s.alive(); err != nil {
		return err
	}
	if err := s.conn.WriteJSON(request); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	_, err = s.read()
	return errors.Join(ctx.Err(), err)
}

// run delivers events until ctx ends or the connection is lost, then closes the channel.
func (s *subscription) run(ctx context.Context, events chan<- ctypes.ResultEvent) {
	defer close(events)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.keepAlive(ctx)
	s.conn.SetPongHandler(func(string) error { return s.alive() })
	for {
		event, err := s.read()
		if err != nil {
			return
		}
		if event == nil {
			continue
		}
		select {
		case events <- *event:
		case <-ctx.Done():
			return
		}
	}
}

// keepAlive pings until ctx ends, then closes the connection, which ends the reader too.
func (s *subscription) keepAlive(ctx context.Context) {
	defer func() { _ = s.conn.Close() }() // nothing can be lost by an error
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			// Say goodbye so that the node does not log an error. It does not matter if this fails.
			_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
			return
		case <-ticker.C:
			if err := s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(pingEvery)); err != nil {
				return
			}
		}
	}
}

func (s *subscription) alive() error { return s.conn.SetReadDeadline(time.Now().Add(silence)) }

// read returns the next event, or nil for a message that is not an event.
func (s *subscription) read() (*ctypes.ResultEvent, error) {
	_, message, err := s.conn.ReadMessage()
	if err != nil {
		return nil, err
	}
	if err := s.alive(); err != nil {
		return nil, err
	}
	var response rpctypes.RPCResponse
	if err := json.Unmarshal(message, &response); err != nil {
		return nil, fmt.Errorf("not a JSON-RPC message: %w", err)
	}
	if response.Error != nil {
		return nil, response.Error
	}
	event := new(ctypes.ResultEvent)
	if err := cmtjson.Unmarshal(response.Result, event); err != nil {
		return nil, fmt.Errorf("not an event: %w", err)
	}
	if event.Data == nil {
		return nil, nil // the confirmation
	}
	return event, nil
}
