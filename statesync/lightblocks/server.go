package lightblocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/statesync/lightclient"
	"github.com/starling-kv/starling/transport"
)

// Blocks is the part of CometBFT's block store (*store.BlockStore) that the Server uses. The
// methods are called concurrently. They return nil for a block that the store does not have.
type Blocks interface {
	Base() int64
	Height() int64
	LoadBlock(height int64) *types.Block
	LoadBlockMeta(height int64) *types.BlockMeta
	LoadBlockCommit(height int64) *types.Commit
	LoadSeenCommit(height int64) *types.Commit
}

// States is the part of CometBFT's state store (state.Store) that the Server uses. The methods are
// called concurrently.
type States interface {
	LoadValidators(height int64) (*types.ValidatorSet, error)
	LoadConsensusParams(height int64) (types.ConsensusParams, error)
}

// ServerOptions name the stores of a Server. Without stores it has nothing to serve; see SetStores.
type ServerOptions struct {
	ChainID string
	Blocks  Blocks
	States  States
	// Evidence accepts evidence from peers (evidence.Pool.AddEvidence). nil: all evidence is
	// refused.
	Evidence func(types.Evidence) error
	Logger   log.Logger // nil: no logs
	// Making is a semaphore that servers can share. It holds one element for each response that
	// takes long to compute, so its capacity is the number of processors for such responses. nil:
	// one processor.
	Making chan struct{}
}

// Server answers peers' requests from the node's own stores.
type Server struct {
	chainID string
	logger  log.Logger
	reads   chan struct{} // limits concurrent reads
	// reports limits concurrent reports of evidence, because evidence must be verified before it
	// can be refused.
	reports chan struct{}

	stores struct { // read-locked while in use: SetStores waits for readers
		sync.RWMutex
		blocks   Blocks
		states   States
		evidence func(types.Evidence) error
	}
	cache   answers
	replays *replays
}

const (
	readers     = 3 // number of workers that the transport has for these methods in a node
	reporters   = 1
	cachedBytes = 16 << 20 // size of the cache of recent responses

	// A report that is refused rests for refusedRest times as long as it took, at most longestRest.
	// So false reports take at most a tenth of a processor: any stranger can send them without end,
	// and each may have as many signatures to verify as there are validators.
	refusedRest = 9
	longestRest = 250 * time.Millisecond
)

// NewServer returns a Server. It serves requests once it is registered with Register.
func NewServer(opts ServerOptions) *Server {
	s := &Server{chainID: opts.ChainID, logger: opts.Logger, reads: make(chan struct{}, readers), reports: make(chan struct{}, reporters)}
	if s.logger == nil {
		s.logger = log.NewNopLogger()
	}
	if opts.Making == nil {
		opts.Making = make(chan struct{}, 1)
	}
	s.replays = newReplays(opts.Making)
	s.SetStores(opts.Blocks, opts.States, opts.Evidence)
	return s
}

// SetStores replaces the stores. When it returns, the old stores are no longer in use and can be
// closed. Without stores (nil, nil, nil) the server responds that it does not have the requested
// data.
func (s *Server) SetStores(blocks Blocks, states States, evidence func(types.Evidence) error) {
	s.stores.Lock()
	defer s.stores.Unlock()
	s.stores.blocks, s.stores.states, s.stores.evidence = blocks, states, evidence
	s.cache.clear()
	s.replays.clear()
}

// Register adds the methods for light blocks, headers, consensus parameters and evidence to m.
func (s *Server) Register(m *transport.Mux) {
	m.Handle(MethodLightBlock, transport.HandlerFunc(s.serveLightBlock))
	m.Handle(MethodConsensusParams, transport.HandlerFunc(s.serveParams))
	m.Handle(MethodEvidence, transport.HandlerFunc(s.serveEvidence))
	m.Handle(MethodHeaders, transport.HandlerFunc(s.serveHeaders))
}

// take takes a slot, which release frees. Without a free slot it returns ErrBusy: waiting would
// keep the workers of the transport from serving chunks.
func take(places chan struct{}) (release func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	default:
		return nil, fmt.Errorf("all %d slots are in use: %w", cap(places), transport.ErrBusy)
	}
}

