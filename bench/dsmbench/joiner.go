package dsmbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/appstore"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// joinLimit ends a join that makes no progress.
const joinLimit = time.Minute

// joiner is a validator that starts with only a height and its app hash. It has no CometBFT: the
// parent supplies headers and blocks.
type joiner struct {
	begin
	received atomic.Int64 // bytes on the wire, including TLS
	sent     atomic.Int64
	dialer   transport.Dialer
}

func openJoiner(b begin) (*joiner, error) {
	j := &joiner{begin: b}
	var err error
	j.dialer, err = newDialer(tcp.Hooks{
		Received: func(n int) { j.received.Add(int64(n)) }, Sent: func(n int) { j.sent.Add(int64(n)) },
	})
	if err != nil {
		return nil, err
	}
	if j.DelayMS > 0 {
		j.dialer = delayed{j.dialer, time.Duration(j.DelayMS) * time.Millisecond / 2}
	}
	return j, nil
}

// Close implements child.Worker.
func (*joiner) Close() error { return nil }

// Do implements child.Worker.
func (j *joiner) Do(r request, _ *bufio.Reader) (a answer, err error) {
	switch r.Op {
	case opJoin:
		a.Join, err = j.join(context.Background(), r)
	case opPrefetch:
		a.Prefetch, err = j.prefetch(context.Background(), r)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
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
	s := &counted{Client: connected}
	if _, err := s.Claims(ctx); err != nil {
		return done, err
	}
	p, err := j.upper(ctx, r.Height, r.Hashes[0], j.Retain)
	if err != nil {
		return done, err
	}
	done.UpperS, done.UpperBytes = time.Since(from).Seconds(), j.received.Load()
	store := &appstore.Memory{First: p.Version(), Height: r.Height}
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
	done.CPUS = (harness.CPUTime() - cpu).Seconds()
	_, v := a.Latest()
	defer v.Release()
	if have, want := v.AppHash(), r.Hashes[1]; have != want {
		return done, fmt.Errorf("the joined validator has the app hash %s, the chain has %s", have, want)
	}
	return done, nil
}

// connect returns the source that a real node would use.
func (j *joiner) connect() (*client.Client, error) {
	o := client.Options{Dialer: j.dialer, Map: client.Map{Addresses: map[dsm.NodeID]transport.Address{}}}
	var shards []dsm.Placement
	for _, n := range j.Nodes {
		address, err := transport.ParseAddress(n.Address)
		if err != nil {
			return nil, err
		}
		id := dsm.NodeID(address.ID)
		o.Map.Addresses[id] = address
		shards = append(shards, dsm.Placement{Range: avlstar.KeyRange{First: n.Range.First, After: n.Range.After}, Replicas: []dsm.NodeID{id}})
	}
	var err error
	if o.Map.Ranges, err = dsm.NewRanges(shards); err != nil {
		return nil, err
	}
	return client.New(o)
}

// upper fetches the tree down to depth from all storage nodes: each has its part.
func (j *joiner) upper(ctx context.Context, height int64, hash avlstar.Hash, depth int) (*avlstar.Partial, error) {
	var p *avlstar.Partial
	var more []*avlstar.Multiproof
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
			return nil, errors.New("the upper tree belongs to another state")
		}
		if p == nil {
			if p, err = avlstar.NewPartial(c); err != nil {
				return nil, err
			}
		}
		multiproof, err := avlstar.DecodeMultiproof(u.Multiproof)
		if err != nil {
			return nil, err
		}
		more = append(more, multiproof)
	}
	if p == nil {
		return nil, errors.New("there are no storage nodes")
	}
	next, _, err := p.Graft(more...)
	p.Release()
	return next, err
}

// call sends one request to a storage node, without retries.
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
	return c.Call(ctx, transport.Call{Method: transport.Method(method), Body: body, Max: maxMultiproof})
}

// counted counts the application's requests.
type counted struct {
	*client.Client
	requests atomic.Int64
}

// Fetch implements app.Source.
func (c *counted) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Multiproof, error) {
	c.requests.Add(1)
	return c.Client.Fetch(ctx, height, wants, below)
}
