package rdma

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

// version of the exchange and of the greeting.
const version = 1

// nonce identifies one side of a path. It is sent over TLS and returned over RDMA.
type nonce [16]byte

func newNonce() (n nonce) {
	rand.Read(n[:]) //nolint:errcheck // it never fails
	return n
}

// proposal is the body of the exchange and its answer.
//
//	proposal = version:u8 ‖ GID:16 ‖ LID:u16be ‖ QPN:u32be ‖ PSN:u32be ‖ MTU:u16be ‖ nonce:16
type proposal struct {
	endpoint verbs.Endpoint
	nonce    nonce
}

const proposalLength = 1 + 16 + 2 + 4 + 4 + 2 + 16

func (p proposal) encode() []byte {
	e := p.endpoint
	b := append(make([]byte, 0, proposalLength), version)
	b = append(b, e.GID[:]...)
	b = binary.BigEndian.AppendUint16(b, e.LID)
	b = binary.BigEndian.AppendUint32(b, e.QPN)
	b = binary.BigEndian.AppendUint32(b, e.PSN)
	b = binary.BigEndian.AppendUint16(b, uint16(e.MTU))
	return append(b, p.nonce[:]...)
}

func decodeProposal(b []byte) (p proposal, err error) {
	switch {
	case len(b) == 0 || b[0] != version:
		return p, errors.New("the exchange has another version")
	case len(b) != proposalLength:
		return p, fmt.Errorf("the exchange has %d bytes", len(b))
	}
	e := &p.endpoint
	e.GID = verbs.GID(b[1:17])
	e.LID = binary.BigEndian.Uint16(b[17:])
	e.QPN = binary.BigEndian.Uint32(b[19:])
	e.PSN = binary.BigEndian.Uint32(b[23:])
	e.MTU = int(binary.BigEndian.Uint16(b[27:]))
	p.nonce = nonce(b[29:])
	return p, e.Validate()
}

// greeting is the one message that each side sends over RDMA.
//
//	greeting = version:u8 ‖ nonce:16 ‖ address:u64be ‖ key:u32be ‖ units:u32be
type greeting struct {
	nonce  nonce
	region region
}

// region is the memory that a side lends, in units of 256 KiB.
type region struct {
	address uint64
	key     uint32
	units   int
}

const greetingLength = 1 + 16 + 8 + 4 + 4

// maxUnits is the limit of units, because 16 bits number the first unit of a slot.
const maxUnits = 1 << 16

func (g greeting) encode() []byte {
	b := append(make([]byte, 0, greetingLength), version)
	b = append(b, g.nonce[:]...)
	b = binary.BigEndian.AppendUint64(b, g.region.address)
	b = binary.BigEndian.AppendUint32(b, g.region.key)
	return binary.BigEndian.AppendUint32(b, uint32(g.region.units))
}

func decodeGreeting(b []byte) (g greeting, err error) {
	if len(b) != greetingLength || b[0] != version {
		return g, fmt.Errorf("%w: the greeting has %d bytes", ErrBreach, len(b))
	}
	g.nonce = nonce(b[1:17])
	g.region.address = binary.BigEndian.Uint64(b[17:])
	g.region.key = binary.BigEndian.Uint32(b[25:])
	units := binary.BigEndian.Uint32(b[29:])
	if units > maxUnits {
		return g, fmt.Errorf("%w: a greeting with %d units", ErrBreach, units)
	}
	g.region.units = int(units)
	return g, nil
}

// The formats of an immediate and of a slot number, which is an immediate without its first bit.
//
//	immediate = last:1 ‖ round:15 ‖ first unit:16
//
// The round distinguishes successive uses of a slot.
const (
	immediateLast = 1 << 31
	rounds        = 1 << 15
)

func slotNumber(round, first int) uint32 { return uint32(round%rounds)<<16 | uint32(first) }

func firstUnit(slot uint32) int { return int(slot & 0xffff) }
