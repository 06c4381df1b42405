package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// Errors of a Verifier.
var (
	// ErrNoPeers: the Verifier has no peer to ask.
	ErrNoPeers = errors.New("no peer to ask for light blocks")
	// ErrUnavailable: no peer sent a response that could be proved.
	ErrUnavailable = errors.New("not available from any peer")
	// ErrTrustMismatch: peers have another block at the trusted height. Either these peers are
	// Byzantine, or the trusted hash belongs to another chain.
	ErrTrustMismatch = errors.New("the block at the trusted height has another hash")
	// ErrTrustExpired: the trusted header is too old. Its validators may have left since then, and
	// could sign anything without being punished.
	ErrTrustExpired = lightclient.ErrExpired
	// ErrFuture: a header is later than the local clock allows. Either the peer or the clock is
	// wrong.
	ErrFuture = lightclient.ErrFuture
	// ErrConflict: two different blocks of one height are both proved, so validators signed both.
	// The chain must not be relied on until people have investigated the conflict.
	ErrConflict = errors.New("conflicting blocks are both proved")
	// ErrClosed: the Verifier was closed.
	ErrClosed = errors.New("the verifier is closed")

	// errLie wraps errors that prove a peer Byzantine: if the trusted header is right, no honest
	// peer of the chain sends such a response.
	errLie = errors.New("invalid response")
)

// Peer is a source of light blocks: a Provider, or an RPC server (NewRPC). The errors of LightBlock
// are those of CometBFT's provider interface; ErrBadLightBlock proves that the peer is Byzantine.
// The methods are called concurrently. ID must be unique among the peers of a Verifier.
type Peer interface {
	ID() transport.ID
	provider.Provider
	ConsensusParams(ctx context.Context, height int64) (types.ConsensusParams, error)
}

// Options of a Verifier. Zero values select the defaults.
type Options struct {
	ChainID string
	// TrustHeight and TrustHash (32 bytes) name the one header that is trusted.
	TrustHeight int64
	TrustHash   []byte
	// TrustPeriod is the maximum age of a header from which later headers are proved. It must be
	// shorter than the time during which validators can be punished. Default:
	// lightclient.DefaultTrustPeriod.
	TrustPeriod time.Duration
	Logger      log.Logger // default: none
	// EvidenceDir is the folder for evidence of attacks, one JSON file per attack. If it is empty,
	// evidence is only reported to the peers.
	EvidenceDir string
	// Lied is called with the proof when a peer has sent an invalid response. It must be safe for
	// concurrent use, and must not call the Verifier's Close.
	Lied func(transport.ID, error)

	// The fields below are for tests.

	now func() time.Time // default: time.Now
	// callTimeout limits one request to one peer. Default: 10 s.
	callTimeout time.Duration
	// hedge is the time after which a peer counts as slow and further peers are asked in parallel.
	// Default: 300 ms.
	hedge time.Duration
	// compareWait limits the wait for the other peers' responses once a block is proved. After
	// missing this limit, a peer is not waited for again until it has answered a request in time.
	// Late responses are still compared. Default: 1 s.
	compareWait time.Duration
	// shuffle orders peers at random. Default: rand.Shuffle.
	shuffle func(n int, swap func(i, j int))
}

// Verifier proves headers from a trusted one, using the responses of untrusted peers. The light
// blocks that it returns are shared and must not be modified. It is safe for concurrent use.
type Verifier struct {
	opts   Options
	rules  lightclient.Rules
	log    log.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		peers   []*peer
		joined  chan struct{} // closed and replaced when a peer is added
		blocks  *lightclient.Blocks
		flights map[int64]*flight // searches that new callers can join, by height
		// denied holds the peers that sent another block at the trusted height, until a peer proves
		// the trusted block. It is nil from then on.
		denied   map[transport.ID]error
		conflict error // set once, never reset
		// reported is closed when the evidence of conflict has been reported. It is nil if there is
		// no evidence to report.
		reported chan struct{}
		closed   bool
	}
}

// peer is a Peer with the Verifier's record of it. Verifier.mu guards the fields below id.
type peer struct {
	Peer
	id       transport.ID
	strikes  int  // consecutive requests without a usable response in time
	late     int  // number of times that callers waited for it in vain
	doubtful bool // sent a block other than the proved one, without proving it
	liar     bool // proved Byzantine; never asked again
}

// cachedBlocks is the maximum number of blocks kept. With 10,000 validators a block takes about 4
// MiB.
const cachedBlocks = 64

