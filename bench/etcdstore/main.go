// Command etcdstore is etcd as a contestant of starling-bench, which builds it and talks to it over
// pipes.
//
//	            stdin: a JSON line for each request
//	parent ─────────────────────────────────────────▶ member ◀──┐  embed.Etcd, one process each
//	   │   ◀─────────────────────────────────────────           │ raft
//	   │        stdout: a JSON line for each answer   member ◀──┤
//	   │                                              member ◀──┘
//	   └────────────────────────────────────────────▶ client ──gRPC──▶ all members
//
// It is a module of its own because etcd needs other versions of gRPC and of forty more modules
// than the rest of the benchmark. Everything is configured as etcd does by default: each write is
// synced to the log of a majority before it is acknowledged.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Request is a line from the parent. The first one says what the process is: a member or a client.
type Request struct {
	Op string `json:"op"` // member; client; load, run

	// Of member.
	Name    string `json:"name,omitempty"`
	Dir     string `json:"dir,omitempty"`
	Client  string `json:"client,omitempty"` // URLs to listen at
	Peer    string `json:"peer,omitempty"`
	Cluster string `json:"cluster,omitempty"` // NAME=URL,… of all members

	// Of client.
	Endpoints []string `json:"endpoints,omitempty"`
	Keys      int      `json:"keys,omitempty"`
	Value     int      `json:"value,omitempty"` // bytes of a value
	Range     int      `json:"range,omitempty"` // keys of a range

	// Of run.
	What    string `json:"what,omitempty"` // of operations
	Workers int    `json:"workers,omitempty"`
	Millis  int64  `json:"millis,omitempty"`
	Seed    uint64 `json:"seed,omitempty"`
}

// Answer is the line for a request: Error, or the fields of its op.
type Answer struct {
	Error   string  `json:"error,omitempty"`
	Nanos   []int64 `json:"nanos,omitempty"`   // of run: how long each operation took
	Seconds float64 `json:"seconds,omitempty"` // of run: all together
}

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "etcdstore: only starling-bench runs this program, without arguments")
		os.Exit(2)
	}
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "etcdstore: %v\n", err)
		os.Exit(1)
	}
}

// serve answers requests until there are no more.
func serve(ctx context.Context, stdin io.Reader, stdout io.Writer) (err error) {
	s := &server{}
	defer func() { err = errors.Join(err, s.close()) }()
	in, out := json.NewDecoder(stdin), bufio.NewWriter(stdout)
	for {
		var r Request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("an unreadable request: %w", err)
		}
		a, err := s.answer(ctx, r)
		if err != nil {
			a = Answer{Error: fmt.Sprintf("%s: %v", r.Op, err)}
		}
		if err := errors.Join(json.NewEncoder(out).Encode(a), out.Flush()); err != nil {
			return err
		}
	}
}

// server is a member or a client.
type server struct {
	member *member
	client *client
}

func (s *server) answer(ctx context.Context, r Request) (a Answer, err error) {
	switch {
	case r.Op == "member" && s.member == nil:
		s.member, err = startMember(r)
		return a, err
	case r.Op == "client" && s.client == nil:
		s.client, err = connect(r)
		return a, err
	case r.Op == "load" && s.client != nil:
		return a, s.client.load(ctx)
	case r.Op == "run" && s.client != nil:
		return s.client.run(ctx, r)
	}
	return a, errors.New("this process does not know it, or not now")
}

func (s *server) close() (err error) {
	if s.client != nil {
		err = s.client.close()
	}
	if s.member != nil {
		s.member.close()
	}
	return err
}
