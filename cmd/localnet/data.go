package main

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/avlstar"
)

// prefix is where everyone may write in the demonstration's network.
const prefix = "demo/"

// The demonstration's chunks are small, so that there are some hundreds of them however few keys:
// whoever is connected when the fetching begins is asked for one, and others as long as there are
// any. In-band, a liar is one of validators+liars peers that CometBFT picks from at random for each
// chunk; that none of even 100 chunks is asked from a single liar among 4 honest peers has a
// probability below 10⁻⁹.
const (
	wantedChunks  = 400
	minChunkBytes = 64
	maxChunkBytes = 16 << 10
)

// dataset is the keys and values that a seed stands for.
type dataset struct {
	seed uint64
	n    int
}

// at returns pair i. The keys are in no order, as those of real users.
func (d dataset) at(i int) (key string, value []byte) {
	random := rand.New(rand.NewPCG(d.seed, uint64(i)))
	var id [8]byte
	// the low half keeps keys apart
	binary.BigEndian.PutUint64(id[:], random.Uint64()<<32|uint64(i))
	raw := make([]byte, 20+random.IntN(50))
	for j := range raw {
		raw[j] = byte(random.Uint32())
	}
	return prefix + hex.EncodeToString(id[:]), hex.AppendEncode(nil, raw)
}

// chunkBytes chooses the limit of a chunk for about wantedChunks of them.
func (d dataset) chunkBytes() uint64 {
	var total uint64
	for i := range d.n {
		key, value := d.at(i)
		total += avlstar.RecordBytes(len(key), len(value))
	}
	const filled = 2.0 / 3 // how full a chunk is with random keys
	return uint64(min(max(float64(total)/wantedChunks/filled, minChunkBytes), maxChunkBytes))
}

// writerKey is the account of writer w.
func (d dataset) writerKey(w int) ed25519.PrivKey {
	secret := binary.BigEndian.AppendUint64([]byte("starling localnet writer"), d.seed)
	return ed25519.GenPrivKeyFromSecret(binary.BigEndian.AppendUint64(secret, uint64(w)))
}
