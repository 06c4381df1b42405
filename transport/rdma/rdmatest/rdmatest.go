// Package rdmatest sets up RDMA paths between parts of a process without a device, over an
// in-memory fabric that fails like Soft-RoCE. It is for tests of users of package rdma.
package rdmatest

import (
	"github.com/starling-kv/starling/transport/rdma"
	"github.com/starling-kv/starling/transport/rdma/internal/verbs/verbstest"
)

// Network is an in-memory fabric in which every address has a device. The zero value is ready to
// use.
type Network struct{ memory verbstest.Fabric }

// New is rdma.New over this network.
func (n *Network) New(o rdma.Options) *rdma.Fabric { return rdma.New(rdma.ForTests(o, n.memory.Open)) }

// Queues returns the number of queue pairs that have not been released.
func (n *Network) Queues() int { return n.memory.Queues() }
