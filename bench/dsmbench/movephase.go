package dsmbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	e2e "github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

const (
	moveValidators = 4
	moveNodes      = 4 // storage nodes, in two ranges
	// movedPrefix and restPrefix begin the keys of the range that moves, and of the other range.
	movedPrefix = "a"
	restPrefix  = "m"
	moveValue   = 1000 // bytes
	moveBatch   = 100  // keys in a transaction of the load
	moveLoaders = 16   // transactions of the load at the same time
	moveWriters = 4    // clients that put while the range moves, each every moveEvery
	moveEvery   = 400 * time.Millisecond
	movePause   = 200 * time.Millisecond // between a block and the next height of consensus
	// calmWindow is the duration of each measurement without a move.
	calmWindow = 15 * time.Second
	moveLimit  = 10 * time.Minute
)

// Moves has the figures of moves of one replica while a sharded network makes blocks. Times are in
// seconds, intervals between blocks in milliseconds.
type Moves struct {
	Seconds      float64          `json:"seconds"` // of the command that moves, the median
	Interval     harness.Interval `json:"interval"`
	FetchSeconds float64          `json:"fetch_s"` // until the node has the range, the median
	CopySeconds  float64          `json:"copy_s"`  // of a copy of as many bytes, the median
	Bytes        int64            `json:"bytes"`   // of keys and values in the range

	MovingP99    float64 `json:"moving_p99_ms"`
	CalmP99      float64 `json:"calm_p99_ms"`
	MovingHalt   float64 `json:"moving_halt_s"` // longest time without a block
	CalmHalt     float64 `json:"calm_halt_s"`
	MovingBlocks int     `json:"moving_blocks"`
	CalmBlocks   int     `json:"calm_blocks"`

	Puts   int     `json:"puts"`
	Failed int     `json:"failed"` // of Puts
	Load   float64 `json:"load"`
}

// mover is the network of the phase, and what was measured.
type mover struct {
	net  *network.Network
	keys int
	mu   sync.Mutex // guards out.Puts and out.Failed
	out  Moves

	moves, fetches, copies []float64
	moving, calm           []float64 // intervals between blocks
}

// runMoves measures moves of a replica, there and back, with calm times in between.
func (r *runner) runMoves(ctx context.Context, dir string) (err error) {
	program, err := network.Starlingd(ctx, r.o.Starlingd, r.progress)
	if err != nil {
		return err
	}
	r.progress.Begin("start", "networks", 1)
	r.progress.Working("a sharded network")
	key := ed25519.GenPrivKeyFromSecret([]byte("move"))
	m := &mover{keys: r.o.MoveMB * 1_000_000 / moveValue}
	m.net, err = network.Start(ctx, network.Options{
		Program: program, Dir: dir, Validators: moveValidators,
		AppState: map[string]any{
			"snapshot_interval": 100, "open": false, "admins": []string{},
			"grants": []map[string]any{{"grantee": fmt.Sprintf("%x", key.PubKey().Bytes()), "prefix": ""}},
		},
		Edit: func(c *cfg.Config) {
			c.Consensus.TimeoutCommit = movePause
			c.LogLevel = "*:error"
		},
		Env:     []string{fmt.Sprintf("STARLINGD_STATE_RETAIN_DEPTH=%d", r.o.Retain)},
		Sharded: network.Sharded{Nodes: moveNodes, Ranges: 2, First: func(int) string { return restPrefix }, Signed: true},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.net.Stop()) }()
	ctx, cancel := context.WithCancel(m.net.Context())
	defer cancel()
	c, err := client.Dial(ctx, m.net.RPCs(), client.WithKey(key), client.WithChainID(network.ChainID))
	if err != nil {
		return err
	}
	if err := m.load(ctx, c, r.progress); err != nil {
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	for i := range moveWriters {
		random := rand.New(rand.NewPCG(r.o.Seed, uint64(i))) //nolint:gosec // reproducible by its seed
		background.Go(func() { network.Write(ctx, c, moveEvery, random, m.anyKey, make([]byte, moveValue), m.put) })
	}
	r.progress.Begin("move", "moves", 2*r.o.MoveTurns)
	r.progress.Working("a replica")
	for turn := range 2 * r.o.MoveTurns {
		// The nodes have the ranges in turn: nodes 0 and 2 the first one.
		from, to := m.net.Storage[2], m.net.Storage[1]
		if turn%2 == 1 {
			from, to = to, from
		}
		// Otherwise the node would still have the range.
		if err := gone(ctx, to); err != nil {
			return err
		}
		if err := m.rest(ctx, r.o.Quick); err != nil {
			return err
		}
		if err := m.copy(ctx, dir); err != nil {
			return err
		}
		address, err := to.Transport()
		if err != nil {
			return err
		}
		if err := m.move(ctx, from.ID(), address); err != nil {
			return err
		}
		r.progress.Add(1)
	}
	r.result.Moves = m.result()
	return nil
}

// gone waits until a storage node has deleted the first range, half a minute after it moved away.
func gone(ctx context.Context, h *e2e.Home) error {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	var failed error
	err := e2e.Poll(ctx, "the end of the range at "+h.Name, func() bool {
		var entries []os.DirEntry
		entries, failed = os.ReadDir(filepath.Join(h.Dir, "data", "ranges"))
		// Folders are named by the range's first key, which is empty here.
		return failed != nil || !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			return e.Name() == "from-" || strings.HasPrefix(e.Name(), "from--")
		})
	})
	return cmp.Or(failed, err)
}

