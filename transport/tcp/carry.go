package tcp

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/transport"
)

// Request bodies of these lengths, in bytes, bypass TLS. Shorter ones gain nothing, and longer ones
// are rare.
const (
	leastCarried = 4 << 10
	// MostCarried is the maximum length of a body that bypasses TLS, in bytes.
	MostCarried = 128 << 10
)

// errBodyLost refuses a request whose body did not arrive over the path that bypasses TLS, or
// differs from what was sent. The dialer repeats the call over TLS. No handler has seen the
// request.
var errBodyLost = errors.New("the body sent bypassing TLS did not arrive")

// carried is a body that a dialer writes bypassing TLS. Its frame, sent over TLS, contains the hash
// that authenticates the body.
//
//	frameCarried = place:u32be ‖ length:u32be ‖ SHA-256:32 ‖ slot:u32be ‖ lent:u32be ‖ method:u8
type carried struct {
	at     Place // at the dialer only
	place  uint32
	length int
	hash   [sha256.Size]byte
}

// carriedHeader is the number of bytes in a frameCarried before the fields of a frameLent.
const carriedHeader = 8 + sha256.Size

func (b *carried) append(to []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, b.place)
	to = binary.BigEndian.AppendUint32(to, uint32(b.length))
	return append(to, b.hash[:]...)
}

// carry writes the body of a call bypassing TLS. It returns nil if the body is unsuitable, or if
// there is no path with room.
func (c *Conn) carry(call transport.Call) *carried {
	n := len(call.Body)
	if c.side == nil || call.Proved || n < leastCarried || n > MostCarried {
		return nil
	}
	at := c.side.Carry(call.Body)
	if at == nil {
		return nil
	}
	return &carried{at, at.Number(), n, sha256.Sum256(call.Body)}
}

// appendLent appends the frame fields for the slot that the answer may be written to; zeros: none.
func (a *answer) appendLent(b []byte, length int) []byte {
	if a.slot == nil {
		return append(b, make([]byte, lentHeader)...)
	}
	b = binary.BigEndian.AppendUint32(b, a.slot.Number())
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// carried reads the fields of a frameCarried before the slot.
func (n *session) carried(br *bufio.Reader) (*carried, error) {
	p, err := br.Peek(carriedHeader)
	if err != nil {
		return nil, unexpected(err)
	}
	b := &carried{place: binary.BigEndian.Uint32(p), length: int(binary.BigEndian.Uint32(p[4:])), hash: [sha256.Size]byte(p[8:])}
	if b.length < leastCarried || b.length > MostCarried {
		return nil, fmt.Errorf("%w: a body of %d bytes that bypasses TLS", transport.ErrProtocol, b.length)
	}
	_, err = br.Discard(carriedHeader)
	return b, err
}

// expect announces a body to the path; the body may already have arrived. It is called in the order
// of the frames.
func (n *session) expect(b *carried) Body {
	n.side.mu.Lock()
	defer n.side.mu.Unlock()
	if n.side.writer == nil {
		return nil
	}
	return n.side.writer.Expect(b.place, b.length)
}

// fetch waits for a carried body and copies it into the body of the request.
func (b *carried) fetch(ctx context.Context, from Body, into *body) error {
	if from == nil {
		return errBodyLost
	}
	defer from.Release()
	if err := from.Wait(ctx); err != nil {
		return errors.Join(errBodyLost, err)
	}
	if into.grow(b.length); into.refused {
		return transport.ErrBusy
	}
	into.bytes = into.bytes[:b.length]
	if err := from.Read(into.bytes); err != nil {
		return errors.Join(errBodyLost, err)
	}
	if sha256.Sum256(into.bytes) != b.hash {
		from.Wrong()
		return errBodyLost
	}
	return nil
}
