package storagenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/rangestore"
)

const (
	// fromGenesis is the chain height up to which a range starts from the genesis state: validators
	// that have waited for storage nodes since then have all updates. If they have not, the range
	// is taken over later.
	fromGenesis = 1000
	// stuckAfter is the time after which a range whose next update no validator sends is taken
	// over. A takeover gives up the range's heights, which all other ranges may need after a
	// failure of many machines, so validators first get time to restart.
	stuckAfter = 5 * time.Minute
	// earlyAfter is that time if another replica has all that the takeover gives up.
	earlyAfter = 15 * time.Second
	// nextAfter is that time for a next range: validators send it updates from some block on, and
	// its state can be older.
	nextAfter = 3 * time.Second
	// againAfter is the time between a failed attempt to take over a range and the next one.
	againAfter = 5 * time.Second
)

// finalError is an error that waiting does not resolve.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func isFinal(err error) bool { return errors.As(err, new(finalError)) }

// tend creates ranges that have no state, and takes over those that cannot continue.
func (n *Process) tend(ctx context.Context, v verifier) error {
	var errs []error
	for _, p := range n.all() {
		if err := n.tendPlace(ctx, p, v); err != nil {
			errs = append(errs, fmt.Errorf("range %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

func (n *Process) tendPlace(ctx context.Context, p *place, v verifier) error {
	if p.taken.Load() {
		return nil
	}
	n.mu.Lock()
	broken, role := p.broken, p.role
	n.mu.Unlock()
	if role == retired {
		n.retire(ctx, p)
		return nil
	}
	if broken != nil {
		if err := n.dropReplica(p); err != nil {
			return finalError{err}
		}
		if err := n.putAside(p, broken); err != nil {
			return finalError{err}
		}
		if err := n.changed(); err != nil {
			return finalError{err}
		}
	}
	now := time.Now()
	if p.replica == nil {
		if now.Before(p.tryFrom) {
			return nil
		}
		if role == next { // it never begins with the genesis state: other nodes have its keys
			n.take(ctx, p, v, 0, -1, false)
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, claimTimeout)
		newest, err := v.Newest(limited) // a false height would keep the range waiting
		cancel()
		if err != nil {
			return err
		}
		n.take(ctx, p, v, newest, -1, newest-n.genesis.InitialHeight < n.young)
		return nil
	}
	height, waits := p.replica.Newest()
	_, moved := n.headers.AppHash(height + 1)
	if height != p.height && !p.since.IsZero() {
		// The range follows: data from earlier takeover attempts are not needed.
		if err := p.dropFetched(); err != nil {
			return finalError{err}
		}
		p.partial = 0
	}
	if height != p.height || waits || !moved {
		p.height, p.since = height, now
		return nil
	}
	if due, early := isDue(role, now.Sub(p.since)); due && !now.Before(p.tryFrom) {
		n.take(ctx, p, v, 0, height, early)
	}
	return nil
}

// isDue reports whether a range is taken over after it has waited for its next update, whose header
// is proved. early: only if another replica has all that the takeover gives up.
func isDue(r role, waited time.Duration) (due, early bool) {
	if r == next { // the heights that it gives up serve no block
		return waited >= nextAfter, false
	}
	return waited >= earlyAfter, waited < stuckAfter
}

// filler fetches the state of a range from other nodes.
type filler interface {
	// fill installs the newest available state above the given height in a range, and opens it.
	// newest is the chain's newest height, which was asked for a moment ago; 0: it was not. After
	// an error the range is unchanged, or has no state if the new one is damaged, unless the error
	// is a finalError. The error wraps errNobody if no node has such a state; with early, errEarly
	// if no other replica has one and also the range's state at the given height.
	fill(ctx context.Context, p *place, v verifier, newest, above int64, early bool) error
}

// take begins a takeover of a range, in parallel with the headers that other ranges need. With
// early, a range without a state begins with the genesis state if it cannot be taken over.
func (n *Process) take(ctx context.Context, p *place, v verifier, newest, above int64, early bool) {
	p.taken.Store(true)
	n.taking.Go(func() {
		defer p.taken.Store(false)
		err := n.filler.fill(ctx, p, v, newest, above, early)
		// With a map that can change, other nodes may have the keys.
		first := errors.Is(err, errEarly) || n.nodes.Load().Version == 0
		if err != nil && ctx.Err() == nil && !isFinal(err) && early && first && p.replica == nil {
			if !errors.Is(err, errEarly) {
				n.log.Error("Cannot fetch a range from its other replicas now: beginning with the genesis state", "range", p.String(), "err", err)
			}
			err = n.createFromGenesis(p)
		}
		if err != nil { // else isDue says when a takeover is due again
			p.tryFrom = time.Now().Add(againAfter)
		}
		switch {
		case err == nil, ctx.Err() != nil:
		case isFinal(err):
			n.fail(err)
		case time.Since(p.warned) < repeatAfter:
		case errors.Is(err, errEarly):
			p.warned = time.Now()
			n.log.Info("No validator sends the next update of this range: waiting before it is fetched at a newer height", "range", p.String(), "needs", above+1,
				"wait", stuckAfter)
		default:
			p.warned = time.Now()
			text := "The range cannot be fetched now"
			if above >= 0 {
				text = "No validator sends the next update of this range, and the range cannot be fetched at a newer height: are validators running with state.mode = \"sharded\", and is this node in their storage nodes file?"
			}
			n.log.Error(text, "range", p.String(), "needs", above+1, "err", err)
		}
	})
}

// genesisState returns the state before the first block. The caller must release it.
func genesisState(doc *cmttypes.GenesisDoc) (*avlstar.Version, error) {
	v, err := app.GenesisState(config.InitChainRequest(doc))
	return v, config.Invalid(err)
}

// createFromGenesis creates the first state of a range from the genesis file. Its app hash is
// compared with the first header's once that is proved.
func (n *Process) createFromGenesis(p *place) error {
	v, err := genesisState(n.genesis)
	if err != nil {
		return finalError{err}
	}
	defer v.Release()
	boundary, err := v.Boundary(p.keys)
	if err != nil {
		return err
	}
	leaves := func(yield func(avlstar.Leaf, error) bool) {
		for l, err := range v.Leaves() {
			if (err != nil || p.keys.Contains(l.Key)) && !yield(l, err) {
				return
			}
		}
	}
	height := n.genesis.InitialHeight - 1
	err = n.create(p, height, func(s *rangestore.Store) error { return s.Create(height, v.Commitment(), boundary, leaves) })
	if err != nil {
		return err
	}
	n.log.Info("Created a range from the genesis file", "range", p.String(), "app_hash", v.AppHash())
	return nil
}

// create replaces a range's state by one that write stores locally, and opens it.
func (n *Process) create(p *place, height int64, write func(*rangestore.Store) error) error {
	next := p.dir + nextSuffix
	if err := os.RemoveAll(next); err != nil {
		return finalError{err}
	}
	store, err := n.openStore(p, next)
	if err != nil {
		return finalError{err}
	}
	if err := errors.Join(write(store), store.Close()); err != nil {
		return finalError{err}
	}
	if err := p.dropFetched(); err != nil {
		return finalError{err}
	}
	return n.useNext(p, height)
}

// useNext replaces a range's state by the complete one in its next folder, and opens it. If that is
// damaged, it is put aside, and the range has no state.
func (n *Process) useNext(p *place, height int64) error {
	if err := n.dropReplica(p); err != nil {
		return finalError{err}
	}
	// openReplica forgets the logged updates of the old state. They must stay until then: after a
	// kill in replace, the next start may continue with the old state.
	if err := replace(p.dir); err != nil {
		return finalError{err}
	}
	opened := n.openReplica(n.ctx, p)
	switch {
	case isBad(opened):
		if err := n.putAside(p, opened); err != nil {
			return finalError{err}
		}
	case opened != nil:
		return finalError{opened}
	}
	if err := n.changed(); err != nil {
		return finalError{err}
	}
	if opened != nil {
		return opened
	}
	p.height, p.since = height, time.Now()
	return nil
}

// dropReplica closes the replica of a range, if it has one.
func (n *Process) dropReplica(p *place) error {
	n.mu.Lock()
	old := p.replica
	p.replica, p.broken = nil, nil
	n.mu.Unlock()
	if old == nil {
		return nil
	}
	return old.Close()
}

// broken notes that a replica accepts no further updates. The follower then puts it aside, unless
// the disk failed: that ends the node.
func (n *Process) broken(r *server.Replica, err error) {
	if !isBad(err) {
		n.fail(err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.mu.places {
		if p.replica == r {
			p.broken = err
		}
	}
}
