package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/starling-kv/starling/bench/clientbench"
)

// client is one client of the cluster. All workers share its connection.
type client struct {
	kv    *clientv3.Client
	keys  int
	value int // bytes
	limit int // keys in a range
}

func connect(r begin) (*client, error) {
	kv, err := clientv3.New(clientv3.Config{Endpoints: r.Endpoints, DialTimeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return &client{kv: kv, keys: r.Keys, value: r.Value, limit: r.Range}, nil
}

// Close implements child.Worker.
func (c *client) Close() error { return c.kv.Close() }

func key(i int) string { return string(clientbench.Key(i)) }

func (c *client) newValue(random *rand.Rand) string {
	return string(clientbench.NewValue(random, c.value))
}

// atOnce is below etcd's limit of operations in a transaction, 128 (--max-txn-ops).
const atOnce = 100

// load writes all keys.
func (c *client) load(ctx context.Context) error {
	random := rand.New(rand.NewPCG(1, 0))
	write := func(puts []clientv3.Op) error {
		ctx, cancel := context.WithTimeout(ctx, clientbench.Patience)
		defer cancel()
		_, err := c.kv.Txn(ctx).Then(puts...).Commit()
		return err
	}
	for from := 0; from < c.keys; from += atOnce {
		var puts []clientv3.Op
		for i := from; i < min(from+atOnce, c.keys); i++ {
			puts = append(puts, clientv3.OpPut(key(i), c.newValue(random)))
		}
		if err := write(puts); err != nil {
			return err
		}
	}
	return nil
}

// operation returns the operation of this name for one worker. end releases its resources.
func (c *client) operation(ctx context.Context, what string, worker int) (do clientbench.Operation, end func(), err error) {
	get := func(options ...clientv3.OpOption) clientbench.Operation {
		return func(ctx context.Context, random *rand.Rand) error {
			answer, err := c.kv.Get(ctx, key(random.IntN(c.keys)), options...)
			if err == nil && len(answer.Kvs) != 1 {
				err = clientbench.ErrAbsent
			}
			return err
		}
	}
	scan := func(options ...clientv3.OpOption) clientbench.Operation {
		options = append(options, clientv3.WithLimit(int64(c.limit)), clientv3.WithRange("bench0"))
		return func(ctx context.Context, random *rand.Rand) error {
			answer, err := c.kv.Get(ctx, key(random.IntN(max(c.keys-c.limit, 1))), options...)
			if err == nil && len(answer.Kvs) != min(c.limit, c.keys) {
				err = clientbench.ErrAbsent
			}
			return err
		}
	}
	end = func() {}
	switch what {
	case clientbench.OpPut:
		do = func(ctx context.Context, random *rand.Rand) error {
			_, err := c.kv.Put(ctx, key(random.IntN(c.keys)), c.newValue(random))
			return err
		}
	case clientbench.OpGetOrdered:
		do = get()
	case clientbench.OpGet:
		do = get(clientv3.WithSerializable())
	case clientbench.OpRangeOrdered:
		do = scan()
	case clientbench.OpRange:
		do = scan(clientv3.WithSerializable())
	case clientbench.OpTxn:
		do = func(ctx context.Context, random *rand.Rand) error {
			k := key(random.IntN(c.keys))
			answer, err := c.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(k), "!=", 0)).
				Then(clientv3.OpPut(k, c.newValue(random))).Else(clientv3.OpGet(k)).Commit()
			if err == nil && !answer.Succeeded {
				err = clientbench.ErrAbsent
			}
			return err
		}
	case clientbench.OpWatch:
		return c.watch(ctx, worker)
	default:
		return nil, end, fmt.Errorf("unknown operation %q", what)
	}
	return do, end, nil
}

// watch measures the time from sending a put until its event arrives.
func (c *client) watch(ctx context.Context, worker int) (clientbench.Operation, func(), error) {
	k := fmt.Sprintf("bench/watched/%d", worker)
	ctx, end := context.WithCancel(ctx)
	// Wait until the server confirms the watch.
	giveUp := time.AfterFunc(clientbench.Patience, end)
	events := c.kv.Watch(clientv3.WithRequireLeader(ctx), k, clientv3.WithCreatedNotify())
	if created, ok := <-events; !giveUp.Stop() || !ok || !created.Created {
		end()
		return nil, func() {}, errors.New("the server did not confirm the watch")
	}
	return func(ctx context.Context, random *rand.Rand) error {
		value := c.newValue(random)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			if _, err := c.kv.Put(ctx, k, value); err != nil {
				cancel(err) // no effect if the event has arrived already
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
