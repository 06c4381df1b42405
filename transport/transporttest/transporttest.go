// Package transporttest tests transports, and is one: in memory, with faults if wanted, and at home
// in testing/synctest.
//
//	Run ──► any Transport: tcp, rdma, Network            every sentence of package transport, as tests
//	Faulty ──► any Dialer: loss, delay, reordering, truncation, corruption, a bandwidth cap, disconnects, by a seed
package transporttest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/starling-kv/starling/transport"
)

// Key is the node key of node n, the same in every test.
func Key(n int) ed25519.PrivateKey {
	var seed [ed25519.SeedSize]byte
	seed[0], seed[1], seed[2] = byte(n), byte(n>>8), byte(n>>16)
	return ed25519.NewKeyFromSeed(seed[:])
}

// ID is the ID of node n.
func ID(n int) transport.ID {
	sum := sha256.Sum256(Key(n).Public().(ed25519.PublicKey))
	return transport.ID(hex.EncodeToString(sum[:20]))
}

// Options configures a node of a test.
type Options struct {
	Node        int    // whose key it has
	ChainID     string // may be empty for a dialer
	Handler     transport.Handler
	OpenMethods []transport.Method // that a server answers also to dialers without a ChainID
	MaxCalls    int                // limit of calls under way per connection; 0: the default
}

// Node is one that listens.
type Node struct {
	Address transport.Address // ID and where
	Close   func()            // ends all its connections, and waits for the handlers
}

// Transport is what Run tests.
type Transport interface {
	// Listen serves until Close, or until the test is over.
	Listen(tb testing.TB, o Options) Node
	// Dialer returns a dialer. Its connections are closed by whoever dialled them.
	Dialer(tb testing.TB, o Options) transport.Dialer
}
