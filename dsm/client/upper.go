package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client/ask"
	"github.com/starling-kv/starling/transport"
)

// Edges returns the keys at which ranges begin or end, ascending, including those of a map that
// SetMap has not applied yet. A version must contain the paths to these keys before updates can be
// derived from it. The caller must not modify them.
func (c *Client) Edges() [][]byte { return *c.edges.Load() }

// maxUpperDepth is the maximum depth that nodes answer.
const maxUpperDepth = 16

// Upper fetches the commitment behind the app hash of the state after block height, and the inner
// nodes above depth. Each storage node has the inner nodes that lead to its own ranges, so Upper
// asks one replica of each range, and another one if a replica does not answer. Subtrees that
// storage nodes leave out are stubs of the result and can be fetched like any other stub. The
// caller releases the result. The error wraps ErrUnserved, ErrClosed or the error of ctx.
func (c *Client) Upper(ctx context.Context, height int64, appHash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	u := &upper{appHash: appHash}
	f := &fetching{depth: uint8(max(0, min(depth, maxUpperDepth))), upper: u}
	err := c.layout().asking.fetch(ctx, f, ask.Fetch{Height: height, Upper: true})
	u.mu.Lock()
	defer u.mu.Unlock()
	tree := u.tree
	u.tree, u.over = nil, true
	if err != nil {
		if tree != nil {
			tree.Release()
		}
		return nil, fmt.Errorf("storage nodes: the upper tree after block %d: %w", height, err)
	}
	return tree, nil
}

// upper merges the upper trees that nodes send.
type upper struct {
	appHash avlstar.Hash

	mu   sync.Mutex
	tree *avlstar.Partial // nil before the first answer
	over bool             // answers are no longer added
}

// judge grafts an answer and translates the outcome into an event for the machine. A different app
// hash is not evidence of a fault: the answer may be of another height.
func (u *upper) judge(a ask.Ask, b []byte, err error) ask.Event {
	if err == nil {
		err = u.add(b)
	}
	var invalid *invalidError
	switch {
	case err == nil:
		return ask.Proved{Request: a.Request, Bytes: len(b)}
	case errors.As(err, &invalid):
		return ask.Refuted{Request: a.Request, Verdict: invalid.verdict}
	case errors.Is(err, transport.ErrTooLong):
		return ask.Refuted{Request: a.Request, Verdict: ask.TooLong}
	case errors.Is(err, errOtherState):
		return ask.Failed{Request: a.Request, Reason: ask.Gone}
	}
	return ask.Failed{Request: a.Request, Reason: reasonOf(err)}
}

var errOtherState = errors.New("the answer is of another state")

// invalidError reports an answer that no honest node sends.
type invalidError struct{ verdict ask.Verdict }

func (e *invalidError) Error() string { return string(e.verdict) }

func (u *upper) add(b []byte) error {
	m, err := dsm.DecodeUpper(b)
	if err != nil {
		return &invalidError{ask.Undecodable}
	}
	c, err := avlstar.DecodeCommitment(m.Commitment)
	if err != nil {
		return &invalidError{ask.Undecodable}
	}
	if c.AppHash() != u.appHash {
		return errOtherState
	}
	multiproof, err := avlstar.DecodeMultiproof(m.Multiproof)
	if err != nil {
		return &invalidError{ask.Undecodable}
	}
	if roots := multiproof.Roots(); len(roots) > 1 || len(roots) == 1 && roots[0] != c.Root {
		return &invalidError{ask.Unasked}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return ErrClosed
	}
	if u.tree == nil {
		if u.tree, err = avlstar.NewPartial(c); err != nil {
			return err
		}
	}
	next, _, err := u.tree.Graft(multiproof)
	if err != nil {
		return err
	}
	u.tree.Release()
	u.tree = next
	return nil
}
