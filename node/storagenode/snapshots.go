package storagenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
	"github.com/starling-kv/starling/statesync/serve"
	"github.com/starling-kv/starling/transport"
)

const (
	// snapshotPoll is the interval of checks for a due snapshot if no header arrives.
	snapshotPoll = time.Second
	// firstWait is the time until nodes that have not reached the height of a snapshot are queried
	// again. It doubles up to lastWait.
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
	// outlineTimeout limits the request for a part of an outline.
	outlineTimeout = 30 * time.Second
	// keepOutlines is the number of outlines kept for other nodes, which may be one snapshot
	// behind.
	keepOutlines = 2
)

// snapshots serves the chunks of the node's ranges, at the chain's snapshot heights, to joining
// full-state nodes: the part of each snapshot that this node has.
//
//	a snapshot height ── own ranges ──► outline, for other nodes ──► their outlines, verified by hashes ──► served
type snapshots struct {
	n        *Process
	interval int64
	keep     int
	limit    uint64 // limit of the memory held by snapshots only
	manager  *statesync.Manager
	server   *serve.Server
	wake     chan struct{} // signals newly proved headers; capacity 1
	last     int64         // newest attempted height; used by run only

	mu struct {
		sync.Mutex
		outlines map[int64][]byte
		served   []*servedSnapshot // ascending by height
		disk     map[int64]uint64  // what they keep on disk, by height; immutable
		size     uint64            // of the newest one, as it was last measured
	}
}

// servedSnapshot provides the chunks to the manager.
type servedSnapshot struct {
	*server.Snapshot
	of *snapshots
}

var _ statesync.Pin = (*servedSnapshot)(nil)

// Close implements statesync.Pin.
func (s *servedSnapshot) Close() error {
	s.of.mu.Lock()
	s.of.mu.served = slices.DeleteFunc(s.of.mu.served, func(o *servedSnapshot) bool { return o == s })
	s.of.mu.Unlock()
	return s.Snapshot.Close()
}

func newSnapshots(n *Process) (*snapshots, error) {
	genesis, err := app.ParseGenesis(n.genesis.AppState)
	if err != nil {
		return nil, config.Invalid(err)
	}
	file, err := os.ReadFile(n.config.CometBFT.GenesisFile())
	if err != nil {
		return nil, err
	}
	keep, interval := n.config.App.Snapshots.Keep, genesis.SnapshotInterval
	s := &snapshots{
		n: n, interval: interval, wake: make(chan struct{}, 1), keep: keep, limit: uint64(n.config.App.StorageNode.ServeBytes),
	}
	s.manager = statesync.NewManager(statesync.Options{
		Logger: n.log.With("module", "snapshots"), Interval: interval, Keep: keep, MaxBytes: n.config.App.Snapshots.MaxBytes, OnDisk: s.onDisk,
	})
	s.mu.outlines = map[int64][]byte{}
	s.server = serve.New(serve.Options{
		Snapshots: s.manager, Parts: true, Genesis: file,
		// Blocks wait for witnesses, but never for chunks.
		Making: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		Peers: func() []transport.Address { // a node that knows one storage node finds the others
			var all []transport.Address
			nodes := n.nodes.Load()
			for _, id := range nodes.Ranges.Nodes() {
				if transport.ID(id) != n.ID() {
					all = append(all, nodes.Addresses[id])
				}
			}
			return all
		},
	})
	return s, nil
}

// outline returns the outline of a height; false: none, or not yet.
func (s *snapshots) outline(height int64) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.mu.outlines[height]
	return o, ok
}

// run serves snapshots until ctx ends.
func (s *snapshots) run(ctx context.Context) {
	for {
		newest := s.due()
		first := max(s.last, newest-int64(s.keep)*s.interval, 0) + s.interval
		for height := first - first%s.interval; height <= newest && ctx.Err() == nil; height += s.interval {
			s.last = height
			s.offer(ctx, height)
		}
		s.bound()
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-time.After(snapshotPoll):
		}
	}
}

