// Command etcdstore runs etcd as an opponent of starling-bench, which builds it and talks to it
// over pipes (internal/child).
//
//	parent ──▶ member ◀──┐  embed.Etcd, one process each
//	   │                 │ raft
//	   ├─────▶ member ◀──┤
//	   ├─────▶ member ◀──┘
//	   └─────▶ client ──gRPC──▶ all members
//
// It is a program of its own, so that etcd is not linked into the other benchmarks. The
// configuration is etcd's default: each write is synced to the log of a majority before it is
// acknowledged.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/starling-kv/starling/bench/clientbench"
	"github.com/starling-kv/starling/internal/child"
)

type (
	begin   = clientbench.EtcdBegin
	request = clientbench.EtcdRequest
	answer  = clientbench.EtcdAnswer
)

func main() {
	err := child.Run(os.Stdin, os.Stdout, func(b begin) (w child.Worker[request, answer], a answer, err error) {
		if b.Name != "" {
			w, err = startMember(b)
		} else {
			w, err = connect(b)
		}
		return w, a, err
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "etcdstore: %v\n", err)
		os.Exit(1)
	}
}

// Do implements child.Worker. A member takes no requests.
func (m *member) Do(request, *bufio.Reader) (a answer, err error) {
	return a, errors.New("this process is a member, which takes no requests")
}

// Do implements child.Worker.
func (c *client) Do(r request, _ *bufio.Reader) (a answer, err error) {
	ctx := context.Background() // the parent kills this process if it gives up
	if r.What == "" {
		return a, c.load(ctx)
	}
	work := make([]clientbench.Operation, r.Workers)
	for i := range work {
		do, end, err := c.operation(ctx, r.What, i)
		if err != nil {
			return a, err
		}
		defer end()
		work[i] = do
	}
	a.Nanos, a.Seconds, err = clientbench.Repeat(ctx, work, r.Seed, r.Time)
	return a, err
}
