package clientbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// loadAtOnce is the number of keys that each transaction of the load writes.
const loadAtOnce = 500

// starling is a network and its clients. All workers share the clients, as with etcd.
type starling struct {
	o        Options
	net      *network.Network
	believer *client.Client
	writers  []*client.Client // of the puts
	grouped  *client.Client   // of opGroupLoad
	verifier *client.Client
	old      atomic.Int64 // a retained height whose state can be proved without waiting
}

// start starts a network in which all accounts may write keys with keyPrefix.
func (n *common) start(ctx context.Context, program, dir string, validators int, edit func(*cfg.Config)) (*network.Network, error) {
	return network.Start(ctx, network.Options{
		Program: program, Dir: dir, Validators: validators, Delay: n.delay, Edit: edit, Last: n.fault.program, SlowLast: n.fault.delay,
		Init: initWith(n.Network), GRPC: n.Endpoint == endpointGRPC,
		AppState: map[string]any{"admins": []string{}, "grants": []map[string]string{{"grantee": "*", "prefix": keyPrefix}}},
	})
}

// initWith returns the arguments with which starlingd creates a home for a kind of network.
func initWith(kind string) func(name, dir string) []string {
	return func(name, dir string) []string { return append(network.InitStarlingd(name, dir), "--network", kind) }
}

func startStarling(ctx context.Context, o Options, program, dir string) (_ store, err error) {
	net, err := o.start(ctx, program, dir, o.Validators, o.configure)
	if err != nil {
		return nil, err
	}
	s := &starling{o: o, net: net}
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, net.Stop())
	}
	return s, nil
}

func (s *starling) connect(ctx context.Context) (err error) {
	endpoints := s.o.fault.honest(s.net.Endpoints())
	key := client.WithKey(ed25519.GenPrivKeyFromSecret([]byte("bench")))
	if s.believer, err = client.Dial(ctx, endpoints, key, client.WithChainID(network.ChainID)); err != nil {
		return err
	}
	s.writers = []*client.Client{s.believer}
	for i := 1; i < s.o.writers; i++ {
		key := client.WithKey(ed25519.GenPrivKeyFromSecret(fmt.Append(nil, "bench", i)))
		c, err := client.Dial(ctx, endpoints, key, client.WithChainID(network.ChainID))
		if err != nil {
			return err
		}
		s.writers = append(s.writers, c)
	}
	key = client.WithKey(ed25519.GenPrivKeyFromSecret([]byte("bench, grouped")))
	if s.grouped, err = client.Dial(ctx, endpoints, key, client.WithChainID(network.ChainID), client.WithGroupCommit()); err != nil {
		return err
	}
	s.verifier, err = client.Dial(ctx, endpoints, client.WithVerification(client.Trust{Genesis: s.net.Genesis}))
	return err
}

func (s *starling) close() error { return s.net.Stop() }

// load writes all keys.
func (s *starling) load(ctx context.Context) error {
	random := rand.New(rand.NewPCG(1, 0))
	var last *client.Sent
	for from := 0; from < s.o.Keys; from += loadAtOnce {
		var puts []tx.Operation
		for i := from; i < min(from+loadAtOnce, s.o.Keys); i++ {
			puts = append(puts, tx.NewPut(Key(i), NewValue(random, s.o.ValueBytes)))
		}
		var err error
		if last, err = s.believer.Send(ctx, puts...); err != nil {
			return err
		}
	}
	done, err := last.Wait(ctx) // nonces are in order: all earlier transactions are in blocks, too
	if err != nil {
		return err
	}
	// so that the headers are verified before the measurement
	_, err = s.verifier.Get(ctx, Key(0), client.AtHeight(done.Height))
	return err
}

func (s *starling) run(ctx context.Context, what string, seed uint64) (Figures, error) {
	s.o.fault.begin(s.net)
	switch what {
	case opNewest:
		what = opGetProvedNewest
	case opNewestBusy:
		return s.newestBusy(ctx, seed)
	case opEventAfter:
		return s.eventAfter(ctx, seed)
	case opDead:
		return s.oneDead(ctx, seed)
	}
	workers, measured := s.o.Workers, (*network.Network)(nil)
	if what == opPutLoad || what == opGroupLoad || what == opBatchLoad {
		workers, measured = loadWorkers, s.net
	}
	work := make([]Operation, workers)
	for i := range work {
		do, err := s.operation(ctx, what, i)
		if err != nil {
			return Figures{}, err
		}
		work[i] = do
	}
	if err := s.look(ctx); err != nil {
		return Figures{}, err
	}
	looking, end := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() {
		for every := time.NewTicker(time.Second); ; {
			select {
			case <-every.C:
				_ = s.look(looking) // on error: the previous height is retained for a while
			case <-looking.Done():
				every.Stop()
				return
			}
		}
	})
	defer looks.Wait()
	defer end()
	f, err := repeatFigures(ctx, measured, work, seed, time.Duration(s.o.Seconds)*time.Second)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return f, err
}

