package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/statesync/lightclient"
)

// DefaultTrustPeriod is the maximum age of a header whose validators vouch for newer ones.
const DefaultTrustPeriod = lightclient.DefaultTrustPeriod

const (
	// headerPatience limits the wait for the block after the one that was read.
	headerPatience = 30 * time.Second
	// headerPoll is the longest pause between two requests for a block that does not exist yet.
	headerPoll = 4 * firstPoll
	// witnessPatience limits the wait for witnesses that lag or hang while no witness has
	// confirmed.
	witnessPatience = 10 * time.Second
	// witnessGrace limits the wait for the other witnesses once one has confirmed: see graceOf.
	// Their later responses still count for all later reads.
	witnessGrace = 500 * time.Millisecond
	// maxBackwards limits the headers that are fetched one by one to reach one below all trusted
	// ones.
	maxBackwards = 1000
)

// Trust is where the chain of trust starts: a block header from a source you trust, by height and
// hash, or a genesis document, whose validators vouch for the first block. If both are given, the
// header counts, and the genesis document only names the chain.
type Trust struct {
	Height int64
	Hash   []byte

	Genesis *types.GenesisDoc

	// Period is the maximum age of a header that vouches for newer ones (0: DefaultTrustPeriod).
	// The validators of an older header, or genesis, could have sold their keys since: take a
	// recent header (a few days old at most) from a source you trust, such as a block explorer or
	// another node.
	Period time.Duration
}

// verifier is a light client. The package comment lists what it trusts.
//
//	trusted:  ──■────────■───■──────────────────■──► height        ■ signed header with its validators
//	                          └─ lightclient.Climb, by halves if the validators changed too much
//	          ◄─ lightclient.Below, header by header
type verifier struct {
	trust   Trust
	rules   lightclient.Rules
	chainID string
	pool    *pool
	now     func() time.Time

	mu struct {
		sync.Mutex
		trusted  *lightclient.Blocks // the root of trust is the lowest
		flights  map[int64]*flight   // headers that are being fetched, by height
		conflict error               // what a witness proved after its read had returned
	}
}

func newVerifier(trust Trust) (*verifier, error) {
	rules, err := lightclient.Rules{TrustPeriod: trust.Period}.WithDefaults()
	switch {
	case err != nil:
		return nil, fmt.Errorf("client: %w", err)
	case trust.Height > 0 && len(trust.Hash) != 32:
		return nil, fmt.Errorf("client: the trusted header's hash has %d bytes, want 32", len(trust.Hash))
	case trust.Height < 0, trust.Height == 0 && len(trust.Hash) > 0:
		return nil, errors.New("client: a trusted header needs its height")
	case trust.Height == 0 && trust.Genesis == nil:
		return nil, errors.New("client: verification needs a trusted header or a genesis document")
	case trust.Height == 0 && len(trust.Genesis.Validators) == 0:
		return nil, errors.New("client: the trusted genesis document names no validators: give a trusted header")
	}
	v := &verifier{trust: trust, rules: rules, now: time.Now}
	v.mu.trusted = lightclient.NewBlocks(maxTrusted)
	v.mu.flights = make(map[int64]*flight)
	return v, nil
}

// flight is the search for a header. Others that need the same one wait for it.
type flight struct {
	done   chan struct{} // closed once header and err are set
	late   chan struct{} // closed once a node has said that it does not have the block yet
	header *types.Header
	err    error
	gaveUp bool // because the context of the caller that searched has ended
}

// await waits until the chain reaches a height, and returns its verified header. It asks first
// before the others. It calls late, which may be nil, if a node does not have the block yet.
func (v *verifier) await(ctx context.Context, height int64, first *endpoint, late func()) (*types.Header, error) {
	if late == nil {
		late = func() {}
	}
	for {
		v.mu.Lock()
		f, joined := v.mu.flights[height]
		if !joined {
			f = &flight{done: make(chan struct{}), late: make(chan struct{})}
			v.mu.flights[height] = f
		}
		v.mu.Unlock()
		if !joined {
			f.header, f.err = v.awaitAlone(ctx, height, first, sync.OnceFunc(func() {
				close(f.late)
				late()
			}))
			f.gaveUp = ctx.Err() != nil
			v.mu.Lock()
			delete(v.mu.flights, height)
			v.mu.Unlock()
			close(f.done)
			return f.header, f.err
		}
		select {
		case <-f.done:
		case <-f.late:
			late()
		case <-ctx.Done():
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("header %d: %w", height, ctx.Err())
		}
		if f.err == nil || !f.gaveUp {
			return f.header, f.err
		}
	}
}

