package shard

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
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
)

const (
	// snapshotPoll is the time between two looks whether a snapshot is due, if no header comes.
	snapshotPoll = time.Second
	// firstWait is the time until nodes are asked anew that have not come to the height of a
	// snapshot. It doubles up to lastWait.
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
	// outlineTimeout limits the question for a part of an outline.
	outlineTimeout = 30 * time.Second
	// keepOutlines is how many outlines are kept for other nodes, which may be a snapshot behind.
	keepOutlines = 2
)

// snapshots offers the chunks of the node's ranges, at the chain's snapshot heights, to nodes that
// join in local mode: of each snapshot the part that this node has.
//
//	a snapshot height ── own ranges ──► outline, for the others ──► theirs, proved by hashes ──► served
type snapshots struct {
	n        *Node
	interval int64
	keep     int
	limit    uint64 // of the memory of what only snapshots have
	manager  *statesync.Manager
	server   *fastsync.Server
	wake     chan struct{} // headers were proved; capacity 1
	last     int64         // the newest height that was tried; of run

	mu struct {
		sync.Mutex
		outlines map[int64][]byte
		served   []*servedSnapshot // ascending
	}
}

// servedSnapshot is what the manager reads chunks from.
type servedSnapshot struct {
	*storagenode.Snapshot
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

func newSnapshots(n *Node) (*snapshots, error) {
	genesis, err := app.ParseGenesis(n.genesis.AppState)
	if err != nil {
		return nil, config.Invalid(err)
	}
	file, err := os.ReadFile(n.config.CometBFT.GenesisFile())
	if err != nil {
		return nil, err
	}
	c, interval := n.config.App.StorageNode, genesis.SnapshotInterval
	s := &snapshots{
		n: n, interval: interval, wake: make(chan struct{}, 1), keep: c.Keep, limit: uint64(c.ServeBytes),
		manager: statesync.NewManager(statesync.Options{Logger: n.log.With("module", "snapshots"), Interval: interval, Keep: c.Keep}),
	}
	s.mu.outlines = map[int64][]byte{}
	s.server = fastsync.NewServer(fastsync.ServerOptions{
		Snapshots: s.manager, Parts: true, Genesis: file,
		// Blocks wait for witnesses, and for no chunk.
		Making: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		Peers: func() []transport.Address { // whoever knows one storage node finds the others
			var all []transport.Address
			for _, id := range n.nodes.Ranges.Nodes() {
				if transport.ID(id) != n.ID() {
					all = append(all, n.nodes.Addresses[id])
				}
			}
			return all
		},
	})
	return s, nil
}

// outline returns that of a height; false: there is none, or not yet.
func (s *snapshots) outline(height int64) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.mu.outlines[height]
	return o, ok
}

// run offers snapshots until ctx ends.
func (s *snapshots) run(ctx context.Context) {
	for {
		newest := s.due()
		first := max(s.last, newest-int64(s.keep)*s.interval, 0) + s.interval
		for height := first - first%s.interval; height <= newest && ctx.Err() == nil; height += s.interval {
			s.last = height
			s.offer(ctx, height)
		}
		s.shrink()
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-time.After(snapshotPoll):
		}
	}
}

// pause returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// due returns the newest snapshot height that all ranges with a state have come to; 0: there is
// none.
func (s *snapshots) due() int64 {
	lowest, _, some := s.n.position()
	if !some || lowest <= 0 {
		return 0
	}
	return lowest - lowest%s.interval
}

// offer serves what the node has of a snapshot, once it knows the whole manifest. It waits for
// nodes that are behind, until the next snapshot is due.
func (s *snapshots) offer(ctx context.Context, height int64) {
	err := s.tryOffer(ctx, height)
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, transport.ErrGone): // an older one, after a start
		s.n.log.Debug("A snapshot is not answered any more", "height", height, "err", err)
	default:
		s.n.log.Info("The chunks of a snapshot are not served", "height", height, "err", err)
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
		return err // served is closed
	}
	s.n.log.Info("Serving chunks of a snapshot", "height", height, "chunks", len(chunks), "of", snapshot.Version().NumChunks())
	return nil
}

