package papersbench

import (
	"context"
	"crypto/ed25519"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cometbft/cometbft/libs/log"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/statesync/restore"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/treestore"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// movingOptions configure joins while the chain moves.
type movingOptions struct {
	Keys   int
	Shares string // of the keys, in percent
	Seed   uint64
}

// Flags adds the options of join/moving.
func (o *movingOptions) Flags(f *harness.Flags) {
	f.Int(&o.Keys, "keys", 200_000, 1000, 100_000_000, "number of keys in the state")
	f.StringVar(&o.Shares, "shares", "0.01,0.1,1,10,100", "shares of the keys that change, in percent")
	f.Seed(&o.Seed)
	f.Also(func() error {
		_, err := o.shares()
		return err
	})
}

func (o *movingOptions) shares() (all []float64, err error) {
	for s := range strings.SplitSeq(o.Shares, ",") {
		share, err := strconv.ParseFloat(s, 64)
		if err != nil || !(share > 0 && share <= 100) {
			return nil, fmt.Errorf("--shares has %q, each must be above 0 and at most 100", s)
		}
		all = append(all, share)
	}
	return all, nil
}

// Heights of the two snapshots, and the interval between them.
const (
	oldHeight, newHeight = 1000, 2000
	movingInterval       = 1000
	movingChain          = "starling-bench"
	movingLimit          = 15 * time.Minute // of one join
)

// movingRow has the joins with one share of changed keys. A join ends when the state is durable.
type movingRow struct {
	Percent float64 `json:"percent"` // of the keys
	Changed int     `json:"changed"`
	Chunks  int     `json:"chunks"` // of the new state
	Delta   joined  `json:"delta"`  // of a node that has the old state
	Blocks  joined  `json:"blocks"` // of such a node, by the blocks between the states
	// Of a new node that had fetched half of the old state when its peer dropped it.
	Retarget joined `json:"retarget"`
	Whole    joined `json:"whole"` // of a new node, from the new state on
	// Half is the bytes that the retargeted join had received of the old state.
	Half int64 `json:"half_bytes"`
}

// joined has the bytes of all answers, and the seconds.
type joined struct {
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Retargets int     `json:"retargets"`
}

func runMoving(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	o, err := parse[movingOptions](commands[0])
	if err != nil {
		return nil, err
	}
	shares, err := o.shares()
	if err != nil {
		return nil, err
	}
	var rows []movingRow
	err = harness.InFolder(ctx, progress, func(dir string) error {
		rng := rand.New(rand.NewPCG(o.Seed, 0)) //nolint:gosec // reproducible by its seed
		keys := make([]string, o.Keys)
		for i := range keys {
			key := []byte(newKey(rng))
			key[0] |= 1 // 0x00 begins the application's own keys
			keys[i] = string(key)
		}
		empty, err := avlstar.Empty(avlstar.DefaultChunkBytes)
		if err != nil {
			return err
		}
		old, err := changed(rng, empty, keys)
		empty.Release()
		if err != nil {
			return err
		}
		defer old.Release()
		sets := make([][]string, len(shares)) // of changed keys
		progress.Begin("join", "joins", 4*len(shares))
		for i, share := range shares {
			rng.Shuffle(len(keys), func(a, b int) { keys[a], keys[b] = keys[b], keys[a] })
			n := max(1, int(share/100*float64(len(keys))))
			sets[i] = slices.Clone(keys[:n])
			m := &mover{dir: filepath.Join(dir, strconv.Itoa(i)), old: old, progress: progress}
			if m.next, err = changed(rng, old, keys[:n]); err != nil {
				return err
			}
			row, err := m.row(ctx)
			m.next.Release()
			if err != nil {
				return fmt.Errorf("%g %% changed: %w", share, err)
			}
			row.Percent, row.Changed = share, n
			rows = append(rows, *row)
		}
		// These come last, because an open application has work in the background.
		return joinByBlocks(ctx, dir, o.Seed, keys, sets, rows, progress)
	})
	if err != nil {
		return nil, err
	}
	out := movingOutcome(o.Keys, rows)
	return out, out.setRaw(rows)
}

// changed gives keys new values, in blocks.
func changed(rng *rand.Rand, v *avlstar.Version, keys []string) (*avlstar.Version, error) {
	v.Retain()
	for len(keys) > 0 {
		n := min(len(keys), 10_000)
		changes := make([]avlstar.Change, n)
		for i, key := range keys[:n] {
			changes[i] = avlstar.Change{Key: []byte(key), Value: newValue(rng)}
		}
		keys = keys[n:]
		next, err := v.Apply(changes)
		v.Release()
		if err != nil {
			return nil, err
		}
		v = next
	}
	return v, nil
}

// mover makes the joins of one row.
type mover struct {
	dir       string
	old, next *avlstar.Version
	progress  *harness.Progress
}

func (m *mover) row(ctx context.Context) (r *movingRow, err error) {
	r = &movingRow{Chunks: int(m.next.NumChunks())}
	m.progress.Working("a node with the old state")
	if r.Delta, err = m.join(ctx, "delta", m.old, 0); err != nil {
		return nil, err
	}
	m.progress.Working("a node that is retargeted")
	r.Half = int64(float64(m.bytes(m.old)) / 2)
	if r.Retarget, err = m.join(ctx, "retarget", nil, r.Half); err != nil {
		return nil, err
	}
	if r.Retarget.Retargets != 1 {
		return nil, fmt.Errorf("the join was retargeted %d times, want once", r.Retarget.Retargets)
	}
	m.progress.Working("a new node")
	r.Whole, err = m.join(ctx, "whole", nil, 0)
	return r, err
}

// bytes returns the length of all chunks.
func (m *mover) bytes(v *avlstar.Version) (sum uint64) {
	for _, e := range v.Manifest().Entries {
		sum += e.Root.Bytes
	}
	return sum
}

// join joins a new store to the new state. local is the state that the node has, or nil. If half is
// not zero, the peer serves the old state until it has sent that many bytes, and then only the new
// one; otherwise it serves the new one from the beginning.
func (m *mover) join(ctx context.Context, name string, local *avlstar.Version, half int64) (j joined, err error) {
	ctx, cancel := context.WithTimeout(ctx, movingLimit)
	defer cancel()
	server, err := m.serve(half)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	zone, err := storage.Open(filepath.Join(m.dir, name), storage.Options{})
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, zone.Close()) }()
	target := treestore.New(treestore.Options{ChainID: movingChain, Zone: zone}).JoinTarget(treestore.JoinOptions{})
	dialer, err := movingDialer()
	if err != nil {
		return j, err
	}
	harness.SyncDisk()
	from := time.Now()
	ps := peers.New(peers.Options{Logger: log.NewNopLogger(), Dialer: dialer, Addresses: []transport.Address{server.address}})
	defer ps.Close()
	o := restore.Options{Logger: log.NewNopLogger(), Peers: ps, Headers: server, Target: target, Interval: movingInterval, Local: local}
	if local != nil {
		o.LocalHeight = oldHeight
	}
	done, err := restore.Run(ctx, o)
	if err != nil {
		return j, err
	}
	defer done.Version.Release()
	j = joined{Bytes: server.bytes.Load(), Seconds: time.Since(from).Seconds(), Retargets: done.Summary.Retargets}
	m.progress.Add(1)
	if done.Version.AppHash() != m.next.AppHash() {
		return j, fmt.Errorf("the join ended at height %d with another state", done.Height)
	}
	return j, nil
}

