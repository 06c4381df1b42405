package framebench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// own is transport/tcp.
type own struct {
	server *tcp.Server
	bytes  atomic.Int64
}

const (
	chainID = "frames"
	method  = 1 // any: the handler answers all alike
)

func startOwn(answer []byte) (server, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	s := &own{}
	s.server, err = tcp.Listen("127.0.0.1:0", tcp.Options{
		Key: key, ChainID: chainID,
		Hooks: tcp.Hooks{Sent: func(n int) { s.bytes.Add(int64(n)) }},
		Handler: transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
			if len(r.Body) != headBytes || binary.BigEndian.Uint64(r.Body) > uint64(len(answer)) {
				return nil, transport.ErrRefused
			}
			return answer[:binary.BigEndian.Uint64(r.Body)], nil
		}),
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *own) sent() int64 { return s.bytes.Load() }

func (s *own) close() { _ = s.server.Close() } // its result counts no more

func (s *own) dial(ctx context.Context) (conn, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c, err := tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID}).Dial(ctx,
		transport.Address{HostPort: s.server.Addr().String()})
	if err != nil {
		return nil, err
	}
	return ownConn{c}, nil
}

type ownConn struct{ transport.Conn }

func (c ownConn) call(ctx context.Context, into []byte, received *atomic.Int64) error {
	got, err := c.Call(ctx, transport.Call{
		Method: method, Body: binary.BigEndian.AppendUint64(nil, uint64(len(into))),
		Into: into, Received: received,
	})
	if err == nil && len(got) != len(into) {
		err = fmt.Errorf("an answer of %d bytes, want %d", len(got), len(into))
	}
	return err
}

func (c ownConn) close() { _ = c.Close() } // its result counts no more