// spansOf joins ascending numbers.
func spansOf(chunks []uint32) (spans []statesync.Span) {
	for _, k := range chunks {
		if n := len(spans); n > 0 && spans[n-1].To == k {
			spans[n-1].To++
		} else {
			spans = append(spans, statesync.Span{From: k, To: k + 1})
		}
	}
	return spans
}

// publish keeps an outline for the other nodes.
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

var errNextDue = errors.New("other storage nodes have not said what their ranges have, and the next snapshot is due")

// complete fetches the outlines of the other ranges.
func (s *snapshots) complete(ctx context.Context, snapshot *storagenode.Snapshot) error {
	tried, wait := map[dsm.Node]bool{}, firstWait
	for {
		key, lacks, err := snapshot.Lacks()
		if err != nil || !lacks {
			return err
		}
		shard := s.n.nodes.Ranges.Shard(s.n.nodes.Ranges.Index(key))
		at := slices.IndexFunc(shard.Replicas, func(node dsm.Node) bool { return !tried[node] && transport.ID(node) != s.n.ID() })
		if at >= 0 {
			node := shard.Replicas[at]
			tried[node] = true
			err := s.addOutline(ctx, snapshot, node)
			switch {
			case errors.Is(err, storagenode.ErrOutline):
				s.n.log.Error("A storage node has sent what is not of the state", "node", s.n.nodes.Addresses[node], "height", snapshot.Height, "err", err)
			case err != nil:
				s.n.log.Debug("A storage node does not say what its ranges have", "node", s.n.nodes.Addresses[node], "height", snapshot.Height, "err", err)
			}
			continue
		}
		if held := snapshot.HeldBytes(); held > s.limit {
			return fmt.Errorf("it takes %d bytes of memory while it waits for range %v, more than storage_node.serve_bytes", held, shard.Range)
		}
		if s.due() > snapshot.Height {
			return fmt.Errorf("range %v: %w", shard.Range, errNextDue)
		}
		if !pause(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, lastWait)
		clear(tried)
	}
}

// addOutline fetches the outline of a node and adds it.
func (s *snapshots) addOutline(ctx context.Context, snapshot *storagenode.Snapshot, node dsm.Node) error {
	ctx, cancel := context.WithTimeout(ctx, outlineTimeout)
	defer cancel()
	conn, err := s.n.dialer.Dial(ctx, s.n.nodes.Addresses[node])
	if err != nil {
		return err
	}
	defer conn.Close()
	var outline []byte
	for limit := snapshot.MaxOutline(); ; {
		request := dsm.OutlineRequest{Height: snapshot.Height, Offset: uint64(len(outline)), Length: dsm.MaxOutlineRange}
		part, err := conn.Call(ctx, transport.Call{Method: transport.Method(dsm.MethodOutline), Body: request.Encode(), Max: dsm.MaxOutlineRange})
		if err != nil {
			return err
		}
		outline = append(outline, part...)
		switch {
		case uint64(len(outline)) > limit:
			return fmt.Errorf("%w: it has more than %d bytes", storagenode.ErrOutline, limit)
		case len(part) < dsm.MaxOutlineRange:
			return snapshot.Add(outline)
		}
	}
}

// shrink gives snapshots up, the oldest first, while they take too much memory.
func (s *snapshots) shrink() {
	for {
		s.mu.Lock()
		held := uint64(0)
		for _, o := range s.mu.served {
			held += o.HeldBytes()
		}
		if held <= s.limit || len(s.mu.served) == 0 {
			s.mu.Unlock()
			return
		}
		oldest := s.mu.served[0]
		s.mu.served = s.mu.served[1:]
		s.mu.Unlock()
		s.n.log.Info("The chunks of a snapshot are not served any more: what only snapshots have takes more memory than storage_node.serve_bytes",
			"height", oldest.Height, "bytes", held)
		s.manager.GiveUp(oldest.Height)
	}
}

// newest returns the height of the newest snapshot that is served; 0: there is none.
func (s *snapshots) newest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mu.served); n > 0 {
		return s.mu.served[n-1].Height
	}
	return 0
}