// movingServer is a peer that serves one snapshot at a time. It is also the joiner's source of
// headers.
type movingServer struct {
	m         *mover
	snapshots *statesync.Manager
	listener  *tcp.Server
	address   transport.Address
	half      int64
	bytes     atomic.Int64 // of all answers
	moved     atomic.Bool  // the new snapshot has replaced the old one
}

func (m *mover) serve(half int64) (*movingServer, error) {
	s := &movingServer{m: m, half: half}
	s.snapshots = statesync.NewManager(statesync.Options{Interval: movingInterval, Keep: 1, Hold: time.Nanosecond})
	if half > 0 {
		s.snapshots.Committed(oldHeight, m.old)
	} else {
		s.move()
	}
	mux := new(transport.Mux)
	serve.New(serve.Options{Snapshots: s.snapshots}).Register(mux)
	counted := transport.HandlerFunc(func(ctx context.Context, r transport.Request) ([]byte, error) {
		answer, err := mux.Serve(ctx, r)
		if s.bytes.Add(int64(len(answer))) >= s.half {
			s.move()
		}
		return answer, err
	})
	var err error
	if s.listener, s.address, err = listen(counted); err != nil {
		return nil, errors.Join(err, s.snapshots.Close())
	}
	return s, nil
}

// listen serves on loopback.
func listen(handler transport.Handler) (*tcp.Server, transport.Address, error) {
	_, key, err := ed25519.GenerateKey(crand.Reader)
	if err != nil {
		return nil, transport.Address{}, err
	}
	listener, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: movingChain, Handler: handler})
	if err != nil {
		return nil, transport.Address{}, err
	}
	return listener, transport.Address{ID: tcp.IDOf(key.Public().(ed25519.PublicKey)), HostPort: listener.Addr().String()}, nil
}

