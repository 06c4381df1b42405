package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	cmtmath "github.com/cometbft/cometbft/libs/math"
	"github.com/cometbft/cometbft/light"
	"github.com/cometbft/cometbft/light/provider"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/transport"
)

// Errors of a Verifier. What is missing stands in their text.
var (
	// ErrNoPeers: there is nobody to ask.
	ErrNoPeers = errors.New("no peer to ask for light blocks")
	// ErrUnavailable: no peer gave what could be proved.
	ErrUnavailable = errors.New("no peer gave it")
	// ErrTrustMismatch: peers have another block at the trusted height. Either they lie, or the trusted hash is of another chain.
	ErrTrustMismatch = errors.New("the block at the trusted height has another hash")
	// ErrTrustExpired: the trusted header is too old; validators who have left since could have signed anything.
	ErrTrustExpired = errors.New("the trust period has expired")
	// ErrFuture: a header is later than the own clock allows. Peer or clock are wrong.
	ErrFuture = errors.New("the header is from the future")
	// ErrConflict: two different blocks of one height are both proved: validators signed both. Nothing is safe until people have looked at it.
	ErrConflict = errors.New("conflicting blocks are both proved")
	// ErrClosed: the Verifier was closed.
	ErrClosed = errors.New("the verifier is closed")

	// errLie wraps what no honest peer of the chain does, if the trusted header is right.
	errLie = errors.New("the peer lied")
)

// DefaultTrustPeriod is two thirds of the three weeks for which validators are commonly held liable.
const DefaultTrustPeriod = 14 * 24 * time.Hour

// Peer is somebody who has light blocks: a Provider, or an RPC server (NewRPC). The errors of LightBlock are those of CometBFT's interface;
// ErrBadLightBlock is taken as proof of a lie. Called concurrently. ID must be unique.
type Peer interface {
	ID() transport.ID
	provider.Provider
	ConsensusParams(ctx context.Context, height int64) (types.ConsensusParams, error)
}

// Options of a Verifier. Zero means the default.
type Options struct {
	ChainID string
	// TrustHeight and TrustHash name the one header that is trusted.
	TrustHeight int64
	TrustHash   []byte
	// TrustPeriod is how old a header may be from which later ones are proved. It must be shorter than the time for which validators can be
	// punished. Default: DefaultTrustPeriod.
	TrustPeriod time.Duration
	// TrustLevel is the share of a trusted validator set that must have signed a block for it to be proved at once. Default: 1/3.
	TrustLevel cmtmath.Fraction
	// MaxClockDrift is how far a header may be ahead of the own clock. Default: 10 s.
	MaxClockDrift time.Duration
	Now           func() time.Time // default: time.Now
	Logger        log.Logger       // default: none
	// EvidenceDir is where evidence of attacks is kept, a JSON file each. "": it is only reported to the peers.
	EvidenceDir string
	// Lied is told of proof that a peer lied. It may be called concurrently, and must not call the Verifier's Close.
	Lied func(transport.ID, error)
	// CallTimeout is how long one question to one peer may take. Default: 10 s.
	CallTimeout time.Duration
	// Hedge is how long a peer may take before further ones are asked beside it. Default: 300 ms.
	Hedge time.Duration
	// CompareWait is how long to wait, once a block is proved, for what the other peers say about it. A peer that missed it is not waited for
	// again until it has answered something in time; its answers are compared all the same when they come. Default: 1 s.
	CompareWait time.Duration
}

// Verifier proves headers from a trusted one with the answers of peers that need not be trusted. Light blocks that it returns are shared: they
// must not be modified. Its methods may be called concurrently.
type Verifier struct {
	opts   Options
	log    log.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		peers    []*peer
		joined   chan struct{} // closed and replaced when a peer comes
		blocks   cache
		flights  map[int64]*flight
		denied   map[transport.ID]error // who has another block at the trusted height: nobody knows yet who is right
		conflict error                  // once there is one, it stays
		closed   bool
	}
}

