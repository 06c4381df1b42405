package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

// Queries read what their height's tree lacks from a small tree of their own, which begins with the
// root's hash: so strangers' questions neither touch nor enlarge the tree that decides about
// blocks, wait for it, or delay it, and older heights are read in the same way.

const (
	// queryPatience is how many times Options.WitnessTimeout a query waits for the Source.
	queryPatience = 5
	// maxWaitingQueries limits the queries that wait for it at the same time.
	maxWaitingQueries = 64
	// rangeRound limits the bytes of leaf records that one request of a query asks for.
	rangeRound = 256 << 10
)

// reading calls read with a version of the state at, until it does not return that nodes are
// missing: at first with the one that is kept, then with others, of which it notes in needs what
// they lack. What read keeps must not be memory of its version.
func (a *App) reading(ctx context.Context, at committed, read func(v *avlstar.Version, needs *needs) error) error {
	if err := read(at.version, nil); !isMissing(err) || a.options.Source == nil {
		return err
	}
	select {
	case a.queries <- struct{}{}:
		defer func() { <-a.queries }()
	default:
		return tx.Errorf(tx.CodeBusy, "%d queries wait for parts of the state that this node lacks, ask again later or another node", maxWaitingQueries)
	}
	ctx, cancel := a.alive(ctx)
	defer cancel()
	ctx, cancelled := context.WithTimeout(ctx, queryPatience*a.options.WitnessTimeout)
	defer cancelled()
	p, err := avlstar.NewPartial(at.version.Commitment())
	if err != nil {
		return err
	}
	v := p.Version()
	defer func() { v.Release() }()
	f := &fetcher{app: a, call: forQuery, height: at.height, version: func() *avlstar.Version { return v }, replace: func(next *avlstar.Version) {
		v.Release()
		v = next
	}}
	for {
		needs := newNeeds()
		err := read(v, needs)
		if !isMissing(err) {
			return err
		}
		if err := f.bring(ctx, needs); err != nil {
			return fmt.Errorf("a part of the state did not come from storage nodes in time: %w", err)
		}
	}
}

// fetchNonce returns the account's next nonce where its record is missing.
func (a *App) fetchNonce(ctx context.Context, account []byte) (uint64, error) {
	at, refused := a.acquire(0)
	if refused != nil {
		return 0, refused
	}
	defer at.version.Release()
	var next uint64
	err := a.reading(ctx, at, func(v *avlstar.Version, needs *needs) (err error) {
		if next, err = committedNonce(v, account); err != nil {
			needs.note(err, avlstar.Want{Key: NonceKey(account)})
		}
		return err
	})
	return next + a.check.waitingOf(account), err
}

// addRange notes what of a range is missing in v, after reading it failed: as many subtrees as
// room holds bytes of, and then the way to the next, below which there are smaller ones.
func (n *needs) addRange(v *avlstar.Version, start, end []byte, room uint64, err error) {
	var missing *avlstar.MissingNodeError
	if n == nil || !errors.As(err, &missing) {
		return
	}
	n.met[missing.Node.Hash] = avlstar.Span{}
	for s := range v.Stubs(missing.Key) {
		if end != nil && s.First != nil && bytes.Compare(s.First, end) >= 0 {
			return
		}
		from, after := bytes.Clone(s.First), bytes.Clone(s.After)
		if bytes.Compare(from, start) < 0 {
			from = start
		}
		if s.Bytes > room {
			n.add(avlstar.Want{Key: from})
			return
		}
		if end != nil && (after == nil || bytes.Compare(after, end) > 0) {
			after = end
		}
		room -= s.Bytes
		n.add(avlstar.Want{Range: true, Key: from, After: after})
	}
}

// addStub notes what is missing in v, after a search for the greatest key below another failed: the
// subtree that the search led to or, if that is large, the way through it.
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