func (v *verifier) awaitAlone(ctx context.Context, height int64, first *endpoint, late func()) (*types.Header, error) {
	limited, cancel := context.WithTimeout(ctx, headerPatience)
	defer cancel()
	if err := v.start(limited); err != nil {
		if errors.Is(err, errNotYet) || limited.Err() != nil {
			return nil, fmt.Errorf("%w: trusted header %d was not available in time: is the height right, and has the chain reached it? (%w)", ErrUntrusted, v.trust.Height, err)
		}
		return nil, err
	}
	header, err := v.header(limited, height, first, late)
	if errors.Is(err, errNotYet) || err != nil && limited.Err() != nil {
		return nil, fmt.Errorf("%w: block %d, whose header proves the state after block %d, was not made in time: has the chain halted? An older height can be read at once (%w)",
			ErrUntrusted, height, height-1, err)
	}
	return header, err
}

// header returns the verified header of a height. While no node has it, it calls late, and asks
// again until ctx ends.
func (v *verifier) header(ctx context.Context, height int64, first *endpoint, late func()) (*types.Header, error) {
	if err := v.start(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	conflict := v.mu.conflict
	v.mu.Unlock()
	if conflict != nil {
		return nil, conflict
	}
	below, above := v.around(height)
	if below != nil && below.Height == height && below.Commit != nil {
		return below.Header, nil
	}
	if below == nil {
		return v.backwards(ctx, above, height)
	}
	path, from, err := ask(ctx, v.pool, question[[]*types.LightBlock]{
		what:  fmt.Sprintf("header %d", height),
		first: first,
		call: func(ctx context.Context, e *endpoint) ([]*types.LightBlock, error) {
			target, err := v.fetch(ctx, e, height, late)
			if err != nil {
				return nil, err
			}
			path, err := v.forward(ctx, e, below.LightBlock, target)
			if err != nil {
				return nil, fmt.Errorf("%w: header %d of %s: %w", ErrUntrusted, height, e.Remote(), err)
			}
			return path, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	target := path[len(path)-1]
	if err := v.confirm(ctx, from, below.LightBlock, target); err != nil {
		return nil, err
	}
	v.add(path)
	return target.Header, nil
}

// fetch fetches a block from a node. If the node does not have it yet, fetch calls late, and asks
// again until ctx ends. late may be nil, as for header.
func (v *verifier) fetch(ctx context.Context, from *endpoint, height int64, late func()) (*types.LightBlock, error) {
	for wait := firstPoll; ; wait = min(2*wait, headerPoll) {
		block, err := fetchLightBlock(ctx, from, v.chainID, height)
		if !errors.Is(err, errNotYet) {
			return block, err
		}
		from.isAlive()
		if late != nil {
			late()
		}
		if sleep.For(ctx, wait) != nil {
			return nil, err
		}
	}
}

// start sets the root of trust, unless it is set.
func (v *verifier) start(ctx context.Context) error {
	v.mu.Lock()
	started := v.mu.trusted.Root() != nil
	v.mu.Unlock()
	if started {
		return nil
	}
	if v.trust.Height == 0 {
		root, err := lightclient.GenesisRoot(v.trust.Genesis)
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		v.root(root)
		return nil
	}
	// Any node will do, since the hash is known: some may have pruned the block, or have joined
	// after it.
	root, _, err := ask(ctx, v.pool, question[*types.LightBlock]{
		what: "the trusted header",
		also: v.pool.witnesses(),
		call: v.trustedHeader,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	v.root(root)
	v.pool.verified(root.Height - 1)
	return nil
}

// trustedHeader fetches the header that the user trusts. It waits for it, because the user may have
// read the newest header at one node and then ask another node that is a block behind.
func (v *verifier) trustedHeader(ctx context.Context, from *endpoint) (*types.LightBlock, error) {
	root, err := v.fetch(ctx, from, v.trust.Height, nil)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(root.Hash(), v.trust.Hash) {
		return nil, fmt.Errorf("%w: header %d has hash %X at %s, %X is the trusted one: a wrong hash, or a Byzantine node", ErrUntrusted, v.trust.Height, root.Hash(), from.Remote(), v.trust.Hash)
	}
	if err := v.rules.Root(root, v.trust.Hash); err != nil {
		return nil, fmt.Errorf("%w: the trusted header at %s: %w", ErrUntrusted, from.Remote(), err)
	}
	return root, nil
}

// maxTrusted limits the memory of a client that runs for long.
const maxTrusted = 256

// root sets the root of trust; the first one stays.
func (v *verifier) root(root *types.LightBlock) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.trusted.PutRoot(&lightclient.Proved{LightBlock: root, From: root.Height})
}

// around returns the highest trusted block at or below height, and the lowest above; nil where
// there is none.
func (v *verifier) around(height int64) (below, above *lightclient.Proved) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.trusted.Below(height), v.mu.trusted.Above(height)
}

// add keeps verified blocks.
func (v *verifier) add(blocks []*types.LightBlock) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, b := range blocks {
		v.mu.trusted.Put(&lightclient.Proved{LightBlock: b})
	}
}

// forward verifies target from trusted, and fetches blocks in between from source. It returns the
// blocks that are newly verified, target last.
func (v *verifier) forward(ctx context.Context, source RPC, trusted, target *types.LightBlock) ([]*types.LightBlock, error) {
	verified, from := []*types.LightBlock(nil), trusted.Height
	err := v.rules.Climb(trusted, target, v.now, func(height int64) (*types.LightBlock, bool, error) {
		pivot, err := fetchLightBlock(ctx, source, v.chainID, height)
		return pivot, false, err
	}, func(_ int64, proved *types.LightBlock) {
		verified, from = append(verified, proved), proved.Height
	})
	if errors.Is(err, lightclient.ErrExpired) {
		return nil, fmt.Errorf("what is trusted (height %d) is older than the trust period of %v: start from the height and hash of a recent header (a few days old at most) from a source you trust (%w)",
			from, v.rules.TrustPeriod, err)
	}
	return verified, err
}

// backwards follows the hashes from a trusted header down to a height.
func (v *verifier) backwards(ctx context.Context, from *lightclient.Proved, height int64) (*types.Header, error) {
	if height < 1 || height < from.Height-maxBackwards {
		return nil, fmt.Errorf("%w: height %d is too far below the lowest trusted header, %d: start from an older one", ErrUntrusted, height, from.Height)
	}
	trusted := from.Header
	for trusted.Height > height {
		if lightclient.IsFirst(trusted) {
			return nil, fmt.Errorf("%w: the chain starts at height %d, there is no header %d", ErrUntrusted, trusted.Height, height)
		}
		next := trusted
		header, _, err := ask(ctx, v.pool, question[*types.Header]{
			what: fmt.Sprintf("header %d", next.Height-1),
			call: func(ctx context.Context, e *endpoint) (*types.Header, error) { return headerBelow(ctx, e, next) },
		})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUntrusted, err)
		}
		trusted = header
	}
	return trusted, nil
}

// headerBelow fetches the header before a trusted one.
func headerBelow(ctx context.Context, from RPC, trusted *types.Header) (*types.Header, error) {
	h := trusted.Height - 1
	commit, err := from.Commit(ctx, &h)
	if err != nil {
		return nil, lightError(from, h, err)
	}
	if commit.Header == nil || commit.Header.Height != h {
		return nil, fmt.Errorf("%w: %s sent another header, or none", ErrUntrusted, from.Remote())
	}
	if err := lightclient.Below(commit.Header, trusted); err != nil {
		return nil, fmt.Errorf("%w: header %d of %s: %w", ErrUntrusted, h, from.Remote(), err)
	}
	return commit.Header, nil
}

// confirm asks every node except from, which sent target, for the same header. At least one must
// have it. A node with another header that verifies proves a fork. Once a witness has confirmed,
// confirm waits for the other witnesses for graceOf, and not at all for nodes that were silent
// before. Their later responses count for later reads.
func (v *verifier) confirm(ctx context.Context, from *endpoint, trusted, target *types.LightBlock) error {
	if len(v.pool.all) == 1 {
		return nil
	}
	type verdict struct {
		of  *endpoint
		err error
	}
	witnesses := v.pool.others(from)
	verdicts := make(chan verdict, len(witnesses))
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), witnessPatience)
	var running sync.WaitGroup
	for _, w := range witnesses {
		running.Go(func() { verdicts <- verdict{w, v.witness(asking, w, from, trusted, target)} })
	}
	go func() {
		running.Wait()
		cancel()
	}()
	awaited := slices.DeleteFunc(slices.Clone(witnesses), func(w *endpoint) bool { return !w.prompt() })
	began, grace := time.Now(), time.NewTimer(2*witnessPatience)
	defer grace.Stop()
	confirmed := false
	var failures []error
	for left := len(witnesses); left > 0 && !(confirmed && len(awaited) == 0); {
		select {
		case got := <-verdicts:
			left--
			awaited = slices.DeleteFunc(awaited, func(w *endpoint) bool { return w == got.of })
			switch {
			case errors.Is(got.err, ErrConflict):
				return got.err
			case got.err != nil:
				failures = append(failures, got.err)
			case !confirmed:
				confirmed = true
				grace.Reset(graceOf(awaited))
			}
		case <-grace.C:
			for _, w := range awaited {
				w.overtaken(time.Since(began))
				w.isBehind() // if not silent
			}
			awaited = nil
		case <-ctx.Done():
			return fmt.Errorf("%w: no witness has confirmed header %d of %s%s: %w", ErrUntrusted, target.Height, from.Remote(), moreWitnesses(len(witnesses)), errors.Join(append(failures, ctx.Err())...))
		}
	}
	if confirmed {
		return nil
	}
	return fmt.Errorf("%w: no witness confirms header %d of %s%s: %w", ErrUntrusted, target.Height, from.Remote(), moreWitnesses(len(witnesses)), errors.Join(failures...))
}

