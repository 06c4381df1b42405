package storagenode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/statesync/protocol"
	"github.com/starling-kv/starling/transport"
)

// FromStorage stands for the storage nodes in the home's storage nodes file.
const FromStorage = "storage"

// DataEdges returns the keys that divide a newest state into n ranges of about the same number of
// bytes. The state is that of a node with all of it (local mode), or that of FromStorage, where
// each range needs a storage node that answers. Answers are only compared with the commitment that
// they come with, and with each other, since a wrong division costs balance, but no data. The
// edges are keys at which subtrees begin. There are fewer than n-1 if the state has too few keys.
func DataEdges(ctx context.Context, conf *config.Config, from string, n int) ([][]byte, error) {
	depth := uint8(min(bits.Len(uint(n))+finer, maxUpperDepth))
	var upper *avlstar.Partial
	var err error
	if from == FromStorage {
		upper, err = upperOfRanges(ctx, conf, depth)
	} else {
		upper, err = upperOfNode(ctx, conf, from, depth)
	}
	if err != nil {
		return nil, err
	}
	defer upper.Release()
	if err := checkUpper(upper, depth, n); err != nil {
		return nil, err
	}
	return evenEdges(upper, n)
}

const (
	// finer is the number of levels of the tree that DataEdges requests beyond those with n
	// subtrees: 64 subtrees for each range.
	finer = 6
	// maxUpperDepth keeps the answer below upperBytes.
	maxUpperDepth = 16
)

// ErrPartialState: nodes that are needed to divide the state are missing.
var ErrPartialState = errors.New("a part of the state is missing: name a node in local mode, or use --from storage while each range has a storage node that answers")

// checkUpper returns ErrPartialState if subtrees that are larger than a range are closed although
// they are near the root. A subtree below d nodes is at least d lower than the root. With long
// keys, a node sends fewer levels than requested, but not fewer than sure.
func checkUpper(upper *avlstar.Partial, depth uint8, n int) error {
	const sure = 10
	root := upper.Commitment().Root
	for s := range upper.Stubs(nil) {
		if s.Height > 0 && int(s.Height) > int(root.Height)-int(min(depth, sure)) && s.Bytes > root.Bytes/uint64(n) {
			return fmt.Errorf("the keys from %q on: %w", s.First, ErrPartialState)
		}
	}
	return nil
}

func upperOfNode(ctx context.Context, conf *config.Config, from string, depth uint8) (*avlstar.Partial, error) {
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
	upper, err := upperTree(ctx, conn, depth)
	if err != nil {
		return nil, fmt.Errorf("node %s does not send its state: %w", from, err)
	}
	return upper, nil
}

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
		return nil, errors.New("it has no block yet, or is a storage node: use --from storage")
	}
	upper, err := graftUpper(ctx, conn, nil, status.Height, depth)
	if errors.Is(err, transport.ErrGone) && status.Height > 1 {
		upper, err = graftUpper(ctx, conn, nil, status.Height-1, depth)
	}
	return upper, err
}

var errOtherState = errors.New("it has another state than a storage node of another range")

// graftUpper adds the upper nodes that a node has of the state after a height to a tree, or returns
// them if the tree is nil. The caller releases both.
func graftUpper(ctx context.Context, conn transport.Conn, tree *avlstar.Partial, height int64, depth uint8) (*avlstar.Partial, error) {
	request := dsm.UpperRequest{Height: height, Depth: depth}
	b, err := conn.Call(ctx, transport.Call{Method: dsm.MethodUpper, Body: request.Encode(), Max: upperBytes})
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
	if tree == nil {
		if tree, err = avlstar.NewPartial(c); err != nil {
			return nil, err
		}
		defer tree.Release()
	} else if c.AppHash() != tree.AppHash() {
		return nil, errOtherState
	}
	upper, _, err := tree.Graft(multiproof)
	return upper, err
}

