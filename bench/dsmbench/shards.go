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
	nodes  []*harness.Process
	conns  []transport.Conn
}

// startNodes writes v into n folders, one range each with about the same number of keys, and starts
// their storage nodes.
func startNodes(ctx context.Context, dir string, n int, v at) (s *storageNodes, err error) {
	s = &storageNodes{}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	ranges, err := evenRanges(v.Version, n)
	if err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	dialer := tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID})
	next, stop := iter.Pull2(v.Leaves())
	defer stop()
	leaf, err, more := next()
	for i, r := range ranges {
		own := filepath.Join(dir, fmt.Sprintf("%d-of-%d", i+1, n))
		leaves := func(yield func(avlstar.Leaf, error) bool) {
			for more && (err != nil || r.tree().Contains(leaf.Key)) {
				if !yield(leaf, err) {
					return
				}
				leaf, err, more = next()
			}
		}
		b := begin{Role: roleNode, Dir: own, Range: r}
		if err := createIn(b, v, leaves); err != nil {
			return s, err
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
	s.nodes, s.shards = append(s.nodes, p), append(s.shards, shard{b.Range, a.Address})
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

// createIn stores the first state of a storage node's range, from the leaves of the full tree.
func createIn(b begin, v at, leaves iter.Seq2[avlstar.Leaf, error]) error {
	if err := os.MkdirAll(b.Dir, 0o750); err != nil {
		return fmt.Errorf("creating a storage node's folder: %w", err)
	}
	store, err := openStore(b)
	if err != nil {
		return err
	}
	boundary, err := v.Boundary(b.Range.tree())
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

// each calls f for all nodes concurrently.
func (s *storageNodes) each(f func(i int) error) error {
	errs := make(chan error, len(s.shards))
	for i := range s.shards {
		go func() { errs <- f(i) }()
	}
	var all error
	for range s.shards {
		all = errors.Join(all, <-errs)
	}
	return all
}

// serve requests the paths to the keys of blocks, one request per block and node, and returns what
// this cost the nodes.
func (s *storageNodes) serve(ctx context.Context, height int64, retain int, blocks [][]avlstar.Want) (seconds, cpu float64, keys, bytes int, err error) {
	requests := make([][][]byte, len(s.shards))
	for _, wants := range blocks {
		parts := make([][]avlstar.Want, len(s.shards))
		i := 0
		for _, w := range wants { // in key order, like the ranges
			for !s.shards[i].Range.tree().Contains(w.Key) {
				i++
			}
			parts[i] = append(parts[i], avlstar.Want{Key: w.Key})
			keys++
		}
		for i, part := range parts {
			if len(part) == 0 {
				continue
			}
			b, err := dsm.Witness{Height: height, Depth: uint8(retain), MaxBytes: maxMultiproof, Wants: part}.Encode()
			if err != nil {
				return 0, 0, 0, 0, err
			}
			requests[i] = append(requests[i], b)
		}
	}
	before, _, err := s.usage()
	if err != nil {
		return 0, 0, 0, 0, err
	}
	from := time.Now()
	got := make([]int, len(s.shards))
	err = s.each(func(i int) error {
		for _, body := range requests[i] {
			b, err := s.conns[i].Call(ctx, transport.Call{Method: dsm.MethodWitness, Body: body, Max: maxMultiproof})
			if err != nil {
				return err
			}
			if len(b) == 0 {
				return fmt.Errorf("%s: the multiproof is too large", s.nodes[i].Name)
			}
			got[i] += len(b)
		}
		return nil
	})
	seconds = time.Since(from).Seconds()
	after, _, failed := s.usage()
	for _, n := range got {
		bytes += n
	}
	return seconds, after - before, keys, bytes, errors.Join(err, failed)
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
	return s.each(func(i int) error {
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
	b, err := s.conns[i].Call(ctx, transport.Call{Method: dsm.MethodUpdate, Body: p.Encode(), Max: dsm.UpdateAnswerBytes})
	if err != nil {
		return dsm.UpdateAnswer{}, fmt.Errorf("update of height %d: %w", p.Height, err)
	}
	return dsm.DecodeUpdateAnswer(b)
}
