package storagenode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// DataEdges returns the keys that divide a node's newest state into n ranges of about the same
// number of bytes. The node must have the whole state (local mode); its answer is only compared
// with the commitment that it sends, since a wrong division costs balance, but no data. The edges
// are keys at which subtrees begin. There are fewer than n-1 if the state has too few keys.
func DataEdges(ctx context.Context, conf *config.Config, from string, n int) ([][]byte, error) {
	address, err := transport.ParseAddress(from)
	if err != nil {
		return nil, config.Invalid(err)
	}
	dialer, err := NewDialer(conf)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := dialer.Dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("node %s cannot be reached: %w", from, err)
	}
	defer conn.Close()
	upper, err := upperTree(ctx, conn, uint8(min(bits.Len(uint(n))+finer, maxUpperDepth)))
	if err != nil {
		return nil, fmt.Errorf("node %s does not send its state: %w", from, err)
	}
	defer upper.Release()
	return evenEdges(upper, n)
}

const (
	// finer is the number of levels of the tree that DataEdges requests beyond those with n
	// subtrees: 64 subtrees for each range.
	finer = 6
	// maxUpperDepth keeps the answer below upperBytes.
	maxUpperDepth = 16
)

// upperTree returns the upper nodes of a node's newest state, or of the one before it while the
// node executes its last block: it stores a block before it has the state. The caller releases it.
func upperTree(ctx context.Context, conn transport.Conn, depth uint8) (*avlstar.Partial, error) {
	b, err := conn.Call(ctx, transport.Call{Method: protocol.MethodStatus, Max: protocol.MaxStatusBytes})
	if err != nil {
		return nil, err
	}
	status, err := protocol.DecodeStatus(b)
	if err != nil {
		return nil, err
	}
	if status.Height == 0 {
		return nil, errors.New("it has no block yet")
	}
	upperAt := func(height int64) ([]byte, error) {
		request := dsm.UpperRequest{Height: height, Depth: depth}
		return conn.Call(ctx, transport.Call{Method: dsm.MethodUpper, Body: request.Encode(), Max: upperBytes})
	}
	b, err = upperAt(status.Height)
	if errors.Is(err, transport.ErrGone) && status.Height > 1 {
		b, err = upperAt(status.Height - 1)
	}
	if err != nil {
		return nil, err
	}
	u, err := dsm.DecodeUpper(b)
	if err != nil {
		return nil, err
	}
	c, err := avlstar.DecodeCommitment(u.Commitment)
	if err != nil {
		return nil, err
	}
	multiproof, err := proofOf(u.Multiproof, []avlstar.Stub{c.Root})
	if err != nil {
		return nil, err
	}
	root, err := avlstar.NewPartial(c)
	if err != nil {
		return nil, err
	}
	defer root.Release()
	upper, _, err := root.Graft(multiproof)
	return upper, err
}

// evenEdges returns up to n-1 keys that divide an upper tree by its bytes.
func evenEdges(upper *avlstar.Partial, n int) (edges [][]byte, err error) {
	total, sum := upper.Commitment().Root.Bytes, uint64(0)
	// Leaves and small subtrees become stubs, too, so that Stubs yields all of the tree.
	coarse, err := upper.Prune(func(s avlstar.Subtree) bool { return s.Height == 0 || s.Bytes <= total/uint64(n)>>finer })
	if err != nil {
		return nil, err
	}
	defer coarse.Release()
	for s := range coarse.Stubs(nil) {
		// In front of the subtree or behind it, whichever is nearer to the next edge.
		next := total / uint64(n) * uint64(len(edges)+1)
		if len(edges) < n-1 && len(s.First) > 0 && sum+s.Bytes/2 >= next {
			edges = append(edges, bytes.Clone(s.First))
		}
		sum += s.Bytes
	}
	return edges, nil
}