// NewVerifier returns a Verifier without peers, or an error if the options are invalid. The caller
// must close it.
func NewVerifier(opts Options) (*Verifier, error) {
	if opts.ChainID == "" {
		return nil, errors.New("light blocks: no chain id")
	}
	if opts.TrustHeight < 1 {
		return nil, fmt.Errorf("light blocks: trusted height %d is below 1", opts.TrustHeight)
	}
	if len(opts.TrustHash) != 32 {
		return nil, fmt.Errorf("light blocks: the trusted hash has %d bytes, not 32", len(opts.TrustHash))
	}
	opts.TrustHash = bytes.Clone(opts.TrustHash)
	rules, err := lightclient.Rules{TrustPeriod: opts.TrustPeriod, WholeCommits: true}.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("light blocks: %w", err)
	}
	for _, d := range []struct {
		name string
		at   *time.Duration
		is   time.Duration
	}{
		{"call timeout", &opts.callTimeout, 10 * time.Second},
		{"hedge", &opts.hedge, 300 * time.Millisecond},
		{"compare wait", &opts.compareWait, time.Second},
	} {
		if *d.at < 0 {
			return nil, fmt.Errorf("light blocks: %s %v is negative", d.name, *d.at)
		}
		if *d.at == 0 {
			*d.at = d.is
		}
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	if opts.shuffle == nil {
		opts.shuffle = rand.Shuffle
	}
	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}
	v := &Verifier{opts: opts, rules: rules, log: opts.Logger}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.mu.joined = make(chan struct{})
	v.mu.blocks = lightclient.NewBlocks(cachedBlocks)
	v.mu.flights = map[int64]*flight{}
	v.mu.denied = map[transport.ID]error{}
	return v, nil
}

// Close ends all calls and searches in progress and waits for their goroutines. It gives reports of
// evidence five seconds to arrive. Close does not close the peers; close them after the Verifier,
// so that the reports can be sent.
func (v *Verifier) Close() {
	v.mu.Lock()
	v.mu.closed = true
	reported := v.mu.reported
	v.mu.Unlock()
	if reported != nil {
		select {
		case <-reported:
		case <-time.After(reportGrace):
		}
	}
	v.cancel()
	v.wg.Wait()
}

// spawn runs f in a goroutine that Close waits for. After Close, when v.ctx has ended, it does
// nothing. It locks mu.
func (v *Verifier) spawn(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.closed {
		return
	}
	v.wg.Add(1)
	go func() {
		defer v.wg.Done()
		f()
	}()
}

// Add adds a peer. It replaces a peer that has the same ID.
func (v *Verifier) Add(p Peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(p.ID())
	v.mu.peers = append(v.mu.peers, &peer{Peer: p, id: p.ID()})
	close(v.mu.joined)
	v.mu.joined = make(chan struct{})
}

// Remove removes a peer. It does not cancel requests that are in flight.
func (v *Verifier) Remove(id transport.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(id)
}

// remove is Remove with mu held.
func (v *Verifier) remove(id transport.ID) {
	for i, p := range v.mu.peers {
		if p.id == id {
			v.mu.peers = append(v.mu.peers[:i:i], v.mu.peers[i+1:]...)
			return
		}
	}
}

// LightBlock returns the proved block of a height. Above the trusted height it proves by bisection,
// below by the chain of hashes that leads down to the block. It verifies every signature of the
// commit, not only a sufficient number, because CometBFT panics when it starts from a commit with a
// wrong signature. LightBlock returns one of the errors above, or the error of ctx.
func (v *Verifier) LightBlock(ctx context.Context, height int64) (*types.LightBlock, error) {
	if height < 1 {
		return nil, fmt.Errorf("light block: there is no height %d", height)
	}
	if _, err := v.block(ctx, v.opts.TrustHeight, false); err != nil {
		return nil, fmt.Errorf("trusted header: %w", err)
	}
	if height < v.opts.TrustHeight {
		return v.backwards(ctx, height)
	}
	return v.block(ctx, height, true)
}

// Commit returns a copy of the commit of the proved block of a height. All its signatures are
// valid.
func (v *Verifier) Commit(ctx context.Context, height int64) (*types.Commit, error) {
	lb, err := v.LightBlock(ctx, height)
	if err != nil {
		return nil, err
	}
	return lb.Commit.Clone(), nil
}

// AppHash returns the app hash after the block of a height. The header of the next height contains
// it.
func (v *Verifier) AppHash(ctx context.Context, height int64) ([]byte, error) {
	if height < 0 {
		return nil, fmt.Errorf("app hash: there is no height %d", height)
	}
	lb, err := v.LightBlock(ctx, height+1)
	if err != nil {
		return nil, fmt.Errorf("app hash of height %d: %w", height, err)
	}
	return bytes.Clone(lb.AppHash), nil
}

// Conflict returns the ErrConflict that was found, or nil. Late responses of peers are still
// compared after LightBlock has returned, so a caller must check Conflict again before it finally
// relies on a block.
func (v *Verifier) Conflict() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.conflict
}

// lied excludes a Byzantine peer, and reports it once to Options.Lied.
func (v *Verifier) lied(p *peer, err error) {
	v.mu.Lock()
	was := p.liar
	p.liar = true
	v.mu.Unlock()
	if was {
		return
	}
	v.log.Error("a peer sent an invalid light block response", "peer", p.id, "err", err)
	if v.opts.Lied != nil {
		v.opts.Lied(p.id, err)
	}
}

// answered records whether a peer sent a usable response in time. Peers that do are asked first,
// and callers wait for them.
func (v *Verifier) answered(p *peer, inTime bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if inTime {
		p.strikes = 0
	} else {
		p.strikes++
	}
}