func movingDialer() (transport.Dialer, error) {
	_, key, err := ed25519.GenerateKey(crand.Reader)
	return tcp.NewDialer(tcp.Options{Key: key, ChainID: movingChain}), err
}

// move replaces the old snapshot by the new one.
func (s *movingServer) move() {
	if !s.moved.Swap(true) {
		s.snapshots.Committed(newHeight, s.m.next)
	}
}

func (s *movingServer) close() error { return errors.Join(s.listener.Close(), s.snapshots.Close()) }

// Newest implements snapshot.Headers.
func (s *movingServer) Newest(context.Context) (int64, error) {
	if s.moved.Load() {
		return newHeight + 2, nil
	}
	return oldHeight + 2, nil
}

// AppHash implements snapshot.Headers.
func (s *movingServer) AppHash(_ context.Context, height int64) ([]byte, error) {
	v := s.m.old
	switch {
	case height == newHeight && s.moved.Load():
		v = s.m.next
	case height != oldHeight:
		return nil, fmt.Errorf("there is no header after block %d", height)
	}
	hash := v.AppHash()
	return hash[:], nil
}

// Conflict implements snapshot.Headers.
func (s *movingServer) Conflict() error { return nil }

func movingOutcome(keys int, rows []movingRow) *outcome {
	out := &outcome{}
	bytes := chart{
		Title: fmt.Sprintf("Bytes of a join while the chain moves, %s keys", harness.Group(keys)), X: "keys that change meanwhile, %", Y: "MB received", LogX: true,
	}
	seconds := chart{
		Name: "time", Title: fmt.Sprintf("Time of a join while the chain moves, %s keys", harness.Group(keys)), X: bytes.X, Y: "seconds until durable", LogX: true,
	}
	names := []string{"has the old state: deltas", "has the old state: blocks", "retargeted at half of the old state", "starts again at half", "fetches the new state only"}
	for _, n := range names {
		bytes.Lines = append(bytes.Lines, line{Name: n})
	}
	for _, n := range slices.Delete(slices.Clone(names), 3, 4) {
		seconds.Lines = append(seconds.Lines, line{Name: n})
	}
	const mb = 1e6
	for _, r := range rows {
		again := r.Half + r.Whole.Bytes
		out.add(fmt.Sprintf("%g %% of the keys change (%s keys)", r.Percent, harness.Group(r.Changed)), "",
			"deltas %.2f MB in %.2f s; blocks %.2f MB in %.2f s; retargeted %.2f MB in %.2f s; starting again %.2f MB; the new state only %.2f MB in %.2f s",
			float64(r.Delta.Bytes)/mb, r.Delta.Seconds, float64(r.Blocks.Bytes)/mb, r.Blocks.Seconds, float64(r.Retarget.Bytes)/mb, r.Retarget.Seconds,
			float64(again)/mb, float64(r.Whole.Bytes)/mb, r.Whole.Seconds)
		for i, b := range []int64{r.Delta.Bytes, r.Blocks.Bytes, r.Retarget.Bytes, again, r.Whole.Bytes} {
			bytes.Lines[i].Points = append(bytes.Lines[i].Points, at(r.Percent, float64(b)/mb))
		}
		for i, s := range []float64{r.Delta.Seconds, r.Blocks.Seconds, r.Retarget.Seconds, r.Whole.Seconds} {
			seconds.Lines[i].Points = append(seconds.Lines[i].Points, at(r.Percent, s))
		}
	}
	out.Charts = []chart{bytes, seconds}
	return out
}
