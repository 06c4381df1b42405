package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// client is one client of the cluster, whose connection all workers share.
type client struct {
	kv    *clientv3.Client
	keys  int
	value int // bytes
	limit int // keys of a range
}

func connect(r Request) (*client, error) {
	kv, err := clientv3.New(clientv3.Config{Endpoints: r.Endpoints, DialTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return &client{kv: kv, keys: r.Keys, value: r.Value, limit: r.Range}, nil
}

func (c *client) close() error { return c.kv.Close() }

// key and newValue are those of the parent's starling.go.
func key(i int) string { return fmt.Sprintf("bench/%08d", i) }

func (c *client) newValue(random *rand.Rand) string {
	text := fmt.Sprintf("%016x", random.Uint64())
	return text + strings.Repeat("x", max(c.value-len(text), 0))
}

// atOnce is below the limit of the operations of a transaction, 128 (--max-txn-ops).
const atOnce = 100

// load writes all keys.
func (c *client) load(ctx context.Context) error {
	random := rand.New(rand.NewPCG(1, 0))
	for from := 0; from < c.keys; from += atOnce {
		var puts []clientv3.Op
		for i := from; i < min(from+atOnce, c.keys); i++ {
			puts = append(puts, clientv3.OpPut(key(i), c.newValue(random)))
		}
		if _, err := c.kv.Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// operation is one of those that are measured.
type operation func(ctx context.Context, random *rand.Rand) error

var errAbsent = errors.New("a key that was written is absent")

// operation returns one by its name, for one worker. end releases what it holds.
func (c *client) operation(ctx context.Context, what string, worker int) (do operation, end func(), err error) {
	get := func(options ...clientv3.OpOption) operation {
		return func(ctx context.Context, random *rand.Rand) error {
			answer, err := c.kv.Get(ctx, key(random.IntN(c.keys)), options...)
			if err == nil && len(answer.Kvs) != 1 {
				err = errAbsent
			}
			return err
		}
	}
	scan := func(options ...clientv3.OpOption) operation {
		options = append(options, clientv3.WithLimit(int64(c.limit)), clientv3.WithRange("bench0"))
		return func(ctx context.Context, random *rand.Rand) error {
			answer, err := c.kv.Get(ctx, key(random.IntN(max(c.keys-c.limit, 1))), options...)
			if err == nil && len(answer.Kvs) != min(c.limit, c.keys) {
				err = errAbsent
			}
			return err
		}
	}
	end = func() {}
	switch what {
	case "put":
		do = func(ctx context.Context, random *rand.Rand) error {
			_, err := c.kv.Put(ctx, key(random.IntN(c.keys)), c.newValue(random))
			return err
		}
	case "get, ordered":
		do = get()
	case "get":
		do = get(clientv3.WithSerializable())
	case "range, ordered":
		do = scan()
	case "range":
		do = scan(clientv3.WithSerializable())
	case "transaction":
		do = func(ctx context.Context, random *rand.Rand) error {
			k := key(random.IntN(c.keys))
			answer, err := c.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(k), "!=", 0)).
				Then(clientv3.OpPut(k, c.newValue(random))).Else(clientv3.OpGet(k)).Commit()
			if err == nil && !answer.Succeeded {
				err = errAbsent
			}
			return err
		}
	case "watch":
		return c.watch(ctx, worker)
	default:
		return nil, end, fmt.Errorf("unknown operation %q", what)
	}
	return do, end, nil
}

// watch measures from the sending of a put until the event of it is there.
func (c *client) watch(ctx context.Context, worker int) (operation, func(), error) {
	k := fmt.Sprintf("bench/watched/%d", worker)
	ctx, end := context.WithCancel(ctx)
	// the server has confirmed the watch
	events := c.kv.Watch(clientv3.WithRequireLeader(ctx), k, clientv3.WithCreatedNotify())
	if created, ok := <-events; !ok || !created.Created {
		end()
		return nil, func() {}, errors.New("the watch is not there")
	}
	return func(ctx context.Context, random *rand.Rand) error {
		value := c.newValue(random)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			if _, err := c.kv.Put(ctx, k, value); err != nil {
				cancel(err) // unless the event has ended the wait already
			}
		}()
		for {
			select {
			case answer, ok := <-events:
				if !ok || answer.Err() != nil {
					return errors.Join(errors.New("the watch ended"), answer.Err())
				}
				for _, e := range answer.Events {
					if string(e.Kv.Value) == value {
						return nil
					}
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}, end, nil
}

// run repeats an operation with many workers. It is the parent's repeat.
func (c *client) run(ctx context.Context, r Request) (Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make([]operation, r.Workers)
	for i := range work {
		do, end, err := c.operation(ctx, r.What, i)
		if err != nil {
			return Answer{}, err
		}
		defer end()
		work[i] = do
	}
	took := make([][]int64, r.Workers)
	began := time.Now()
	until := began.Add(time.Duration(r.Millis) * time.Millisecond)
	var workers sync.WaitGroup
	for i, do := range work {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i)))
			for time.Now().Before(until) && ctx.Err() == nil {
				at := time.Now()
				if err := do(ctx, random); err != nil {
					cancel(fmt.Errorf("%s: %w", r.What, err))
					return
				}
				took[i] = append(took[i], int64(time.Since(at)))
			}
		})
	}
	workers.Wait()
	a := Answer{Seconds: time.Since(began).Seconds()}
	for _, list := range took {
		a.Nanos = append(a.Nanos, list...)
	}
	return a, context.Cause(ctx)
}
