package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/starling-kv/starling/transport"
)

type dialer struct {
	o   Options
	err error // of the options
}

// NewDialer returns a dialer. If the options are invalid, every Dial returns the error.
func NewDialer(o Options) transport.Dialer {
	o, err := o.withDefaults()
	if o.Connect == nil {
		o.Connect = func(ctx context.Context, hostPort string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", hostPort)
		}
	}
	return &dialer{o, err}
}

// Dial implements transport.Dialer.
func (d *dialer) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	if d.err != nil {
		return nil, d.err
	}
	c, err := d.dial(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", a, err)
	}
	return c, nil
}

func (d *dialer) dial(ctx context.Context, a transport.Address) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.o.handshakeTimeout)
	defer cancel()
	raw, err := d.o.Connect(ctx, a.HostPort)
	if err != nil {
		return nil, err
	}
	c, err := d.greet(ctx, raw, a)
	if err != nil {
		raw.Close()
		if ctx.Err() != nil && (errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)) {
			// ctx has closed raw.
			err = ctx.Err()
		}
		return nil, err
	}
	return c, nil
}

// greet authenticates both sides and exchanges the hellos.
func (d *dialer) greet(ctx context.Context, raw net.Conn, a transport.Address) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	cfg, err := config(d.o.Key, func(id transport.ID) error {
		if a.ID != "" && a.ID != id {
			return fmt.Errorf("%w: %s", transport.ErrWrongID, id)
		}
		a.ID = id
		return nil
	})
	if err != nil {
		return nil, err
	}
	w := newWire(raw, &d.o, largeBuffer)
	t := tls.Client(w, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if _, err := t.Write(hello{chainID: d.o.ChainID}.encode()); err != nil {
		return nil, err
	}
	h, err := readHello(t)
	switch {
	case err != nil:
		return nil, err
	case h.version != version:
		return nil, fmt.Errorf("%w: %d instead of %d", transport.ErrWrongVersion, h.version, version)
	case h.status == helloWrongVersion:
		return nil, transport.ErrWrongVersion
	case h.status == helloWrongChain || h.status == helloOK && d.o.ChainID != "" && h.chainID != d.o.ChainID:
		return nil, fmt.Errorf("%w: %q instead of %q", transport.ErrWrongChain, h.chainID, d.o.ChainID)
	case h.status == helloBusy:
		return nil, fmt.Errorf("%w: the peer has no room for a connection", transport.ErrBusy)
	case h.status != helloOK || h.window == 0 || h.window > maxWindow:
		return nil, fmt.Errorf("%w: a hello with status %d and window %d", transport.ErrProtocol, h.status, h.window)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	w.greeted(smallBuffer)
	return newConn(t, w, a, h, d.o.idleTimeout, d.o.Sides), nil
}
