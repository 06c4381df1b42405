// Package transporttest contains a conformance suite for transports and an in-memory transport with
// optional faults, which works in testing/synctest.
//
//	Run ──► any Transport: tcp, rdma, Network            tests of the contract of package transport
//	Faulty ──► any Dialer: loss, delay, reordering, truncation, corruption, a bandwidth cap, disconnects, from a seed
package transporttest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/starling-kv/starling/transport"
)

// Key returns the node key of node n, the same in every test.
func Key(n int) ed25519.PrivateKey {
	var seed [ed25519.SeedSize]byte
	seed[0], seed[1], seed[2] = byte(n), byte(n>>8), byte(n>>16)
	return ed25519.NewKeyFromSeed(seed[:])
}

// ID returns the ID of node n.
func ID(n int) transport.ID {
	sum := sha256.Sum256(Key(n).Public().(ed25519.PublicKey))
	return transport.ID(hex.EncodeToString(sum[:20]))
}

// Options configures a node of a test.
type Options struct {
	Node        int    // number of the node whose key it has
	ChainID     string // may be empty for a dialer
	Handler     transport.Handler
	OpenMethods []transport.Method // that a server also answers to dialers without a ChainID
	MaxCalls    int                // limit of calls under way per connection; 0: the default
}

// Node is a listening node.
type Node struct {
	Address transport.Address // ID and listening address
	Close   func()            // ends all connections and waits for the handlers
}

// Transport is a transport under test.
type Transport interface {
	// Listen serves until Close, or until the test ends.
	Listen(tb testing.TB, o Options) Node
	// Dialer returns a dialer. The test closes its connections.
	Dialer(tb testing.TB, o Options) transport.Dialer
}
