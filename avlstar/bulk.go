package avlstar

import (
	"crypto/sha256"

	"github.com/starling-kv/starling/avlstar/sha256mb"
)

// bulk hashes messages of different lengths, each in a batch with others of the same length. All
// hashes are written when flush returns.
type bulk struct {
	lots []*lot // one for each length
}

// lot is a batch of messages of one length.
type lot struct {
	length   int
	n        int
	messages [batch][]byte
	to       [batch]*Hash
}

const (
	// maxLots limits the number of lengths that wait at a time; above the limit, the fullest lot is
	// hashed early.
	maxLots = 64
	// maxBulkBytes is the length of the longest message that is batched: a longer one keeps a core
	// busy by itself.
	maxBulkBytes = 4096
)

// add appends a message, which must not change before flush. Its hash is written to *to.
func (b *bulk) add(message []byte, to *Hash) {
	if len(message) > maxBulkBytes {
		*to = sha256.Sum256(message)
		return
	}
	l := b.lot(len(message))
	l.messages[l.n], l.to[l.n] = message, to
	if l.n++; l.n == batch {
		l.flush()
	}
}

// lot returns the lot for a length. It tries the lot of the previous message first.
func (b *bulk) lot(length int) *lot {
	for i, l := range b.lots {
		if l.length == length || l.n == 0 {
			b.lots[0], b.lots[i] = l, b.lots[0]
			l.length = length
			return l
		}
	}
	if len(b.lots) < maxLots {
		l := &lot{length: length}
		b.lots = append(b.lots, l)
		return l
	}
	fullest := b.lots[0]
	for _, l := range b.lots {
		if l.n > fullest.n {
			fullest = l
		}
	}
	fullest.flush()
	fullest.length = length
	return fullest
}

func (b *bulk) flush() {
	for _, l := range b.lots {
		l.flush()
	}
}

func (l *lot) flush() {
	var out [batch][32]byte
	sha256mb.Sum(out[:l.n], l.messages[:l.n])
	for i := range l.n {
		*l.to[i] = out[i]
		l.messages[i] = nil // the message may be large
	}
	l.n = 0
}

// leafImages hashes leaves in batches, as 00 ‖ SHA256(key) ‖ SHA256(value)
// (docs/spec/tree.md#hashes).
type leafImages struct {
	n      int
	images [batch][128]byte
	to     [batch]*Hash
}

const leafImageBytes = 1 + 32 + 32

func (b *leafImages) add(keyHash, valueHash, to *Hash) {
	i := &b.images[b.n]
	copy(i[1:], keyHash[:])
	copy(i[33:], valueHash[:])
	b.to[b.n] = to
	if b.n++; b.n == batch {
		b.flush()
	}
}

func (b *leafImages) flush() {
	var out [batch][32]byte
	var messages [batch][]byte
	for i := range b.n {
		messages[i] = b.images[i][:leafImageBytes]
	}
	sha256mb.Sum(out[:b.n], messages[:b.n])
	for i := range b.n {
		*b.to[i] = out[i]
	}
	b.n = 0
}
