package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

const (
	// queryPatience is the time that a query waits for the Source, as a multiple of
	// Options.WitnessTimeout.
	queryPatience = 5
	// maxWaitingQueries limits the fetches of queries in progress (App.queries). Queries that wait
	// for one of them do not count.
	maxWaitingQueries = 64
	// rangeRound limits the bytes of leaf records that one request of a query fetches.
	rangeRound = 256 << 10
	// lengthBytes is the most that a leaf takes in a response if only its length is needed: a short
	// record, or a stub with a key of usual length.
	lengthBytes = 1 << 10
)

// clientKey is the key of a query's client in its context.
type clientKey struct{}

// ForClient returns a context for the queries of a client. Queries without it, such as those over
// JSON-RPC, are those of one client.
func ForClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// read implements backing. It calls read with a version of the state at until read reports no
// missing nodes: first with the version that is kept, then with those of a shared tree, which grows
// by the missing nodes that needs records. Data that read keeps must not be memory of its version.
func (a byWitness) read(ctx context.Context, at committed, read func(v *avlstar.Version, needs *needs) error) error {
	if err := read(at.version, nil); !isMissing(err) {
		return err
	}
	t, err := a.trees.of(at.version, at.height == a.published.Load().height)
	if err != nil {
		return err
	}
	defer a.trees.release(t)
	var until context.Context // of all fetches; nil: none was necessary
	for {
		v, needs := t.acquire(), new(needs)
		err := read(v, needs)
		if !isMissing(err) {
			v.Release()
			return err
		}
		if until == nil {
			alive, end := a.alive(ctx)
			defer end()
			var cancel context.CancelFunc
			until, cancel = context.WithTimeout(alive, queryPatience*a.options.WitnessTimeout)
			defer cancel()
		}
		if err = until.Err(); err == nil {
			err = a.bring(until, t, at, v, needs)
		}
		v.Release()
		switch {
		case errors.As(err, new(*tx.Error)):
			return err
		case err != nil:
			return fmt.Errorf("storage nodes did not send a part of the state in time: %w", err)
		}
	}
}

// fetchNonce returns the account's next nonce if its record is missing.
func (a *App) fetchNonce(ctx context.Context, account []byte) (uint64, error) {
	at, refused := a.acquire(0)
	if refused != nil {
		return 0, refused
	}
	defer at.version.Release()
	var next uint64
	err := a.state.read(ctx, at, func(v *avlstar.Version, needs *needs) (err error) {
		if next, err = committedNonce(v, account); err != nil {
			needs.note(err, avlstar.Want{Key: NonceKey(account)})
		}
		return err
	})
	return next + a.check.waitingOf(account), err
}

// addRange records the nodes of a range that are missing in v, after reading it failed: as many
// subtrees as fit in room, in bytes, and then the path to the next one, below which there are
// smaller subtrees. lengths says that the lengths of values are enough (Version.PeekRange).
func (n *needs) addRange(v *avlstar.Version, start, end []byte, room uint64, lengths bool, err error) {
	var missing *avlstar.MissingNodeError
	if n == nil || !errors.As(err, &missing) {
		return
	}
	n.reached(missing.Node)
	for s := range v.Stubs(missing.Key) {
		if end != nil && s.First != nil && bytes.Compare(s.First, end) >= 0 {
			return
		}
		size := s.Bytes
		if lengths {
			if s.IsKnownLeaf() {
				continue
			}
			size = min(size, lengthBytes<<min(s.Height, 40))
		}
		from, after := bytes.Clone(s.First), bytes.Clone(s.After)
		if bytes.Compare(from, start) < 0 {
			from = start
		}
		if size > room {
			n.add(avlstar.Want{Key: from, Written: lengths})
			return
		}
		if end != nil && (after == nil || bytes.Compare(after, end) > 0) {
			after = end
		}
		room -= size
		n.add(avlstar.Want{Range: true, Key: from, After: after, Written: lengths})
	}
}

// addStub records the nodes that are missing in v, after a search for the greatest key below
// another one failed: the subtree that the search reached or, if that is large, the path through
// it.
func (n *needs) addStub(v *avlstar.Version, err error) {
	var missing *avlstar.MissingNodeError
	if n == nil || !errors.As(err, &missing) {
		return
	}
	for s := range v.Stubs(missing.Key) {
		if s.Hash == missing.Node.Hash && s.Bytes <= rangeRound {
			n.note(err, avlstar.Want{Range: true, Key: bytes.Clone(s.First), After: bytes.Clone(s.After)})
			return
		}
		break
	}
	n.note(err)
}
