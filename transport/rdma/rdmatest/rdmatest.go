// Package rdmatest makes paths by RDMA between processes' parts without a device: over a fabric in
// memory, which fails as Soft-RoCE does. It is for tests of whatever uses package rdma.
package rdmatest

import (
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
)

// Network is a fabric in memory. Every address has a device in it. The zero value is ready.
type Network struct{ memory verbstest.Fabric }

// New is rdma.New, over the network.
func (n *Network) New(o rdma.Options) *rdma.Fabric { return rdma.New(rdma.ForTests(o, n.memory.Open)) }

// Cut has everything get lost that is sent from now on; false: no longer.
func (n *Network) Cut(cut bool) { n.memory.Cut(cut) }

// Queues is the number of queue pairs that have not been released.
func (n *Network) Queues() int { return n.memory.Queues() }