// using calls f with the stores. CometBFT's stores panic when their database fails; using returns a
// panic as an error, so that a peer's request cannot end the node.
func (s *Server) using(f func(Blocks, States) error) error {
	s.stores.RLock()
	defer s.stores.RUnlock()
	if s.stores.blocks == nil || s.stores.states == nil {
		return fmt.Errorf("no stores: %w", transport.ErrGone)
	}
	err := lightclient.Guard(func() error { return f(s.stores.blocks, s.stores.states) })
	if err != nil && !errors.Is(err, transport.ErrGone) && !errors.Is(err, transport.ErrRefused) {
		s.logger.Error("a peer's request for chain data failed", "err", err)
	}
	return err
}

// reading is using with a reader's slot.
func (s *Server) reading(f func(Blocks, States) error) error {
	release, err := take(s.reads)
	if err != nil {
		return err
	}
	defer release()
	return s.using(f)
}

func (s *Server) serveLightBlock(ctx context.Context, r transport.Request) ([]byte, error) {
	height, err := decodeHeight(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	var answer []byte
	err = s.using(func(blocks Blocks, states States) error {
		var err error
		answer, err = s.lightBlock(ctx, blocks, states, height)
		return err
	})
	return answer, err
}

// lightBlock encodes the light block of a height. Height 0 is the newest height that has a commit.
func (s *Server) lightBlock(ctx context.Context, blocks Blocks, states States, height int64) ([]byte, error) {
	base, top := blocks.Base(), blocks.Height()
	candidates := []int64{height}
	if height == 0 {
		candidates = []int64{top, top - 1}
	}
	for _, h := range candidates {
		if h < 1 || h < base || h > top {
			continue
		}
		if answer := s.cache.get(h); answer != nil {
			return answer, nil
		}
		validators, err := s.validators(ctx, states, h)
		if err != nil {
			s.logger.Debug("no validators to serve", "height", h, "err", err)
			continue
		}
		answer, err := s.makeLightBlock(blocks, h, h == top, validators)
		if answer != nil || err != nil {
			return answer, err
		}
	}
	return nil, fmt.Errorf("light block %d: %w", height, transport.ErrGone)
}

// validators returns the set of a height. It takes no reader's slot, because it may have to wait.
func (s *Server) validators(ctx context.Context, states States, height int64) (*types.ValidatorSet, error) {
	all, is := states.(Stored)
	if !is {
		return states.LoadValidators(height)
	}
	stored, err := all.ValidatorsStoredAt(height)
	switch {
	case err != nil:
		return nil, err
	case stored == height:
		return states.LoadValidators(height)
	}
	return s.replays.validators(ctx, height, stored, func() (*types.ValidatorSet, error) { return states.LoadValidators(stored) })
}

// makeLightBlock reads the block of a height, and encodes it with its validators. It returns nil if
// the block is not there. The canonical commit of a block is in the next block. For the top block
// there is only the commit that this node has seen, which proves as much.
func (s *Server) makeLightBlock(blocks Blocks, h int64, top bool, validators *types.ValidatorSet) ([]byte, error) {
	release, err := take(s.reads)
	if err != nil {
		return nil, err
	}
	defer release()
	meta := blocks.LoadBlockMeta(h)
	commit := blocks.LoadBlockCommit(h)
	seen := commit == nil && top
	if seen {
		commit = blocks.LoadSeenCommit(h)
	}
	if meta == nil || commit == nil {
		return nil, nil // being written, or just pruned
	}
	lb := &types.LightBlock{SignedHeader: &types.SignedHeader{Header: &meta.Header, Commit: commit}, ValidatorSet: validators}
	if err := lightclient.CheckBasic(lb, s.chainID, h); err != nil {
		// with a damaged store, this node must not look Byzantine
		return nil, fmt.Errorf("own light block %d: %w", h, err)
	}
	if seen {
		// After block sync, the seen commit is one that a peer sent, and not every version of
		// CometBFT checks all of its signatures.
		if err := lightclient.CheckCommit(lb); err != nil {
			s.logger.Info("the commit of the newest block is not served: it holds a wrong signature", "height", h, "err", err)
			return nil, nil
		}
	}
	answer, err := encodeLightBlock(lb)
	if err != nil {
		return nil, fmt.Errorf("encode light block %d: %w", h, err)
	}
	s.cache.put(h, answer)
	return answer, nil
}

// noEvidence is the EvidenceHash of a block without evidence.
var noEvidence = types.EvidenceList(nil).Hash()

// serveHeaders responds with headers, canonical commits and evidence of a height and the heights
// below it: as many as were requested, are available and fit in a response.
func (s *Server) serveHeaders(ctx context.Context, r transport.Request) ([]byte, error) {
	from, count, err := decodeRange(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	var answer []byte
	err = s.reading(func(blocks Blocks, _ States) error {
		for h := from; h > from-int64(count) && h >= max(blocks.Base(), 1); h-- {
			meta, commit := blocks.LoadBlockMeta(h), blocks.LoadBlockCommit(h)
			if meta == nil || commit == nil || ctx.Err() != nil {
				break
			}
			a := Ancestor{SignedHeader: &types.SignedHeader{Header: &meta.Header, Commit: commit}}
			if !bytes.Equal(meta.Header.EvidenceHash, noEvidence) {
				block := blocks.LoadBlock(h)
				if block == nil {
					break
				}
				a.Evidence = block.Evidence.Evidence
			}
			if err := a.SignedHeader.ValidateBasic(s.chainID); err != nil {
				// with a damaged store, this node must not look Byzantine
				return fmt.Errorf("own header %d: %w", h, err)
			}
			longer, err := appendHeader(answer, a)
			if err != nil {
				return fmt.Errorf("encode header %d: %w", h, err)
			}
			if len(longer) > headersBytes && answer != nil {
				break
			}
			answer = longer
		}
		if answer == nil {
			return fmt.Errorf("headers from %d downwards: %w", from, transport.ErrGone)
		}
		return nil
	})
	return answer, err
}

func (s *Server) serveParams(_ context.Context, r transport.Request) ([]byte, error) {
	height, err := decodeHeight(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	var answer []byte
	err = s.reading(func(blocks Blocks, states States) error {
		// CometBFT ends the process if it cannot find the parameters of a height, so only existing
		// heights are looked up.
		if height < 1 || height > blocks.Height()+1 {
			return fmt.Errorf("consensus parameters of height %d: %w", height, transport.ErrGone)
		}
		params, err := states.LoadConsensusParams(height)
		if err != nil {
			return fmt.Errorf("%w: %w", transport.ErrGone, err)
		}
		answer, err = encodeParams(params)
		return err
	})
	return answer, err
}

func (s *Server) serveEvidence(_ context.Context, r transport.Request) ([]byte, error) {
	release, err := take(s.reports) // before decoding, which takes many times the body's length
	if err != nil {
		return nil, err
	}
	defer release()
	began := time.Now()
	if err = s.report(r); err != nil {
		// Not until ctx ends: a peer that cancels could report again at once. The worker of this
		// method waits, and peers take turns at it.
		<-time.After(min(refusedRest*time.Since(began), longestRest))
	}
	return nil, err
}

// report passes evidence to the pool.
func (s *Server) report(r transport.Request) error {
	ev, err := decodeEvidence(r.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", transport.ErrRefused, err)
	}
	return s.using(func(Blocks, States) error {
		pool := s.stores.evidence // using holds the read lock
		if pool == nil {
			return fmt.Errorf("no evidence pool: %w", transport.ErrRefused)
		}
		if err := pool(ev); err != nil {
			return fmt.Errorf("%w: %w", transport.ErrRefused, err)
		}
		s.logger.Info("a peer reported evidence of misbehaviour", "peer", r.Peer, "evidence", ev)
		return nil
	})
}

// answers caches light blocks that were served recently, since all joining nodes ask for the same
// few heights. A light block stays valid, even that of the top height. The oldest entries are
// dropped first.
type answers struct {
	mu struct {
		sync.Mutex
		byHeight map[int64][]byte
		order    []int64
		bytes    int
	}
}

func (a *answers) get(height int64) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.byHeight[height]
}

func (a *answers) put(height int64, answer []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, has := a.mu.byHeight[height]; has {
		return
	}
	a.mu.byHeight[height] = answer
	a.mu.order = append(a.mu.order, height)
	a.mu.bytes += len(answer)
	for a.mu.bytes > cachedBytes {
		oldest := a.mu.order[0]
		a.mu.order = a.mu.order[1:]
		a.mu.bytes -= len(a.mu.byHeight[oldest])
		delete(a.mu.byHeight, oldest)
	}
}

func (a *answers) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.byHeight, a.mu.order, a.mu.bytes = map[int64][]byte{}, nil, 0
}
