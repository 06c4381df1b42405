// Package snapshot chooses the snapshot that a joining node fetches: the newest one that a header
// proves and that connected peers have. It fetches and proves its manifest. It trusts no peer.
//
//	finder.go     Finder: its options and errors
//	choose.go     claimed heights ──► ranked ──► in parallel: a header, then a manifest
//	manifest.go   fetches a manifest from several peers: a slow one yields its slot to another
//	draft.go      the received part of an unproved manifest; the next peer continues it
//	rate.go       how fast peers send a chunk of a snapshot, to compare it with another snapshot
//	cover.go      which chunks of a snapshot no connected peer has
package snapshot

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/peers"
)

// Headers provides the trusted headers of the chain, which package lightblocks proves. The methods
// are called concurrently.
type Headers interface {
	// Newest returns the height of the newest proved header.
	Newest(ctx context.Context) (int64, error)
	// AppHash returns the app hash of the state after block height, which the next header contains.
	AppHash(ctx context.Context, height int64) ([]byte, error)
	// Conflict returns an error if two headers of one height are both proved; that ends the join.
	Conflict() error
}

var (
	// ErrHopeless is an error of Headers that does not go away with time.
	ErrHopeless = errors.New("the headers cannot be proved")
	// ErrNothing: no usable snapshot was found within Options.Timeout. Nothing was changed.
	ErrNothing = errors.New("no snapshot to join from")
	// ErrNoPeers and ErrNoSnapshots are reasons why a search has found nothing so far.
	ErrNoPeers     = errors.New("no peer of the transport can be reached")
	ErrNoSnapshots = errors.New("no peer offers a usable snapshot yet")
	errCommitment  = errors.New("its commitment does not have the app hash after block")
	errSlow        = errors.New("no peer sends a manifest fast enough")
)

// Choice is a snapshot to fetch: its manifest is proved, and a peer claims the snapshot.
type Choice struct {
	Height   int64
	Manifest *avlstar.Manifest
}

// Options configure a Finder.
type Options struct {
	Logger  log.Logger
	Peers   *peers.Peers
	Headers Headers
	// Interval is the chain's snapshot interval, in blocks: other heights are ignored. 0: unknown.
	Interval int64
	// Local is a state that the node already has, at LocalHeight: only a newer snapshot is chosen,
	// and only one of which a peer has actually sent a chunk. nil: none.
	Local       *avlstar.Version
	LocalHeight int64
	MinHeight   int64         // minimum height to choose; 0: any
	Timeout     time.Duration // time after which Choose returns ErrNothing; 0: none
	Unfinished  *Choice       // snapshot of an interrupted restore; nil: none
	Go          func(func())  // starts a goroutine that the caller waits for
}

// Finder finds snapshots. Its methods may be called concurrently.
type Finder struct {
	o        Options
	sketches sketches
	attempts struct {
		sync.Mutex
		failed map[int64]int // failed attempts, by height
	}
}

// New returns a Finder.
func New(o Options) *Finder {
	f := &Finder{o: o}
	f.attempts.failed = map[int64]int{}
	return f
}
