package syncbench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

const (
	witnessEvery    = 200 * time.Millisecond
	witnessPatience = 10 * time.Second
	witnessBytes    = 1 << 20
)

// witnessProbe measures how long storage nodes take to send witnesses.
type witnessProbe struct {
	id     transport.ID
	dialer transport.Dialer
}

func newWitnessProbe() (*witnessProbe, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &witnessProbe{
		id: tcp.IDOf(key.Public().(ed25519.PublicKey)), dialer: tcp.NewDialer(tcp.Options{Key: key, ChainID: network.ChainID}),
	}, nil
}

// watch requests witnesses from a storage node until ctx ends.
func (p *witnessProbe) watch(ctx context.Context, address string, to *samples) {
	a, err := transport.ParseAddress(address)
	if err != nil {
		return
	}
	every := time.NewTicker(witnessEvery)
	defer every.Stop()
	var conn transport.Conn
	for {
		select {
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
			return
		case <-every.C:
		}
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, witnessPatience)
		if conn == nil {
			conn, err = p.dialer.Dial(limited, a)
		}
		if err == nil {
			began, err = p.ask(limited, conn)
		}
		cancel()
		if errors.Is(err, transport.ErrGone) || ctx.Err() != nil {
			err = nil // the storage node does not have the height any more, or has no range yet
			continue
		}
		to.add(began, err)
		if err != nil && conn != nil {
			_ = conn.Close()
			conn = nil
		}
		err = nil
	}
}

// ask requests the witness of a random key of the newest height. began is when it sent the request.
func (p *witnessProbe) ask(ctx context.Context, conn transport.Conn) (began time.Time, err error) {
	began = time.Now()
	claims, err := rangemap.Claims(ctx, conn)
	if err != nil {
		return began, err
	}
	if len(claims) == 0 || claims[0].Newest == 0 {
		return began, transport.ErrGone
	}
	c := claims[0]
	key := shardedKey(mathrand.IntN(1 << 30)) //nolint:gosec // not used for security
	for !c.Range.Contains(key) {
		key = shardedKey(mathrand.IntN(1 << 30)) //nolint:gosec // not used for security
	}
	body, err := dsm.Witness{Height: c.Newest, MaxBytes: witnessBytes, Wants: []avlstar.Want{{Key: key}}}.Encode()
	if err != nil {
		return began, err
	}
	began = time.Now()
	_, err = conn.Call(ctx, transport.Call{Method: dsm.MethodWitness, Body: body, Max: witnessBytes})
	return began, err
}
