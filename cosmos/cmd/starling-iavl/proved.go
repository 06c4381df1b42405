package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"
	dbm "github.com/cosmos/cosmos-db"

	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/transport"
)

// Time limit for fetching headers after the application's database is complete, and the pause
// between two attempts to fetch headers or to connect.
const (
	stateTimeout = 2 * time.Minute
	statePause   = time.Second
)

// stateHeaders accepts a state only if the headers of CometBFT's state after it are also available,
// so that a join downloads nothing that it cannot complete.
type stateHeaders struct{ *lightblocks.Verifier }

var errNoState = errors.New("a header of CometBFT's state is missing")

// AppHash implements join.Headers.
func (h stateHeaders) AppHash(ctx context.Context, height int64) ([]byte, error) {
	hash, err := h.Verifier.AppHash(ctx, height)
	if err != nil {
		return nil, err // the header of height+1, which has the app hash, is always needed
	}
	for _, at := range []int64{height, height + 2} {
		if _, err := h.LightBlock(ctx, at); err != nil {
			return nil, missingHeader(err)
		}
	}
	return hash, nil
}

// missingHeader wraps an error in errNoState if the header is missing, as opposed to invalid or
// expired.
func missingHeader(err error) error {
	for _, other := range []error{lightblocks.ErrConflict, lightblocks.ErrTrustExpired, lightblocks.ErrFuture, lightblocks.ErrTrustMismatch} {
		if errors.Is(err, other) {
			return err
		}
	}
	if errors.Is(err, lightblocks.ErrUnavailable) {
		return fmt.Errorf("%w: %w", errNoState, err)
	}
	return err
}

// headers are peers that only provide headers.
type headers struct {
	chainID   string
	verifier  *lightblocks.Verifier
	dialer    transport.Dialer
	addresses []transport.Address
}

// connect stays connected to all peers until the returned function is called.
func (h *headers) connect(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, a := range h.addresses {
		wg.Go(func() {
			for pause := time.NewTimer(0); ; pause.Reset(statePause) {
				select {
				case <-ctx.Done():
					return
				case <-pause.C:
				}
				dial, done := context.WithTimeout(ctx, rpcTimeout)
				conn, err := h.dialer.Dial(dial, a)
				done()
				if err != nil {
					continue
				}
				h.verifier.Add(lightblocks.NewProvider(h.chainID, conn))
				select {
				case <-ctx.Done():
				case <-conn.Done():
				}
				h.verifier.Remove(conn.Remote().ID)
				_ = conn.Close() // the connection is no longer needed
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// state returns CometBFT's verified state after a height, and the commit of the height.
func (h *headers) state(ctx context.Context, height int64, genesis *cmttypes.GenesisDoc) (state sm.State, commit *cmttypes.Commit, err error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	defer h.connect(ctx)()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for last := lightblocks.ErrNoPeers; ; pause.Reset(statePause) {
		select {
		case <-ctx.Done():
			return state, nil, errors.Join(last, ctx.Err())
		case <-pause.C:
		}
		if state, err = h.verifier.State(ctx, height, genesis); err == nil {
			commit, err = h.verifier.Commit(ctx, height)
		}
		if conflict := h.verifier.Conflict(); conflict != nil {
			return state, nil, conflict
		}
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			last = err
		}
	}
	// If the parameters of the document do not have the header's hash, a Verifier takes the block
	// limits from peers. Then other parameters may also have changed.
	if state.ConsensusParams.Block != genesis.ConsensusParams.Block {
		return state, nil, fmt.Errorf("%w: the header has different block limits", errParams)
	}
	return state, commit, nil
}

var errParams = errors.New("the chain's consensus parameters are unknown: they are neither those of the genesis file nor in a store of x/consensus")

// complete writes CometBFT's state for a complete application database at a height, unless it
// exists already.
func (c *comet) complete(ctx context.Context, h *headers, height int64, stderr io.Writer) error {
	if err := room(c.home, openBytes); err != nil {
		return err
	}
	there, err := c.empty(height)
	if there || err != nil {
		return err
	}
	return c.build(ctx, h, joiningDB, height, nil, stderr)
}

// build writes CometBFT's state for a complete application database, replacing databases without
// blocks. Unless appHash is nil, the chain's header must have this app hash.
func (c *comet) build(ctx context.Context, h *headers, name string, height int64, appHash []byte, stderr io.Writer) error {
	if err := room(c.home, cometBytes); err != nil {
		return err
	}
	backend, err := backendOf(dbDir(c.home, name))
	if err != nil {
		return err
	}
	app, err := dbm.NewDB(name, backend, dataDir(c.home))
	if err != nil {
		return err
	}
	genesis, err := c.document(app)
	if err = errors.Join(err, app.Close()); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "getting the headers for CometBFT's state")
	state, commit, err := h.state(ctx, height, genesis)
	switch {
	case errors.Is(err, errParams):
		return fmt.Errorf("%w\nJoin with --%s, and then run the node's own command \"comet bootstrap-state\"", err, databaseOnly)
	case err != nil:
		return fmt.Errorf("%w\nCometBFT's state needs the headers of heights %d to %d: name running nodes with --rpc. "+
			"The same command resumes. With --%s it leaves CometBFT's state to the node's own command \"comet bootstrap-state\"",
			err, height, height+2, databaseOnly)
	case appHash != nil && !bytes.Equal(state.AppHash, appHash):
		return fmt.Errorf("%s has app hash %x at height %d, but the chain has %x\nThis is not a state of the chain: join in a new home",
			dbDir(c.home, name), appHash, height, state.AppHash)
	}
	if err := c.write(state, commit); err != nil {
		return explainFullComet(err, c.home)
	}
	fmt.Fprintln(stderr, "CometBFT's state is complete")
	return nil
}
