package clientbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/internal/ports"
)

// etcdRequest and etcdAnswer are the lines that bench/etcdstore describes.
type etcdRequest struct {
	Op        string   `json:"op"`
	Name      string   `json:"name,omitempty"`
	Dir       string   `json:"dir,omitempty"`
	Client    string   `json:"client,omitempty"`
	Peer      string   `json:"peer,omitempty"`
	Cluster   string   `json:"cluster,omitempty"`
	Endpoints []string `json:"endpoints,omitempty"`
	Keys      int      `json:"keys,omitempty"`
	Value     int      `json:"value,omitempty"`
	Range     int      `json:"range,omitempty"`
	What      string   `json:"what,omitempty"`
	Workers   int      `json:"workers,omitempty"`
	Millis    int64    `json:"millis,omitempty"`
	Seed      uint64   `json:"seed,omitempty"`
}

type etcdAnswer struct {
	Error   string  `json:"error"`
	Nanos   []int64 `json:"nanos"`
	Seconds float64 `json:"seconds"`
}

// Failure returns the child's error.
func (a *etcdAnswer) Failure() string { return a.Error }

// etcd is a cluster and a client, processes all.
type etcd struct {
	o       Options
	members []*harness.Process
	client  *harness.Process
}

func startEtcd(ctx context.Context, o Options, program, dir string) (store, error) {
	e := &etcd{o: o}
	if err := e.start(ctx, program, dir); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *etcd) start(ctx context.Context, program, dir string) error {
	held, err := ports.Hold(2 * members)
	if err != nil {
		return err
	}
	defer held.Release()
	requests := make([]etcdRequest, members)
	var cluster, endpoints []string
	for i := range requests {
		name := fmt.Sprintf("member-%d", i)
		requests[i] = etcdRequest{
			Op: "member", Name: name, Dir: filepath.Join(dir, name), Client: "http://" + held.Address(2*i), Peer: "http://" + held.Address(2*i+1),
		}
		cluster = append(cluster, name+"="+requests[i].Peer)
		endpoints = append(endpoints, requests[i].Client)
	}
	for i := range requests {
		p, err := harness.StartProgram(ctx, requests[i].Name, program)
		if err != nil {
			return err
		}
		e.members = append(e.members, p)
		requests[i].Cluster = strings.Join(cluster, ",")
	}
	held.Release()
	// Each waits for the others.
	errs := make([]error, members)
	var wg sync.WaitGroup
	for i, p := range e.members {
		wg.Go(func() { errs[i] = p.Ask(requests[i], new(etcdAnswer)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if e.client, err = harness.StartProgram(ctx, nameEtcd+"'s client", program); err != nil {
		return err
	}
	return e.client.Ask(etcdRequest{Op: "client", Endpoints: endpoints, Keys: e.o.Keys, Value: e.o.ValueBytes, Range: e.o.RangeKeys}, new(etcdAnswer))
}

func (e *etcd) close() error {
	e.client.End()
	var wg sync.WaitGroup
	for _, p := range e.members {
		wg.Go(p.End)
	}
	wg.Wait()
	return nil
}

func (e *etcd) load(context.Context) error {
	return e.client.Ask(etcdRequest{Op: "load"}, new(etcdAnswer))
}

func (e *etcd) run(_ context.Context, what string, seed uint64) (Figures, error) {
	var a etcdAnswer
	err := e.client.Ask(etcdRequest{Op: "run", What: what, Workers: e.o.Workers, Millis: int64(e.o.Seconds) * 1000, Seed: seed}, &a)
	return newFigures(a.Nanos, a.Seconds), err
}
