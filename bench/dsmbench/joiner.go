package dsmbench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// joiner is a validator that begins with nothing but a height and its app hash. It has no CometBFT:
// headers and blocks are given.
type joiner struct {
	begin
	received atomic.Int64 // bytes on the wire, TLS included
	dialer   transport.Dialer
}

func openJoiner(b begin) (*joiner, error) {
	j := &joiner{begin: b}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	j.dialer = tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID, Hooks: tcp.Hooks{Received: func(n int) { j.received.Add(int64(n)) }}})
	return j, nil
}

func (*joiner) close() error { return nil }

// do implements role.
func (j *joiner) do(r request) (a answer, err error) {
	switch r.Op {
	case opBegin:
	case opJoin:
		a.Join, err = j.join(context.Background(), r)
	default:
		err = errNoSuchRequest
	}
	return a, err
}

func (j *joiner) join(ctx context.Context, r request) (done Joined, err error) {
	cpu, from := harness.CPUTime(), time.Now()
	s, err := j.connect(ctx)
	if err != nil {
		return done, err
	}
	defer s.close()
	p, err := s.upper(ctx, r.Height, r.Hashes[0], j.Retain)
	if err != nil {
		return done, err
	}
	done.UpperS, done.UpperBytes = time.Since(from).Seconds(), j.received.Load()
	store := &memory{first: p.Version(), height: r.Height}
	a, err := app.New(app.Options{
		Store: store, ChainID: chainID, KeepRecent: 4, Source: s, Retention: retention(j.Retain, j.Window),
	})
	if err != nil {
		return done, err
	}
	defer a.Stop()
	for i, txs := range r.Txs {
		height := r.Height + 1 + int64(i)
		res, err := a.FinalizeBlock(ctx, &abci.RequestFinalizeBlock{Height: height, Txs: txs})
		if err != nil {
			return done, err
		}
		for n, t := range res.TxResults {
			if t.Code != 0 {
				return done, fmt.Errorf("block %d, transaction %d failed: %s", height, n, t.Log)
			}
		}
		if _, err := a.Commit(ctx, &abci.RequestCommit{}); err != nil {
			return done, err
		}
		done.Blocks++
	}
	done.Seconds, done.Bytes, done.Requests = time.Since(from).Seconds(), j.received.Load(), int(s.requests.Load())
	done.CPUS = harness.CPUTime().Sub(cpu).Total().Seconds()
	_, v := a.Latest()
	defer v.Release()
	if have, want := v.AppHash(), r.Hashes[1]; have != want {
		return done, fmt.Errorf("the joined validator has the app hash %s, the chain %s", have, want)
	}
	return done, nil
}

// remote asks storage nodes. It is the least that app.Source can be: each range has one node, which
// is honest.
type remote struct {
	ranges   *dsm.Ranges
	conns    []transport.Conn
	requests atomic.Int64
}

func (j *joiner) connect(ctx context.Context) (s *remote, err error) {
	s = &remote{}
	var shards []dsm.Shard
	for i, n := range j.Nodes {
		address, err := transport.ParseAddress(n.Address)
		if err != nil {
			return s, err
		}
		c, err := j.dialer.Dial(ctx, address)
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns = append(s.conns, c)
		shards = append(shards, dsm.Shard{Range: dsm.Range{First: n.Range.First, After: n.Range.After}, Replicas: []dsm.Node{dsm.Node(fmt.Sprint(i))}})
	}
	s.ranges, err = dsm.NewRanges(shards)
	return s, err
}

func (s *remote) close() {
	for _, c := range s.conns {
		c.Close()
	}
}

func (s *remote) call(ctx context.Context, i int, method uint8, body []byte) ([]byte, error) {
	s.requests.Add(1)
	return s.conns[i].Call(ctx, transport.Call{Method: transport.Method(method), Body: body, Max: maxBag})
}

// upper returns the tree to a depth: what each node has of it.
func (s *remote) upper(ctx context.Context, height int64, hash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	var p *avlstar.Partial
	var more []*avlstar.Bag
	for i := range s.conns {
		b, err := s.call(ctx, i, dsm.MethodUpper, dsm.UpperRequest{Height: height, Depth: uint8(depth)}.Encode())
		if err != nil {
			return nil, err
		}
		u, err := dsm.DecodeUpper(b)
		if err != nil {
			return nil, err
		}
		c, err := avlstar.DecodeCommitment(u.Commitment)
		if err != nil {
			return nil, err
		}
		if c.AppHash() != hash {
			return nil, errors.New("the upper tree is another state's")
		}
		if p == nil {
			if p, err = avlstar.NewPartial(c); err != nil {
				return nil, err
			}
		}
		bag, err := avlstar.DecodeBag(u.Bag)
		if err != nil {
			return nil, err
		}
		more = append(more, bag)
	}
	next, _, err := p.Graft(more...)
	p.Release()
	return next, err
}

// Fetch implements app.Source.
func (s *remote) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Bag, error) {
	asked := make([]dsm.Want, len(wants))
	for i, w := range wants {
		asked[i] = dsm.Want{Key: w.Key, Range: w.Range, After: w.After, Next: w.Next, Deleted: w.Deleted}
	}
	parts, err := s.ranges.Route(asked)
	if err != nil {
		return nil, err
	}
	held := make([][32]byte, 0, len(below.Held))
	for h := range below.Held {
		held = append(held, h)
	}
	bags := make([]*avlstar.Bag, len(parts))
	errs := make(chan error, len(parts))
	for i, part := range parts {
		go func() {
			errs <- func() error {
				body, err := dsm.Witness{Height: height, Depth: 255, MaxBytes: maxBag, Held: held, Wants: part.Wants}.Encode()
				if err != nil {
					return err
				}
				b, err := s.call(ctx, part.Shard, dsm.MethodWitness, body)
				if err != nil {
					return err
				}
				bags[i], err = avlstar.DecodeBag(b)
				return err
			}()
		}()
	}
	for range parts {
		err = errors.Join(err, <-errs)
	}
	var there []*avlstar.Bag
	for _, b := range bags {
		if b != nil {
			there = append(there, b)
		}
	}
	return there, err
}