// upperOfRanges returns the upper nodes of a state that storage nodes keep. The caller releases it.
// It begins again without a storage node that does not have what it claims.
func upperOfRanges(ctx context.Context, conf *config.Config, depth uint8) (*avlstar.Partial, error) {
	nodes, err := config.LoadStorageNodes(conf.Home, conf.App.StorageNode.Ranges)
	if err != nil {
		return nil, err
	}
	dialer, err := NewDialer(conf)
	if err != nil {
		return nil, err
	}
	r := &upperSources{nodes: nodes, dialer: dialer, depth: depth}
	r.claims, r.failures = askAll(ctx, dialer, nodes.Addresses, rangemap.Claims)
	for {
		if r.height, err = r.commonHeight(); err != nil {
			return nil, err
		}
		before, shard := len(r.failures), nodes.Ranges.Shard(0)
		for _, first := range shard.Replicas {
			if !r.serves(first, shard.Range) {
				continue
			}
			upper, err := r.upper(ctx, first)
			if err == nil || ctx.Err() != nil {
				return upper, err
			}
			if len(r.failures) == before { // the others have another state
				r.failures[first] = err
			}
		}
	}
}

// upperSources asks the storage nodes of ranges for the upper tree of one height.
type upperSources struct {
	nodes    *config.StorageNodes
	dialer   transport.Dialer
	claims   map[dsm.NodeID][]dsm.Claim
	failures map[dsm.NodeID]error // these nodes are not asked, or not again
	height   int64
	depth    uint8
}

// commonHeight returns the newest height that a storage node of each range claims.
func (r *upperSources) commonHeight() (int64, error) {
	var ranges []avlstar.KeyRange
	var claims []dsm.Claim
	for i := range r.nodes.Ranges.Len() {
		s, before := r.nodes.Ranges.Shard(i), len(claims)
		var failed []error
		for _, n := range s.Replicas {
			if err := r.failures[n]; err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", r.nodes.Addresses[n], err))
				continue
			}
			for _, c := range r.claims[n] {
				if c.Newest > 0 && c.Range.Covers(s.Range) {
					claims = append(claims, dsm.Claim{Range: s.Range, Oldest: c.Oldest, Newest: c.Newest})
				}
			}
		}
		if len(claims) == before {
			return 0, fmt.Errorf("no storage node has the state of range %v: %w", s.Range, errors.Join(append(failed, ErrPartialState)...))
		}
		ranges = append(ranges, s.Range)
	}
	return server.NewestProvable(ranges, claims)
}

func (r *upperSources) serves(n dsm.NodeID, keys avlstar.KeyRange) bool {
	return r.failures[n] == nil && slices.ContainsFunc(r.claims[n], func(c dsm.Claim) bool {
		return c.Range.Covers(keys) && c.Oldest <= r.height && r.height <= c.Newest
	})
}

// upper asks a storage node of the first range, and one of each range that those before do not
// have. All must have the state of the first one.
func (r *upperSources) upper(ctx context.Context, first dsm.NodeID) (*avlstar.Partial, error) {
	var tree *avlstar.Partial
	var asked []dsm.NodeID
	for i := range r.nodes.Ranges.Len() {
		s := r.nodes.Ranges.Shard(i)
		if slices.ContainsFunc(asked, func(n dsm.NodeID) bool { return r.serves(n, s.Range) }) {
			continue
		}
		if i == 0 {
			s.Replicas = []dsm.NodeID{first}
		}
		next, n, err := r.graft(ctx, tree, s)
		if tree != nil {
			tree.Release()
		}
		if err != nil {
			return nil, fmt.Errorf("no storage node of range %v sends the state after block %d: %w", s.Range, r.height, err)
		}
		tree, asked = next, append(asked, n)
	}
	return tree, nil
}

// graft adds the nodes of the first replica of a range that sends them to a tree.
func (r *upperSources) graft(ctx context.Context, tree *avlstar.Partial, s dsm.Placement) (*avlstar.Partial, dsm.NodeID, error) {
	var failed []error
	for _, n := range s.Replicas {
		err := transport.ErrGone
		if r.serves(n, s.Range) {
			var next *avlstar.Partial
			next, err = askOne(ctx, r.dialer, r.nodes.Addresses[n], func(ctx context.Context, conn transport.Conn) (*avlstar.Partial, error) {
				return graftUpper(ctx, conn, tree, r.height, r.depth)
			})
			switch {
			case err == nil:
				return next, n, nil
			case !errors.Is(err, errOtherState): // it does not have what it claims
				r.failures[n] = err
			}
		}
		failed = append(failed, fmt.Errorf("%s: %w", r.nodes.Addresses[n], err))
	}
	return nil, "", errors.Join(failed...)
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