// due returns the newest snapshot height that all ranges with a state have reached; 0: none.
func (s *snapshots) due() int64 {
	lowest, _, some := s.n.position()
	if !some || lowest <= 0 {
		return 0
	}
	return lowest - lowest%s.interval
}

// offer serves this node's part of a snapshot, once the whole manifest is known. It waits for nodes
// that are behind, until the next snapshot is due.
func (s *snapshots) offer(ctx context.Context, height int64) {
	err := s.tryOffer(ctx, height)
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, transport.ErrGone): // an older one, after a restart
		s.n.log.Debug("A snapshot is no longer available", "height", height, "err", err)
	default:
		s.n.log.Info("Not serving the chunks of a snapshot", "height", height, "err", err)
	}
}

func (s *snapshots) tryOffer(ctx context.Context, height int64) error {
	s.n.mu.Lock()
	node := s.n.mu.node
	s.n.mu.Unlock()
	snapshot, err := node.Snapshot(height)
	if err != nil {
		return err
	}
	s.publish(height, snapshot.Outline())
	if err := s.complete(ctx, snapshot); err != nil {
		return errors.Join(err, snapshot.Close())
	}
	description, err := statesync.EncodePin(snapshot.Version())
	var chunks []uint32
	if err == nil {
		chunks, err = snapshot.Chunks()
	}
	if err != nil {
		return errors.Join(err, snapshot.Close())
	}
	served := &servedSnapshot{snapshot, s}
	s.mu.Lock()
	s.mu.served = append(s.mu.served, served)
	s.mu.Unlock()
	if err := s.manager.AddPart(height, description, spansOf(chunks), served); err != nil {
		return err // served was closed
	}
	s.n.log.Info("Serving chunks of a snapshot", "height", height, "chunks", len(chunks), "of", snapshot.Version().NumChunks())
	return nil
}

// spansOf merges ascending numbers into spans.
func spansOf(chunks []uint32) (spans []scheduler.Span) {
	for _, k := range chunks {
		if n := len(spans); n > 0 && spans[n-1].To == k {
			spans[n-1].To++
		} else {
			spans = append(spans, scheduler.Span{From: k, To: k + 1})
		}
	}
	return spans
}

// publish keeps an outline for other nodes.
func (s *snapshots) publish(height int64, outline []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.outlines[height] = outline
	for h := range s.mu.outlines {
		if h <= height-keepOutlines*s.interval {
			delete(s.mu.outlines, h)
		}
	}
}

var errNextDue = errors.New("other storage nodes have not sent the outlines of their ranges, and the next snapshot is due")

// complete fetches the outlines of the other ranges.
func (s *snapshots) complete(ctx context.Context, snapshot *server.Snapshot) error {
	tried, wait := map[dsm.NodeID]bool{}, firstWait
	for {
		key, lacks, err := snapshot.Missing()
		if err != nil || !lacks {
			return err
		}
		nodes := s.n.nodes.Load()
		shard := nodes.Ranges.Shard(nodes.Ranges.Index(key))
		if node, ok := untried(shard.Replicas, tried, dsm.NodeID(s.n.ID())); ok {
			tried[node] = true
			err := s.addOutline(ctx, snapshot, nodes.Addresses[node])
			switch {
			case errors.Is(err, server.ErrOutline):
				s.n.log.Error("A storage node sent an invalid outline", "node", nodes.Addresses[node], "height", snapshot.Height, "err", err)
			case err != nil:
				s.n.log.Debug("A storage node did not send its outline", "node", nodes.Addresses[node], "height", snapshot.Height, "err", err)
			}
			continue
		}
		if held := snapshot.HeldBytes(); held > s.limit {
			return fmt.Errorf("the snapshot takes %d bytes of memory while it waits for range %v, more than storage_node.serve_bytes", held, shard.Range)
		}
		if s.due() > snapshot.Height {
			return fmt.Errorf("range %v: %w", shard.Range, errNextDue)
		}
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, lastWait)
		clear(tried)
		s.bound()
	}
}

