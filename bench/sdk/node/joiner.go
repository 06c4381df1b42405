package node

import (
	"context"
	"crypto/ed25519"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// pulls is the number of concurrent requests, so that the node always has a request to serve.
const pulls = 4

// joiner requests all chunks of the newest state, over and over, and discards the responses. A real
// joiner would verify and write them on another machine.
type joiner struct {
	address func() string // address of the node's server; empty: not serving yet
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	bytes   atomic.Int64 // of received chunks
}

func newJoiner(address func() string) *joiner {
	j := &joiner{address: address}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	j.wg.Go(func() {
		for j.ctx.Err() == nil {
			// An error means that the state is no longer served, or that the connection timed out.
			if j.round() != nil {
				select {
				case <-j.ctx.Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		}
	})
	return j
}

func (j *joiner) stop() {
	j.cancel()
	j.wg.Wait()
}

// round connects, and requests all chunks of a state.
func (j *joiner) round() error {
	address := j.address()
	if address == "" {
		return transport.ErrGone
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	conn, err := tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID}).Dial(j.ctx, transport.Address{HostPort: address})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read from
	for {
		if err := j.state(conn); err != nil {
			return err
		}
	}
}

func (j *joiner) state(conn transport.Conn) error {
	b, err := conn.Call(j.ctx, transport.Call{Method: iavlsync.MethodOffers, Max: 1 << 10})
	if err != nil {
		return err
	}
	offers, err := iavlsync.DecodeOffers(b)
	if err != nil || len(offers) == 0 {
		return transport.ErrGone
	}
	height := offers[len(offers)-1]
	var encoded []byte
	for {
		q := iavlsync.ManifestRequest{Height: height, Format: iavlsync.Format8192, Offset: int64(len(encoded))}
		part, err := conn.Call(j.ctx, transport.Call{Method: iavlsync.MethodManifest, Body: q.Encode(), Max: iavlsync.ManifestPartBytes})
		if err != nil {
			return err
		}
		encoded = append(encoded, part...)
		if len(part) < iavlsync.ManifestPartBytes {
			break
		}
	}
	m, err := iavlsync.DecodeManifest(iavlsync.Format8192, encoded)
	if err != nil {
		return err
	}
	return j.chunks(conn, m)
}

func (j *joiner) chunks(conn transport.Conn, m *iavlsync.Manifest) error {
	var requests []iavlsync.Request
	for i := range m.Stores {
		u, err := m.Upper(i)
		if err != nil {
			return err
		}
		for e, first := range u.First {
			requests = append(requests, iavlsync.Request{Height: m.Height, Store: m.Stores[i].Name, First: first, Leaves: m.Stores[i].Entries[e].Root.Size, Packed: true})
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range pulls {
		wg.Go(func() {
			for {
				k := int(next.Add(1)) - 1
				if k >= len(requests) || failed.Load() != nil {
					return
				}
				b, err := conn.Call(j.ctx, transport.Call{Method: iavlsync.MethodLeaves, Body: requests[k].Encode(), Max: 1 + iavlsync.MaxAnswerBytes})
				if err != nil {
					failed.Store(&err)
					return
				}
				j.bytes.Add(int64(len(b)))
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