func (m *mover) anyKey(random *rand.Rand) []byte {
	prefix := movedPrefix
	if random.IntN(2) == 0 {
		prefix = restPrefix
	}
	return m.key(prefix, random.IntN(m.keys))
}

func (m *mover) key(prefix string, i int) []byte { return fmt.Appendf(nil, "%s%08d", prefix, i) }

func (m *mover) put(_ time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out.Puts++
	if err != nil {
		m.out.Failed++
	}
}

// load writes all keys of the range that moves.
func (m *mover) load(ctx context.Context, c *client.Client, progress *harness.Progress) error {
	progress.Begin("load", "keys", m.keys)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	value := make([]byte, moveValue)
	var all sync.WaitGroup
	for loader := range moveLoaders {
		all.Go(func() {
			for from := loader * moveBatch; from < m.keys; from += moveLoaders * moveBatch {
				var puts []tx.Operation
				for i := from; i < min(from+moveBatch, m.keys); i++ {
					puts = append(puts, tx.NewPut(m.key(movedPrefix, i), value))
				}
				if _, err := c.Submit(ctx, puts...); err != nil {
					cancel(err)
					return
				}
				progress.Add(len(puts))
			}
		})
	}
	all.Wait()
	m.out.Bytes = int64(m.keys) * int64(moveValue+len(m.key(movedPrefix, 0)))
	return context.Cause(ctx)
}

// rest measures the time between blocks without a move.
func (m *mover) rest(ctx context.Context, quick bool) error {
	window := calmWindow
	if quick {
		window = 2 * time.Second
	}
	began := time.Now()
	if err := sleep.For(ctx, window); err != nil {
		return err
	}
	return m.blocks(ctx, began, &m.calm, &m.out.CalmHalt)
}

// move moves the range from one node to another.
func (m *mover) move(ctx context.Context, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	began := time.Now()
	fetching := &lastLine{of: "which is fetching it"}
	if err := m.net.ChangeRanges(ctx, fetching, "move", "", "--from", from, "--to", to); err != nil {
		return err
	}
	ended := time.Now()
	m.moves = append(m.moves, ended.Sub(began).Seconds())
	switch {
	case !fetching.seen: // the node had the range before the first poll
		m.fetches = append(m.fetches, 0)
	case fetching.after.IsZero():
		m.fetches = append(m.fetches, ended.Sub(began).Seconds())
	default:
		m.fetches = append(m.fetches, fetching.after.Sub(began).Seconds())
	}
	return m.blocks(ctx, began, &m.moving, &m.out.MovingHalt)
}

// blocks adds the intervals between the blocks since a time.
func (m *mover) blocks(ctx context.Context, began time.Time, intervals *[]float64, halt *float64) error {
	ended := time.Now()
	times, err := network.BlockTimes(ctx, m.net.Validators[0], began)
	if err != nil {
		return err
	}
	millis, longest := network.Intervals(times, began, ended)
	*intervals, *halt = append(*intervals, millis...), max(*halt, longest)
	return nil
}

// lastLine notes when the first line without a text came after lines that have it.
type lastLine struct {
	of    string
	seen  bool
	after time.Time
}

// Write implements io.Writer; each call brings whole lines.
func (l *lastLine) Write(lines []byte) (int, error) {
	switch has := strings.Contains(string(lines), l.of); {
	case has:
		l.seen, l.after = true, time.Time{}
	case l.seen && l.after.IsZero():
		l.after = time.Now()
	}
	return len(lines), nil
}

// copy measures a plain copy of as many bytes as the range has: over loopback, into a file, which
// is synced.
func (m *mover) copy(ctx context.Context, dir string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	began := time.Now()
	sender, err := new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	defer sender.Close()
	receiver, err := listener.Accept() // the dial has succeeded
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(sender, rand.NewChaCha8([32]byte{}), m.out.Bytes)
		sent <- errors.Join(err, sender.Close())
	}()
	path := filepath.Join(dir, "copy")
	err = receive(path, receiver)
	err = errors.Join(err, receiver.Close()) // so that the sender ends, also after an error
	if err = errors.Join(err, <-sent); err != nil {
		return err
	}
	m.copies = append(m.copies, time.Since(began).Seconds())
	return os.Remove(path)
}

// receive writes all that comes to a file, and syncs it.
func receive(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Sync(), f.Close())
}

func (m *mover) result() *Moves {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.out
	out.Seconds, out.Interval = harness.Median(m.moves), harness.MedianInterval(m.moves)
	out.FetchSeconds, out.CopySeconds = harness.Median(m.fetches), harness.Median(m.copies)
	out.MovingP99, out.CalmP99 = harness.Percentile(m.moving, 99), harness.Percentile(m.calm, 99)
	out.MovingBlocks, out.CalmBlocks, out.Load = len(m.moving), len(m.calm), harness.LoadAverage()
	return &out
}
