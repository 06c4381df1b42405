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

// Bodies of requests of these lengths, in bytes, are carried past TLS: shorter ones are not worth
// it, and longer ones are rare.
const (
	leastCarried = 4 << 10
	// MostCarried is the limit of a body that is carried past TLS, in bytes.
	MostCarried = 128 << 10
)

// errBodyLost refuses a request whose body did not come past TLS, or not as it was sent: the dialer
// makes the call again over TLS. Nothing has seen the request.
var errBodyLost = errors.New("the body that was carried past TLS has not come")

// carried is a body that a dialer has written past TLS. Its frame has its hash, so that the body is
// proved whoever has written it.
//
//	frameCarried = place:u32be ‖ length:u32be ‖ SHA-256:32 ‖ slot:u32be ‖ lent:u32be ‖ method:u8
type carried struct {
	at     Place // of a dialer's
	place  uint32
	length int
	hash   [sha256.Size]byte
}

// carriedHeader is the length of a frameCarried before what a frameLent has, in bytes.
const carriedHeader = 8 + sha256.Size

func (b *carried) append(to []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, b.place)
	to = binary.BigEndian.AppendUint32(to, uint32(b.length))
	return append(to, b.hash[:]...)
}

// carry writes the body of a call past TLS, if it is one for that and there is a path with room;
// else it returns nil.
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

// appendLent appends what of a frame says which slot the answer may be written to; 0, 0: none.
func (a *answer) appendLent(b []byte, length int) []byte {
	if a.slot == nil {
		return append(b, make([]byte, lentHeader)...)
	}
	b = binary.BigEndian.AppendUint32(b, a.slot.Number())
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// carried reads a frameCarried up to the slot.
func (n *session) carried(br *bufio.Reader) (*carried, error) {
	p, err := br.Peek(carriedHeader)
	if err != nil {
		return nil, unexpected(err)
	}
	b := &carried{place: binary.BigEndian.Uint32(p), length: int(binary.BigEndian.Uint32(p[4:])), hash: [sha256.Size]byte(p[8:])}
	if b.length < leastCarried || b.length > MostCarried {
		return nil, fmt.Errorf("%w: a body of %d bytes past TLS", transport.ErrProtocol, b.length)
	}
	_, err = br.Discard(carriedHeader)
	return b, err
}

// expect tells the path that a body comes, or has come. It is called in the order of the frames.
func (n *session) expect(b *carried) Body {
	n.side.mu.Lock()
	defer n.side.mu.Unlock()
	if n.side.writer == nil {
		return nil
	}
	return n.side.writer.Expect(b.place, b.length)
}

// fetch waits for a body that is carried, and puts it into the request's.
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
