package dsmbench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

const (
	servedBlocks = 40 // blocks whose witnesses are served in one round
	servedRounds = 3
	putBlocks    = 32 // blocks whose updates are sent; fewer than a storage node can queue
	// joinBlocks is the number of blocks that a joiner executes. Storage nodes are two blocks
	// behind, because an update waits for the next header, and the validator joins one block before
	// that.
	joinBlocks = 3
)

// storageNodes are storage nodes that together keep the whole state.
type storageNodes struct {
	shards []shard
	of     []int // for each shard, the index of its node
	nodes  []*harness.Process
	conns  []transport.Conn // of each node
}

// startNodes writes v into n folders, with as many adjacent ranges each, of about the same number
// of keys, and starts their storage nodes.
func startNodes(ctx context.Context, dir string, n, ranges int, v at) (s *storageNodes, err error) {
	s = &storageNodes{}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	all, err := evenRanges(v.Version, ranges)
	if err != nil {
		return nil, err
	}
	dialer, err := newDialer(tcp.Hooks{})
	if err != nil {
		return nil, err
	}
	next, stop := iter.Pull2(v.Leaves())
	defer stop()
	leaf, err, more := next()
	for i := range n {
		b := begin{
			Role: roleNode, Dir: filepath.Join(dir, fmt.Sprintf("%d-of-%d-with-%d", i+1, n, ranges)), Ranges: all[i*ranges/n : (i+1)*ranges/n],
		}
		for k, r := range b.Ranges {
			leaves := func(yield func(avlstar.Leaf, error) bool) {
				for more && (err != nil || r.tree().Contains(leaf.Key)) {
					if !yield(leaf, err) {
						return
					}
					leaf, err, more = next()
				}
			}
			if err := createIn(b, k, v, leaves); err != nil {
				return s, err
			}
		}
		if err := s.start(ctx, dialer, fmt.Sprintf("storage node %d of %d", i+1, n), b); err != nil {
			return s, err
		}
	}
	return s, nil
}

// start starts a storage node and connects to it.
func (s *storageNodes) start(ctx context.Context, dialer transport.Dialer, name string, b begin) error {
	var a answer
	p, err := harness.StartRunning(ctx, ChildName, name, b, &a)
	if err != nil {
		return err
	}
	for _, r := range b.Ranges {
		s.shards, s.of = append(s.shards, shard{r, a.Address}), append(s.of, len(s.nodes))
	}
	s.nodes = append(s.nodes, p)
	address, err := transport.ParseAddress(a.Address)
	if err != nil {
		return err
	}
	c, err := dialer.Dial(ctx, address)
	if err != nil {
		return err
	}
	s.conns = append(s.conns, c)
	return nil
}

// newDialer returns a dialer with a key of its own.
func newDialer(hooks tcp.Hooks) (transport.Dialer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID, Hooks: hooks}), nil
}

// createIn stores the first state of a storage node's range i, from the leaves of the full tree.
func createIn(b begin, i int, v at, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if err := os.MkdirAll(b.Dir, 0o750); err != nil {
		return fmt.Errorf("creating a storage node's folder: %w", err)
	}
	store, err := openStore(b, i, newMemory(b))
	if err != nil {
		return err
	}
	boundary, err := v.Boundary(b.Ranges[i].tree())
	if err == nil {
		err = store.Create(v.height, v.Commitment(), boundary, leaves)
	}
	return errors.Join(err, store.Close())
}

// evenRanges divides the keys of v into n ranges with about the same number of keys.
func evenRanges(v *avlstar.Version, n int) ([]keyRange, error) {
	ranges := []keyRange{{}}
	at, each := uint64(0), v.Len()/uint64(n)
	for l, err := range v.Leaves() {
		if err != nil {
			return nil, err
		}
		if len(ranges) == n {
			break
		}
		if at == each*uint64(len(ranges)) {
			edge := append([]byte(nil), l.Key...)
			ranges[len(ranges)-1].After = edge
			ranges = append(ranges, keyRange{First: edge})
		}
		at++
	}
	return ranges, nil
}

func (s *storageNodes) end() {
	for _, c := range s.conns {
		c.Close()
	}
	for _, p := range s.nodes {
		p.End()
	}
}

