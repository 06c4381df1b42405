package store

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"

	"github.com/starling-kv/starling/internal/child"
)

// Numbers of what few records of a chain refer to.
const (
	validators = 180
	denoms     = 40
	channels   = 60
)

// record returns the change of a record like those of a chain's modules, in place of a change of
// random bytes: of eight records, two are accounts, two balances in the chain's own coin, and one
// each a balance in a coin of another chain, a delegation, the start of a delegation's rewards, and
// a packet. Its key depends only on that of c.
func record(c child.Change) child.Change {
	address, kind := c.Key[:20], c.Key[19]%8
	n := uint64(binary.BigEndian.Uint32(c.Key))
	validator := named("validator", n%validators)[:20]
	v := c.Value
	if v == nil {
		v = make([]byte, 100)
	}
	number := binary.BigEndian.Uint64(v[40:])
	amount := fmt.Appendf(nil, "%d", number>>(34+number%16)) // of 5 to 9 digits
	var r child.Change
	switch kind {
	case 0, 1:
		r.Key = append([]byte{1}, address...)
		key := message("/cosmos.crypto.secp256k1.PubKey", field(nil, 1, append([]byte{2 + v[0]&1}, v[1:33]...)))
		account := field(field(nil, 1, text("cosmos", address)), 2, key)
		account = binary.AppendUvarint(append(account, 3<<3), n%3_000_000)
		account = binary.AppendUvarint(append(account, 4<<3), number%400)
		r.Value = message("/cosmos.auth.v1beta1.BaseAccount", account)
	case 2, 3:
		r.Key = append(lengthed([]byte{2}, address), "uatom"...)
		r.Value = amount
	case 4:
		r.Key = fmt.Appendf(lengthed([]byte{2}, address), "ibc/%X", named("denom", n%denoms))
		r.Value = amount
	case 5:
		r.Key = lengthed(lengthed([]byte{0x31}, address), validator)
		r.Value = field(field(nil, 1, text("cosmos", address)), 2, text("cosmosvaloper", validator))
		r.Value = field(r.Value, 3, append(amount, "000000000000000000"...))
	case 6:
		r.Key = lengthed(lengthed([]byte{4}, validator), address)
		r.Value = binary.AppendUvarint([]byte{1 << 3}, number%1_000_000)
		r.Value = field(r.Value, 2, append(amount, "000000000000000000"...))
		r.Value = binary.AppendUvarint(append(r.Value, 3<<3), 1+number%25_000_000)
	default:
		path := fmt.Sprintf("/ports/transfer/channels/channel-%d/sequences/%d", n%channels, n/channels%1_000_000)
		if c.Key[18]%2 == 0 {
			r.Key, r.Value = []byte("receipts"+path), []byte{1}
		} else {
			r.Key, r.Value = []byte("acks"+path), v[:32]
		}
	}
	if c.Value == nil {
		r.Value = nil
	}
	return r
}

func named(what string, n uint64) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d", what, n))
	return h[:]
}

var letters = base32.NewEncoding("qpzry9x8gf2tvdw0s3jn54khce6mua7l").WithPadding(base32.NoPadding)

// text returns an address in Bech32, except that its checksum is another one.
func text(prefix string, address []byte) []byte {
	checksum := sha256.Sum256(address)
	return []byte(prefix + "1" + letters.EncodeToString(address) + letters.EncodeToString(checksum[:])[:6])
}

func lengthed(b, part []byte) []byte { return append(append(b, byte(len(part))), part...) }

// field appends a field of a protobuf message.
func field(b []byte, number int, value []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(number<<3|2)), uint64(len(value)))
	return append(b, value...)
}

// message returns a google.protobuf.Any.
func message(url string, value []byte) []byte { return field(field(nil, 1, []byte(url)), 2, value) }