// peer is a Peer and what is known of it, guarded by Verifier.mu.
type peer struct {
	Peer
	id       transport.ID
	strikes  int  // questions in a row without a usable answer in time
	late     int  // how often somebody waited for it in vain
	doubtful bool // it had another block than the proved one, and proved nothing
	liar     bool // it is not asked any more
}

// NewVerifier checks the options. Call Close at the end.
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
	if opts.TrustLevel == (cmtmath.Fraction{}) {
		opts.TrustLevel = light.DefaultTrustLevel
	}
	if err := light.ValidateTrustLevel(opts.TrustLevel); err != nil {
		return nil, fmt.Errorf("light blocks: %w", err)
	}
	for _, d := range []struct {
		name string
		at   *time.Duration
		is   time.Duration
	}{
		{"trust period", &opts.TrustPeriod, DefaultTrustPeriod},
		{"clock drift", &opts.MaxClockDrift, 10 * time.Second},
		{"call timeout", &opts.CallTimeout, 10 * time.Second},
		{"hedge", &opts.Hedge, 300 * time.Millisecond},
		{"compare wait", &opts.CompareWait, time.Second},
	} {
		if *d.at < 0 {
			return nil, fmt.Errorf("light blocks: %s %v is negative", d.name, *d.at)
		}
		if *d.at == 0 {
			*d.at = d.is
		}
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = log.NewNopLogger()
	}
	v := &Verifier{opts: opts, log: opts.Logger}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.mu.joined = make(chan struct{})
	v.mu.flights = map[int64]*flight{}
	v.mu.denied = map[transport.ID]error{}
	return v, nil
}

// Close ends everything that is under way and waits for it. The peers stay the caller's.
func (v *Verifier) Close() {
	v.mu.Lock()
	v.mu.closed = true
	v.mu.Unlock()
	v.cancel()
	v.wg.Wait()
}

// spawn runs f in a goroutine that Close waits for. After Close f is not run: its context has ended too.
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

// Add makes p one of those who are asked; one with the same ID is replaced.
func (v *Verifier) Add(p Peer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(p.ID())
	v.mu.peers = append(v.mu.peers, &peer{Peer: p, id: p.ID()})
	close(v.mu.joined)
	v.mu.joined = make(chan struct{})
}

// Remove makes a peer one that is not asked any more. Questions under way go on.
func (v *Verifier) Remove(id transport.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(id)
}

func (v *Verifier) remove(id transport.ID) {
	for i, p := range v.mu.peers {
		if p.id == id {
			v.mu.peers = append(v.mu.peers[:i:i], v.mu.peers[i+1:]...)
			return
		}
	}
}

// LightBlock returns the block of a height, proved: above the trusted height by bisection, below it by the hashes that lead down from it. Its
// commit has no wrong signature at all, not only enough right ones: CometBFT panics over a wrong one in a commit that it starts from. Fails
// with the errors above, or ctx's.
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

// Commit returns the commit of the block of a height. All its signatures are right.
func (v *Verifier) Commit(ctx context.Context, height int64) (*types.Commit, error) {
	lb, err := v.LightBlock(ctx, height)
	if err != nil {
		return nil, err
	}
	return lb.Commit.Clone(), nil
}

// AppHash returns the app hash of the state after the block of a height. It stands in the next header.
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

// Conflict returns the ErrConflict that was found, or nil. Peers that answer after CompareWait are compared while the caller goes on: who is
// about to rely on a block for good asks here again.
func (v *Verifier) Conflict() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.conflict
}

// lied tells the owner that a peer lied, once, and asks it no more.
func (v *Verifier) lied(p *peer, err error) {
	v.mu.Lock()
	was := p.liar
	p.liar = true
	v.mu.Unlock()
	if was {
		return
	}
	v.log.Error("a peer lied about light blocks", "peer", p.id, "err", err)
	if v.opts.Lied != nil {
		v.opts.Lied(p.id, err)
	}
}

// answered notes whether a peer gave something usable in time: those who do are asked first and waited for.
func (v *Verifier) answered(p *peer, inTime bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if inTime {
		p.strikes = 0
	} else {
		p.strikes++
	}
}
