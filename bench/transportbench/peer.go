package transportbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/starling-kv/starling/transport"
)

// caller makes calls on a transport.Conn. It implements peer.
type caller struct{ conn transport.Conn }

func (p caller) fetch(ctx context.Context, buffers [][]byte, more func() bool, came func(int)) error {
	errs := make([]error, len(buffers))
	var wg sync.WaitGroup
	for i, into := range buffers {
		wg.Go(func() {
			body := encodeRequest(len(into))
			for more() {
				got, err := p.conn.Call(ctx, transport.Call{Method: method, Body: body, Into: into})
				if err == nil && len(got) != len(into) {
					err = fmt.Errorf("got a response of %d bytes, want %d", len(got), len(into))
				}
				if err != nil {
					errs[i] = err
					return
				}
				came(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p caller) close() error { return p.conn.Close() }

// plain sends requests on a socket. Responses arrive in the order of requests. It implements peer.
type plain struct{ conn net.Conn }

func (p plain) fetch(ctx context.Context, buffers [][]byte, more func() bool, came func(int)) error {
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	head := encodeRequest(len(buffers[0]))
	under := 0
	for under < len(buffers) && more() {
		if _, err := p.conn.Write(head); err != nil {
			return err
		}
		under++
	}
	for at := 0; under > 0; at++ {
		buffer := at % len(buffers)
		into := buffers[buffer]
		if _, err := io.ReadFull(p.conn, into); err != nil {
			return err
		}
		came(buffer)
		under--
		if more() {
			if _, err := p.conn.Write(head); err != nil {
				return err
			}
			under++
		}
	}
	return nil
}

func (p plain) close() error { return p.conn.Close() }