// usages returns what each node has used so far.
func (s *storageNodes) usages() (all []answer, err error) {
	for _, p := range s.nodes {
		var a answer
		if err := p.Ask(request{Op: opUsage}, &a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// usage returns the CPU time that all nodes have used so far, and their memory.
func (s *storageNodes) usage() (cpu float64, rss int64, err error) {
	all, err := s.usages()
	for _, a := range all {
		cpu, rss = cpu+a.CPU, rss+a.RSS
	}
	return cpu, rss, err
}

// each calls f for the numbers below n concurrently.
func each(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return all
}

// served is the cost of witnesses.
type served struct {
	seconds, cpu float64 // CPU time of the nodes
	ask          float64 // CPU time of the requester, which decodes the answers
	keys, bytes  int
}

// serve requests the paths to the keys of blocks: one request per block and node or, with apart,
// one per block and range.
func (s *storageNodes) serve(ctx context.Context, height int64, retain int, blocks [][]avlstar.Want, apart bool) (cost served, err error) {
	requests := make([][][]byte, len(s.nodes))
	for _, wants := range blocks {
		parts := make([][]avlstar.Want, len(s.shards))
		i := 0
		for _, w := range wants { // in key order, like the ranges
			for !s.shards[i].Range.tree().Contains(w.Key) {
				i++
			}
			to := i
			if !apart {
				to = s.of[i] // a number that is not above i
			}
			parts[to] = append(parts[to], avlstar.Want{Key: w.Key})
			cost.keys++
		}
		for i, part := range parts {
			if len(part) == 0 {
				continue
			}
			b, err := dsm.Witness{Height: height, Depth: uint8(retain), MaxBytes: maxMultiproof, Wants: part}.Encode()
			if err != nil {
				return cost, err
			}
			to := i
			if apart {
				to = s.of[i]
			}
			requests[to] = append(requests[to], b)
		}
	}
	before, _, err := s.usage()
	if err != nil {
		return cost, err
	}
	from, asking := time.Now(), harness.CPUTime()
	got := make([]int, len(s.nodes))
	err = each(len(s.nodes), func(i int) error {
		for _, body := range requests[i] {
			b, err := s.conns[i].Call(ctx, transport.Call{Method: dsm.MethodWitness, Body: body, Max: maxMultiproof})
			if err != nil {
				return err
			}
			if len(b) == 0 {
				return fmt.Errorf("%s: the multiproof is too large", s.nodes[i].Name)
			}
			if _, err := avlstar.DecodeMultiproof(b); err != nil {
				return err
			}
			got[i] += len(b)
		}
		return nil
	})
	cost.seconds, cost.ask = time.Since(from).Seconds(), (harness.CPUTime() - asking).Seconds()
	after, _, failed := s.usage()
	cost.cpu = after - before
	for _, n := range got {
		cost.bytes += n
	}
	return cost, errors.Join(err, failed)
}

// maxMultiproof is the maximum size of a response.
const maxMultiproof = 8 << 20

// prove announces the app hashes of blocks to the storage nodes.
func (s *storageNodes) prove(blocks []at) error {
	r := request{Op: opProve, Height: blocks[0].height}
	for _, b := range blocks {
		r.Hashes = append(r.Hashes, b.AppHash())
	}
	for _, p := range s.nodes {
		if err := p.Ask(r, new(answer)); err != nil {
			return err
		}
	}
	return nil
}

// feed sends the updates of blocks, by range, and waits until all updates are durable.
func (s *storageNodes) feed(ctx context.Context, first int64, updates [][][]byte) error {
	return each(len(s.shards), func(i int) error {
		r := avlstar.KeyRange{First: s.shards[i].Range.First, After: s.shards[i].Range.After}
		var answer dsm.UpdateAnswer
		var last dsm.UpdatePart
		for n, u := range updates[i] {
			sum := sha256.Sum256(u)
			for offset := 0; offset < len(u); {
				last = dsm.PartOf(first+int64(n), r, u, sum, offset)
				var err error
				if answer, err = s.part(ctx, i, last); err != nil {
					return err
				}
				offset += len(last.Part)
			}
		}
		every := time.NewTicker(time.Millisecond)
		defer every.Stop()
		last.Offset, last.Part = 0, nil // an empty part, which asks for the durable height
		for answer.Durable < first+int64(len(updates[i]))-1 {
			select {
			case <-every.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			var err error
			if answer, err = s.part(ctx, i, last); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *storageNodes) part(ctx context.Context, i int, p dsm.UpdatePart) (dsm.UpdateAnswer, error) {
	b, err := s.conns[s.of[i]].Call(ctx, transport.Call{Method: dsm.MethodUpdate, Body: p.Encode(), Max: dsm.UpdateAnswerBytes})
	if err != nil {
		return dsm.UpdateAnswer{}, fmt.Errorf("update of height %d: %w", p.Height, err)
	}
	return dsm.DecodeUpdateAnswer(b)
}
