package fastsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/transport"
)

const (
	// hedgeAfter is how long one peer is waited for before the next is asked the same as well.
	hedgeAfter = 300 * time.Millisecond
	// manifestTimeout is for a manifest, which has megabytes where the state has terabytes.
	manifestTimeout = 2 * time.Minute
	headersTimeout  = 10 * time.Second
	chooseEvery     = 100 * time.Millisecond
	sayEvery        = 5 * time.Second
)

// Headers are what is trusted: the chain's headers, proved by somebody else (package lightblocks). Where there is a method Conflict() error,
// its error ends the join before the state is committed.
type Headers interface {
	// Newest is the height of the newest header that was proved.
	Newest(ctx context.Context) (int64, error)
	// AppHash returns the app hash of the state after block height, which stands in the header after it.
	AppHash(ctx context.Context, height int64) ([]byte, error)
}

// choice is a snapshot that is worth fetching: its manifest is proved, and somebody says that he has it.
type choice struct {
	height   int64
	manifest *avlstar.Manifest
}

// choose waits until there is a snapshot to fetch. The higher avoid of a height, the later it is considered; nil: all are as good.
func (j *joiner) choose(ctx context.Context, avoid func(height int64) int) (*choice, error) {
	said := time.Now()
	heard := make(chan struct{}, 1) // of a peer: no need to wait for the next look
	stop := j.o.Peers.Watch(Watcher{
		Up: func(transport.Conn) {}, Down: func(transport.ID) {},
		Status: func(transport.ID, Status) {
			select {
			case heard <- struct{}{}:
			default:
			}
		},
	})
	defer stop()
	for {
		c, why := j.tryChoose(ctx, avoid)
		if c != nil {
			return c, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%w (%w)", err, why)
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			connected, _ := j.o.Peers.Count()
			j.log.Info("Joining: looking for a snapshot", "peers", connected, "waiting_for", why)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), why)
		case <-heard:
		case <-time.After(chooseEvery):
		}
	}
}

var (
	errNoPeers     = errors.New("no peer of the transport can be reached")
	errNoSnapshots = errors.New("no peer offers a snapshot that can be used yet")
)

// tryChoose returns a choice, or why there is none yet.
func (j *joiner) tryChoose(ctx context.Context, avoid func(int64) int) (*choice, error) {
	peers := j.o.Peers.conns()
	if len(peers) == 0 {
		return nil, errNoPeers
	}
	offers := map[int64][]transport.Conn{}
	for _, p := range peers {
		for _, h := range p.status.Snapshots {
			offers[h] = append(offers[h], p.Conn)
		}
	}
	if len(offers) == 0 {
		return nil, errNoSnapshots
	}
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	newest, err := j.o.Headers.Newest(timed)
	if err != nil {
		return nil, err
	}
	why := errNoSnapshots
	for _, h := range j.ranked(offers, newest, avoid) {
		m, err := j.provedManifest(ctx, h, offers[h])
		if err == nil {
			return &choice{h, m}, nil
		}
		why = err
	}
	return nil, why
}

// ranked orders the heights that can be used: the one that a restore is under way of already, then the newest first, then those to avoid.
// A node starts at H with the headers up to H+2.
func (j *joiner) ranked(offers map[int64][]transport.Conn, newest int64, avoid func(int64) int) []int64 {
	var heights []int64
	for h := range offers {
		if h <= newest-2 && h > j.o.LocalHeight && (j.o.Interval <= 0 || h%j.o.Interval == 0) {
			heights = append(heights, h)
		}
	}
	rank := func(h int64) int {
		switch {
		case avoid != nil:
			return avoid(h)
		case j.unfinished != nil && h == j.unfinished.height:
			return -1
		}
		return 0
	}
	slices.SortFunc(heights, func(a, b int64) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return int(min(max(b-a, -1), 1))
	})
	return heights
}

// provedManifest returns the manifest of the snapshot at height, proved against the header.
func (j *joiner) provedManifest(ctx context.Context, height int64, conns []transport.Conn) (*avlstar.Manifest, error) {
	timed, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	raw, err := j.o.Headers.AppHash(timed, height)
	if err != nil {
		return nil, err
	}
	var appHash avlstar.Hash
	if len(raw) != len(appHash) {
		return nil, fmt.Errorf("the app hash after block %d has %d bytes: this is no chain of Starling", height, len(raw))
	}
	copy(appHash[:], raw)
	if u := j.unfinished; u != nil && u.height == height {
		if c, err := u.manifest.Commitment(); err == nil && c.AppHash() == appHash {
			return u.manifest, nil
		}
	}
	return j.fetchManifest(ctx, height, appHash, conns)
}

// fetchManifest asks one peer after another, the next when one takes long.
func (j *joiner) fetchManifest(ctx context.Context, height int64, appHash avlstar.Hash, conns []transport.Conn) (*avlstar.Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestTimeout)
	defer cancel()
	type answer struct {
		m   *avlstar.Manifest
		err error
	}
	answers, asked, failed := make(chan answer, len(conns)), 0, 0
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-next.C:
			if asked < len(conns) {
				conn := conns[asked]
				asked++
				next.Reset(hedgeAfter)
				j.wg.Go(func() {
					m, err := j.manifestFrom(ctx, height, appHash, conn)
					answers <- answer{m, err}
				})
			}
		case a := <-answers:
			if a.err == nil {
				return a.m, nil
			}
			last = a.err
			if failed++; failed == len(conns) {
				return nil, fmt.Errorf("the manifest of the snapshot at height %d: %w", height, last)
			}
			next.Reset(0)
		}
	}
}

// manifestFrom asks one peer. What does not lead to the app hash is a proof that it lied.
func (j *joiner) manifestFrom(ctx context.Context, height int64, appHash avlstar.Hash, conn transport.Conn) (*avlstar.Manifest, error) {
	lied := func(err error) error {
		j.o.Peers.Ban(conn.Remote().ID, err.Error())
		return err
	}
	b, err := call(ctx, conn, transport.Call{Method: transport.MethodCommitment, Body: heightBody(height), Max: commitmentBytes})
	if err != nil {
		if isLie(err) {
			return nil, lied(err)
		}
		return nil, err
	}
	c, err := avlstar.DecodeCommitment(b)
	if err != nil || c.AppHash() != appHash {
		return nil, lied(fmt.Errorf("what the app hash after block %d commits to is not what it says", height))
	}
	limit := max(entryBytes*int(c.Chunks), 16)
	b, err = conn.Call(ctx, transport.Call{Method: transport.MethodManifest, Body: heightBody(height), Max: limit})
	if err != nil {
		if isLie(err) {
			return nil, lied(err)
		}
		return nil, err
	}
	m, err := avlstar.VerifyManifest(b, appHash)
	if err != nil {
		return nil, lied(err)
	}
	if !bytes.Equal(m.Encode(), b) {
		return nil, lied(avlstar.ErrInvalidManifest)
	}
	return m, nil
}

// isLie says whether an error of a call proves that the peer is not honest.
func isLie(err error) bool {
	return errors.Is(err, transport.ErrTooLong) || errors.Is(err, transport.ErrProtocol)
}