// moreWitnesses returns a hint for when only one other node could have confirmed a header.
func moreWitnesses(number int) string {
	if number > 1 {
		return ""
	}
	return " (only one other node is configured, and it must confirm the header: add a third address or a witness, or, if you trust this node, use its address alone)"
}

// graceOf returns how long to wait for witnesses once another has confirmed: hedgeAfter plus four
// times the latency of the slowest, but at most witnessGrace.
func graceOf(witnesses []*endpoint) time.Duration {
	farthest := time.Duration(0)
	for _, w := range witnesses {
		farthest = max(farthest, w.record().latency)
	}
	return min(hedgeAfter+4*farthest, witnessGrace)
}

// witness returns nil if a node has target, ErrConflict if it has another header that verifies, and
// otherwise the reason that it does not count as a confirmation. It keeps a conflict for later
// reads.
func (v *verifier) witness(ctx context.Context, witness, from *endpoint, trusted, target *types.LightBlock) error {
	_, err := call(ctx, v.pool, witness, false, func(ctx context.Context, e *endpoint) (struct{}, error) {
		return struct{}{}, v.compare(ctx, e, from, trusted, target)
	})
	switch {
	case errors.Is(err, ErrConflict):
		v.mu.Lock()
		defer v.mu.Unlock()
		v.mu.conflict = err
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", witness.Remote(), err)
	}
	return nil
}

