package app

import (
	"context"
	"crypto/sha256"
	"fmt"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/avlstar"
)

// backing provides the nodes of the tree that are not in memory: from this machine (onDisk), or
// from storage nodes (byWitness). The rules of blocks are the same with both.
type backing interface {
	// keepRecent returns the number of versions that are kept; n is the number in the options.
	keepRecent(n int) int
	// begin returns v with a reference, or a version of the same state that has the records that
	// the application needs to start.
	begin(height int64, v *avlstar.Version) (*avlstar.Version, error)
	// genesis returns the version to begin with; v is that of the genesis state. It takes over the
	// reference to v, even if it returns an error.
	genesis(v *avlstar.Version) (*avlstar.Version, error)
	// adopted is called with the first version of a tree.
	adopted(v *avlstar.Version)

	// needs returns a new record for nodes that a check or a proposal finds missing, or nil if no
	// node can be missing.
	needs() *needs
	// refused is called when a recheck has refused a transaction.
	refused(id [sha256.Size]byte)
	// waits is called when a recheck has admitted a transaction of size bytes again.
	waits(v *avlstar.Version, params *Params, id [sha256.Size]byte, size int)

	// process reports whether this node can execute a proposal in time. It is called without locks.
	process(ctx context.Context, req *abci.RequestProcessProposal, txs []decoded) bool
	// finalize executes a block. The caller holds block's lock, which may be released meanwhile.
	finalize(ctx context.Context, b block) (*abci.ResponseFinalizeBlock, error)
	// first returns the base and the changes of the chain's first block for Store.Commit.
	first(p *pending) (*avlstar.Version, []avlstar.Change, error)
	// shed drops nodes from memory that are not kept after the block p. The caller holds block's
	// lock.
	shed(p *pending) error
	// offers reports whether versions can be offered as snapshots.
	offers() bool

	// read calls read with a version of the state at until no node is missing. Data that read keeps
	// must not be memory of its version.
	read(ctx context.Context, at committed, read func(v *avlstar.Version, needs *needs) error) error
}

// onDisk is a state that is completely on this machine.
type onDisk struct{ *App }

func (onDisk) keepRecent(n int) int { return n }

func (onDisk) begin(_ int64, v *avlstar.Version) (*avlstar.Version, error) {
	v.Retain()
	return v, nil
}

func (onDisk) genesis(v *avlstar.Version) (*avlstar.Version, error)    { return v, nil }
func (onDisk) adopted(*avlstar.Version)                                {}
func (onDisk) needs() *needs                                           { return nil }
func (onDisk) refused([sha256.Size]byte)                               {}
func (onDisk) waits(*avlstar.Version, *Params, [sha256.Size]byte, int) {}
func (onDisk) shed(*pending) error                                     { return nil }
func (onDisk) offers() bool                                            { return true }

func (onDisk) process(context.Context, *abci.RequestProcessProposal, []decoded) bool { return true }

func (f onDisk) finalize(_ context.Context, b block) (*abci.ResponseFinalizeBlock, error) {
	a := f.App
	txs := a.decoder.decodeAll(b.txs, a.form(a.block.params))
	defer a.block.version.ForgetAhead() // Apply needs the last of these pages
	done, err := a.execute(b, txs, nil)
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	if err := a.apply(done); err != nil {
		return nil, fmt.Errorf("block %d: %w", b.height, err)
	}
	return done.res, nil
}

func (onDisk) first(p *pending) (*avlstar.Version, []avlstar.Change, error) {
	changes, err := everything(p.made())
	return nil, changes, err
}

func (onDisk) read(_ context.Context, at committed, read func(v *avlstar.Version, needs *needs) error) error {
	return read(at.version, nil)
}

// byWitness is a state of which this machine has the upper tree and recently used nodes. A Source
// fetches the rest.
type byWitness struct{ *App }

func (a byWitness) keepRecent(n int) int {
	// Validators that need nodes for a decided block fetch them from the version before that block.
	return max(n, a.options.Retention.Window+1)
}

func (a byWitness) genesis(v *avlstar.Version) (*avlstar.Version, error) {
	// In a partial tree, the nodes of genesis can leave memory, as those of later states can.
	p, err := v.Prune(func(avlstar.Subtree) bool { return false })
	v.Release()
	if err != nil {
		return nil, err
	}
	a.adopted(p.Version())
	return p.Version(), nil
}

func (a byWitness) adopted(v *avlstar.Version) {
	if p, ok := v.Partial(); ok {
		p.EnableRetention(a.retention())
	}
}

func (byWitness) needs() *needs { return new(needs) }

func (a byWitness) refused(id [sha256.Size]byte) { a.check.drop(id) } // the mempool drops it too

// waits implements backing. If the last proposer left the transaction out, its nodes are requested
// again: they leave memory after a while, and those of a transaction with many keys may never be
// there together at one of this node's turns. Such a transaction would hold up all others, because
// CometBFT passes only the first ones of the mempool to a proposer, as many as fit into a block.
func (a byWitness) waits(v *avlstar.Version, params *Params, id [sha256.Size]byte, size int) {
	t := a.decoder.lookup(id, a.form(params))
	keys := 1 // also if the decoder has forgotten it, since those behind it are not the first
	if t != nil {
		keys = cost(t)
	}
	if !a.check.leftOut(id, size, keys) || t == nil {
		return
	}
	n := new(needs)
	nameKeys(n, t, true)
	a.askChecked(v, n.wants)
}

func (a byWitness) first(p *pending) (*avlstar.Version, []avlstar.Change, error) {
	return a.block.version, p.changes, nil
}

func (byWitness) offers() bool { return false } // a version with missing nodes has no chunks
