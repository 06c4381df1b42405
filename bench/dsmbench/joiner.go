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
	"github.com/starling-kv/starling/dsm/source"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// joinLimit ends a join that does not come on.
const joinLimit = time.Minute

// joiner is a validator that begins with nothing but a height and its app hash. It has no CometBFT:
// headers and blocks are given.
type joiner struct {
	begin
	received atomic.Int64 // bytes on the wire, TLS included
	sent     atomic.Int64
	dialer   transport.Dialer
}

func openJoiner(b begin) (*joiner, error) {
	j := &joiner{begin: b}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	j.dialer = tcp.NewDialer(tcp.Options{Key: key, ChainID: chainID, Hooks: tcp.Hooks{
		Received: func(n int) { j.received.Add(int64(n)) }, Sent: func(n int) { j.sent.Add(int64(n)) },
	}})
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
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	connected, err := j.connect()
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, connected.Close()) }()
	s := &counted{Source: connected}
	if _, err := s.Claims(ctx); err != nil {
		return done, err
	}
	p, err := j.upper(ctx, r.Height, r.Hashes[0], j.Retain)
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
	done.Seconds, done.Bytes, done.Fetches = time.Since(from).Seconds(), j.received.Load(), int(s.requests.Load())
	done.SentBytes = j.sent.Load()
	done.CPUS = harness.CPUTime().Sub(cpu).Total().Seconds()
	_, v := a.Latest()
	defer v.Release()
	if have, want := v.AppHash(), r.Hashes[1]; have != want {
		return done, fmt.Errorf("the joined validator has the app hash %s, the chain %s", have, want)
	}
	return done, nil
}

// connect returns the source that a node has.
func (j *joiner) connect() (*source.Source, error) {
	o := source.Options{Dialer: j.dialer, Addresses: map[dsm.Node]transport.Address{}}
	var shards []dsm.Shard
	for _, n := range j.Nodes {
		address, err := transport.ParseAddress(n.Address)
		if err != nil {
			return nil, err
		}
		id := dsm.Node(address.ID)
		o.Addresses[id] = address
		shards = append(shards, dsm.Shard{Range: dsm.Range{First: n.Range.First, After: n.Range.After}, Replicas: []dsm.Node{id}})
	}
	var err error
	if o.Ranges, err = dsm.NewRanges(shards); err != nil {
		return nil, err
	}
	return source.New(o)
}

// upper returns the tree to a depth: what each node has of it.
func (j *joiner) upper(ctx context.Context, height int64, hash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	var p *avlstar.Partial
	var more []*avlstar.Bag
	for _, n := range j.Nodes {
		b, err := j.call(ctx, n, dsm.MethodUpper, dsm.UpperRequest{Height: height, Depth: uint8(depth)}.Encode())
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
	if p == nil {
		return nil, errors.New("there are no storage nodes")
	}
	next, _, err := p.Graft(more...)
	p.Release()
	return next, err
}

// call asks a node once.
func (j *joiner) call(ctx context.Context, n shard, method uint8, body []byte) ([]byte, error) {
	address, err := transport.ParseAddress(n.Address)
	if err != nil {
		return nil, err
	}
	c, err := j.dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Call(ctx, transport.Call{Method: transport.Method(method), Body: body, Max: maxBag})
}

// counted counts how often the application asks.
type counted struct {
	*source.Source
	requests atomic.Int64
}

// Fetch implements app.Source.
func (c *counted) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Bag, error) {
	c.requests.Add(1)
	return c.Source.Fetch(ctx, height, wants, below)
}
