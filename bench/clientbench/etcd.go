package clientbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/internal/ports"
)

// EtcdBegin configures a process of bench/etcdstore: a member if Name is set, otherwise the client.
type EtcdBegin struct {
	Name    string `json:"name,omitempty"`
	Dir     string `json:"dir,omitempty"`
	Client  string `json:"client,omitempty"` // listen URLs
	Peer    string `json:"peer,omitempty"`
	Cluster string `json:"cluster,omitempty"` // NAME=URL,… of all members

	// Settings of the client.
	Endpoints []string `json:"endpoints,omitempty"`
	Keys      int      `json:"keys,omitempty"`
	Value     int      `json:"value,omitempty"` // bytes of a value
	Range     int      `json:"range,omitempty"` // keys in a range
}

// EtcdRequest asks the client to write all keys or, if What is set, to repeat that operation.
type EtcdRequest struct {
	What    string        `json:"what,omitempty"`
	Workers int           `json:"workers,omitempty"`
	Time    time.Duration `json:"time,omitempty"`
	Seed    uint64        `json:"seed,omitempty"`
}

// EtcdAnswer is what Repeat returned.
type EtcdAnswer struct {
	Nanos   []int64 `json:"nanos,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// etcd is a cluster and a client, each in a process.
type etcd struct {
	o       Options
	members []*harness.Process
	client  *harness.Process
	end     context.CancelFunc // kills them
	late    *time.Timer        // calls end, until all keys are loaded
}

// etcdPatience limits the start and the load of etcd. Rarely, its members never find each other.
const etcdPatience = 2 * time.Minute

// buildEtcdStore builds bench/etcdstore, unless given names a program that is already built.
func buildEtcdStore(ctx context.Context, given string, progress *harness.Progress) (string, error) {
	return harness.Build(ctx, given, "bench/etcdstore", ".", progress)
}

func startEtcd(ctx context.Context, o Options, program, dir string) (store, error) {
	e := &etcd{o: o}
	ctx, e.end = context.WithCancel(ctx)
	e.late = time.AfterFunc(etcdPatience, e.end)
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
	begins := make([]EtcdBegin, members)
	var cluster, endpoints []string
	for i := range begins {
		name := fmt.Sprintf("member-%d", i)
		begins[i] = EtcdBegin{Name: name, Dir: filepath.Join(dir, name), Client: "http://" + held.Address(2*i), Peer: "http://" + held.Address(2*i+1)}
		cluster = append(cluster, name+"="+begins[i].Peer)
		endpoints = append(endpoints, begins[i].Client)
	}
	held.Release()
	// A member is ready only when the others are, so all are started at the same time.
	errs := make([]error, members)
	e.members = make([]*harness.Process, members)
	var wg sync.WaitGroup
	for i := range begins {
		begins[i].Cluster = strings.Join(cluster, ",")
		wg.Go(func() { e.members[i], errs[i] = harness.StartProgram(ctx, begins[i].Name, begins[i], nil, program) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.client, err = harness.StartProgram(ctx, nameEtcd+"'s client", EtcdBegin{Endpoints: endpoints, Keys: e.o.Keys, Value: e.o.ValueBytes, Range: e.o.RangeKeys}, nil, program)
	return err
}

func (e *etcd) close() error {
	e.late.Stop()
	defer e.end()
	e.client.End()
	var wg sync.WaitGroup
	for _, p := range e.members {
		wg.Go(p.End)
	}
	wg.Wait()
	return nil
}

func (e *etcd) load(context.Context) error {
	err := e.client.Ask(EtcdRequest{}, nil)
	if !e.late.Stop() {
		return errors.Join(fmt.Errorf("etcd did not start and load its keys within %v", etcdPatience), err)
	}
	return err
}

func (e *etcd) run(_ context.Context, what string, seed uint64) (Figures, error) {
	var a EtcdAnswer
	err := e.client.Ask(EtcdRequest{What: what, Workers: e.o.Workers, Time: time.Duration(e.o.Seconds) * time.Second, Seed: seed}, &a)
	return newFigures(a.Nanos, a.Seconds), err
}