func (v *verifier) compare(ctx context.Context, witness, from *endpoint, trusted, target *types.LightBlock) error {
	theirs, err := v.fetch(ctx, witness, target.Height, nil)
	if err != nil {
		return err
	}
	if bytes.Equal(theirs.Hash(), target.Hash()) {
		return nil
	}
	if _, err := v.forward(ctx, witness, trusted, theirs); err != nil {
		return fmt.Errorf("%w: %s has another header, which does not verify: %w", ErrUntrusted, witness.Remote(), err)
	}
	return fmt.Errorf("%w %d: %X at %s, %X at %s. More than a third of the validators signed both; do not rely on this chain until its operators have investigated",
		ErrConflict, target.Height, target.Hash(), from.Remote(), theirs.Hash(), witness.Remote())
}

var errNotYet = errors.New("the node does not have this block yet")

// fetchLightBlock fetches a header with its commit and validators from a node, and checks that they
// are consistent. It does not verify them.
func fetchLightBlock(ctx context.Context, from RPC, chainID string, height int64) (*types.LightBlock, error) {
	commit, err := from.Commit(ctx, &height)
	if err != nil {
		return nil, lightError(from, height, err)
	}
	validators, err := fetchValidators(ctx, from, height)
	if err != nil {
		return nil, lightError(from, height, err)
	}
	block, err := lightclient.NewBlock(&commit.SignedHeader, validators, chainID, height)
	if err != nil {
		return nil, fmt.Errorf("%w: block %d at %s: %w", ErrUntrusted, height, from.Remote(), err)
	}
	return block, nil
}

// fetchValidators reads the pages of a validator set. An honest node fills every page but the last,
// and CometBFT allows at most types.MaxVotesCount validators, so the number of pages is limited.
func fetchValidators(ctx context.Context, from RPC, height int64) ([]*types.Validator, error) {
	var all []*types.Validator
	perPage := 100
	for page := 1; ; page++ {
		result, err := from.Validators(ctx, &height, &page, &perPage)
		if err != nil {
			return nil, err
		}
		all = append(all, result.Validators...)
		if len(result.Validators) < perPage || len(all) >= result.Total {
			return all, nil
		}
		if len(all) > types.MaxVotesCount {
			return nil, fmt.Errorf("more than %d validators", types.MaxVotesCount)
		}
	}
}

// lightError recognizes answers of CometBFT by their text, since they have no code
// (rpc/core/env.go, getHeight).
func lightError(from RPC, height int64, err error) error {
	if answered(err) && strings.Contains(err.Error(), "must be less than or equal to") {
		return fmt.Errorf("block %d at %s: %w", height, from.Remote(), errNotYet)
	}
	return fmt.Errorf("block %d at %s: %w", height, from.Remote(), err)
}