// look finds the newest height that can be proved without waiting, because the next header exists.
func (s *starling) look(ctx context.Context) error {
	status, err := s.believer.Status(ctx)
	if err == nil {
		s.old.Store(status.SyncInfo.LatestBlockHeight - 1)
	}
	return err
}

// ErrAbsent is returned by a read that finds fewer keys than were written.
var ErrAbsent = errors.New("a written key is missing")

// operation returns the operation of this name for one worker.
func (s *starling) operation(ctx context.Context, what string, worker int) (Operation, error) {
	get := func(c *client.Client, options func() []client.ReadOption) Operation {
		return func(ctx context.Context, random *rand.Rand) error {
			v, err := c.Get(ctx, Key(random.IntN(s.o.Keys)), options()...)
			if err == nil && !v.Found {
				err = ErrAbsent
			}
			return err
		}
	}
	scan := func(c *client.Client, options func() []client.ReadOption) Operation {
		return func(ctx context.Context, random *rand.Rand) error {
			page, err := c.Range(ctx, Key(random.IntN(max(s.o.Keys-s.o.RangeKeys, 1))), client.PrefixEnd([]byte(keyPrefix)),
				append(options(), client.Limit(s.o.RangeKeys))...)
			if err == nil && len(page.Entries) != min(s.o.RangeKeys, s.o.Keys) {
				err = ErrAbsent
			}
			return err
		}
	}
	newest := func() []client.ReadOption { return nil }
	before := func() []client.ReadOption { return []client.ReadOption{client.AtHeight(s.old.Load())} }
	switch what {
	case opGroupLoad:
		return func(ctx context.Context, random *rand.Rand) error {
			_, err := s.grouped.Put(ctx, Key(random.IntN(s.o.Keys)), NewValue(random, s.o.ValueBytes))
			return err
		}, nil
	case OpPut, opPutShared, opPutLoad, opBatchLoad:
		writer, number := s.writers[worker%len(s.writers)], 1
		switch what {
		case opPutShared:
			writer = s.believer
		case opBatchLoad:
			number = batchPuts
		}
		return func(ctx context.Context, random *rand.Rand) error {
			puts := make([]tx.Operation, number)
			for i := range puts {
				puts[i] = tx.NewPut(Key(random.IntN(s.o.Keys)), NewValue(random, s.o.ValueBytes))
			}
			_, err := writer.Submit(ctx, puts...)
			return err
		}, nil
	case OpTxn:
		return s.txn, nil
	case OpGet:
		return get(s.believer, newest), nil
	case OpGetOrdered:
		return func(ctx context.Context, random *rand.Rand) error {
			_, found, err := s.believer.Read(ctx, Key(random.IntN(s.o.Keys)))
			if err == nil && !found {
				err = ErrAbsent
			}
			return err
		}, nil
	case opGetProved:
		return get(s.verifier, before), nil
	case opGetProvedNewest:
		return get(s.verifier, newest), nil
	case OpRange:
		return scan(s.believer, newest), nil
	case OpRangeOrdered:
		return s.readRange, nil
	case opRangeProved:
		return scan(s.verifier, before), nil
	case OpWatch:
		return s.watch(ctx, worker)
	}
	return nil, fmt.Errorf("unknown operation %q", what)
}

func (s *starling) txn(ctx context.Context, random *rand.Rand) error {
	k := Key(random.IntN(s.o.Keys))
	done, err := s.believer.Txn(ctx).If(client.Present(k)).Then(tx.NewPut(k, NewValue(random, s.o.ValueBytes))).Else(tx.NewRead(k)).Commit()
	if err == nil && !done.Succeeded {
		err = ErrAbsent
	}
	return err
}

// readRange reads a range in a transaction.
func (s *starling) readRange(ctx context.Context, random *rand.Rand) error {
	done, err := s.believer.Submit(ctx, tx.NewReadRange(Key(random.IntN(max(s.o.Keys-s.o.RangeKeys, 1))), client.PrefixEnd([]byte(keyPrefix)), uint32(s.o.RangeKeys)))
	if err == nil && len(done.Results[0].Entries) != min(s.o.RangeKeys, s.o.Keys) {
		err = ErrAbsent
	}
	return err
}

// watch measures the time from sending a put until its event arrives.
func (s *starling) watch(ctx context.Context, worker int) (Operation, error) {
	k := fmt.Appendf(nil, keyPrefix+"watched/%d", worker)
	w, err := s.believer.Watch(ctx, nil, client.WatchKey(k))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, random *rand.Rand) error {
		value := string(NewValue(random, s.o.ValueBytes))
		if _, err := s.believer.Send(ctx, tx.NewPut(k, []byte(value))); err != nil {
			return err
		}
		for {
			e, err := w.Next(ctx)
			if err != nil || string(e.Value) == value {
				return err
			}
		}
	}, nil
}
