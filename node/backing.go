package node

import (
	"errors"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/node/join"
	"github.com/starling-kv/starling/node/statuspage"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/treestore"
	"github.com/starling-kv/starling/transport"
)

// backing is where an Application's state is kept: in this home (local), or at storage nodes
// (*sharded).
type backing interface {
	// finalizing is called before a block is executed, with the votes for the block before.
	finalizing(votes []abci.VoteInfo)
	// finalized is called after a block was executed (err is nil), or with the reason why it was
	// not.
	finalized(err error)
	// stopWaiting permanently ends all waits in calls of a.
	stopWaiting(a *app.App)
	close() error

	// waiting describes what the node is waiting for; "": nothing.
	waiting() string
	// degraded names the parts of the state with missing replicas; "": there are none.
	degraded() string
	// report adds the state of the backing to a status.
	report(*statuspage.Status)
	// holders returns other nodes that hold parts of the state.
	holders() []transport.Address

	// joining returns the join of a sharded state; nil: the join restores a snapshot.
	joining(a *Application) join.Sharded
	// unfinished reports whether a restore removed the old state without completing a new one.
	unfinished() bool
	// lost returns ErrAway if the block after height can never be executed.
	lost(height int64) error
	// needsHeaders reports whether other nodes need this home's headers before CometBFT runs.
	needsHeaders() bool
}

// local is a state kept in this home.
type local struct {
	state     *storage.Zone
	store     *treestore.Store
	target    treestore.Target
	stopScrub func() // waits until no page is being verified
}

func (l *local) finalizing([]abci.VoteInfo)        {}
func (l *local) finalized(error)                   {}
func (l *local) stopWaiting(*app.App)              { l.state.StopSettling() }
func (l *local) waiting() string                   { return "" }
func (l *local) degraded() string                  { return "" }
func (l *local) holders() []transport.Address      { return nil }
func (l *local) joining(*Application) join.Sharded { return nil }
func (l *local) lost(int64) error                  { return nil }
func (l *local) needsHeaders() bool                { return false }

func (l *local) close() error {
	l.stopScrub()
	l.store.Close()
	return l.state.Close()
}

func (l *local) report(status *statuspage.Status) {
	m := l.state.Metrics()
	status.Flusher = statuspage.Flusher{SafeHeight: m.SafeHeight, LagBlocks: m.LagBlocks, LagBytes: m.LagBytes, LagSeconds: m.LagSeconds}
}

func (l *local) unfinished() bool {
	_, _, unfinished := l.target.Unfinished()
	return unfinished
}

func (s *sharded) finalized(err error) {
	if errors.Is(err, app.ErrBlockWitnesses) { // waiting does not resolve that
		s.failed(err)
	}
}

func (s *sharded) stopWaiting(a *app.App) { a.Stop() }

func (s *sharded) close() error { return s.source.Close() }

func (s *sharded) report(status *statuspage.Status) { status.Sharded = s.status() }

func (s *sharded) holders() (all []transport.Address) {
	nodes := s.maps.Current()
	for _, id := range nodes.Ranges.Nodes() {
		all = append(all, nodes.Addresses[id])
	}
	return all
}

func (s *sharded) joining(a *Application) join.Sharded { return joinSharded{a, s} }

func (s *sharded) unfinished() bool { return false }

func (s *sharded) lost(height int64) error { return s.store.away(height) }

func (s *sharded) needsHeaders() bool { return true }
