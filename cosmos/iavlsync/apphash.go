package iavlsync

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// emptyRoot is the root hash of a store without leaves (cosmos/iavl v1, node.go, hashWithCount).
var emptyRoot = Hash(sha256.Sum256(nil))

// storeRoot is a store's name and root hash, an entry of the multi-store's map.
type storeRoot struct {
	name string
	root Hash
}

// multiStoreHash returns the app hash of stores, which must ascend by name. It is the root of an
// RFC 6962 tree with these leaves (the SDK's store, internal/maps):
//
//	leaf = uvarint(len name) ‖ name ‖ 20 ‖ SHA256(root)
func multiStoreHash(stores []storeRoot) Hash {
	switch n := len(stores); n {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		b := binary.AppendUvarint([]byte{0}, uint64(len(stores[0].name)))
		b = append(append(b, stores[0].name...), sha256.Size)
		value := sha256.Sum256(stores[0].root[:])
		return sha256.Sum256(append(b, value[:]...))
	default:
		split := 1 << (bits.Len(uint(n-1)) - 1) // the greatest power of two below n
		left, right := multiStoreHash(stores[:split]), multiStoreHash(stores[split:])
		return sha256.Sum256(append(append([]byte{1}, left[:]...), right[:]...))
	}
}