// untried returns the first replica that was not tried and is another node; false: there is none.
func untried(replicas []dsm.NodeID, tried map[dsm.NodeID]bool, self dsm.NodeID) (dsm.NodeID, bool) {
	at := slices.IndexFunc(replicas, func(node dsm.NodeID) bool { return !tried[node] && node != self })
	if at < 0 {
		return "", false
	}
	return replicas[at], true
}

// addOutline fetches the outline of a node and adds it.
func (s *snapshots) addOutline(ctx context.Context, snapshot *server.Snapshot, node transport.Address) error {
	ctx, cancel := context.WithTimeout(ctx, outlineTimeout)
	defer cancel()
	conn, err := s.n.dialer.Dial(ctx, node)
	if err != nil {
		return err
	}
	defer conn.Close()
	var outline []byte
	for limit := snapshot.MaxOutline(); ; {
		request := dsm.OutlineRequest{Height: snapshot.Height, Offset: uint64(len(outline)), Length: dsm.MaxOutlineRange}
		part, err := conn.Call(ctx, transport.Call{Method: dsm.MethodOutline, Body: request.Encode(), Max: dsm.MaxOutlineRange})
		if err != nil {
			return err
		}
		outline = append(outline, part...)
		switch {
		case uint64(len(outline)) > limit:
			return fmt.Errorf("%w: more than %d bytes", server.ErrOutline, limit)
		case len(part) < dsm.MaxOutlineRange:
			return snapshot.Add(outline)
		}
	}
}

// held returns the bytes of memory that only the served snapshots need.
func (s *snapshots) held() (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.mu.served {
		n += o.HeldBytes()
	}
	return n
}

// bound drops snapshots while they keep too much, in memory or on disk. It is called by run only.
func (s *snapshots) bound() {
	s.manager.Measured(s.measure())
	s.shrink()
}

// measure sets the result of onDisk, and returns the size of the newest served snapshot. What
// cannot be read keeps its former value: a damaged range must not make all snapshots go.
func (s *snapshots) measure() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	disk := make(map[int64]uint64, len(s.mu.served))
	for i, o := range s.mu.served {
		var next *server.Snapshot
		if i+1 < len(s.mu.served) {
			next = s.mu.served[i+1].Snapshot
		}
		kept, err := o.DiskBytes(next)
		if err == nil && next == nil {
			var size uint64
			if size, err = o.Bytes(); err == nil {
				s.mu.size = size
			}
		}
		if err != nil { // a damaged range is put aside elsewhere
			s.n.log.Debug("Cannot measure what a snapshot keeps on disk", "height", o.Height, "err", err)
			kept = s.mu.disk[o.Height]
		}
		disk[o.Height] = kept
	}
	s.mu.disk = disk
	return s.mu.size
}

// onDisk returns what each snapshot keeps on disk, as it was last measured.
func (s *snapshots) onDisk() map[int64]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.disk
}

// shrink drops snapshots, oldest first, while they take too much memory.
func (s *snapshots) shrink() {
	for {
		held := s.held()
		s.mu.Lock()
		if held <= s.limit || len(s.mu.served) == 0 {
			s.mu.Unlock()
			return
		}
		oldest := s.mu.served[0]
		s.mu.served = s.mu.served[1:]
		s.mu.Unlock()
		s.n.log.Info("Dropped a snapshot: snapshots take more memory than storage_node.serve_bytes",
			"height", oldest.Height, "bytes", held)
		s.manager.GiveUp(oldest.Height)
	}
}

// newest returns the height of the newest served snapshot; 0: none.
func (s *snapshots) newest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mu.served); n > 0 {
		return s.mu.served[n-1].Height
	}
	return 0
}
