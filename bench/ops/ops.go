// Package ops measures the operations of one store of a Cosmos SDK chain, in the store's own
// process, for a parent that it talks to over a pipe.
//
//	           stdin: a JSON line, then the changes it announces
//	parent ───────────────────────────────────────────────────▶ Serve ──▶ Store: one of starling-bench's contestants
//	       ◀───────────────────────────────────────────────────
//	           stdout: a JSON line for each
//
// It is a module of its own, and has no dependencies: stores that need different versions of IAVL,
// which no program can have together, are measured by the same lines.
//
// What is timed begins with sorted changes, since the SDK's cache hands them over so to every
// store, and ends with what the node waits for before it answers Commit.
package ops

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Request is a line from the parent. Commit, get and prove are followed by N changes (see
// ReadChanges); of get and prove only the keys count.
type Request struct {
	Op string `json:"op"` // open, commit, get, prove, iterate, memory, settle
	N  int    `json:"n,omitempty"`
	// Procs of a commit: the processors that Go may use; 0: all.
	Procs int `json:"procs,omitempty"`
	// Of open, which is the first request: the store's name, and the folder of its databases.
	Store string `json:"store,omitempty"`
	Dir   string `json:"dir,omitempty"`
}

// Name is for Answers.
func (r Request) Name() string { return r.Op }

// Answer is the line for a request: Error, or the fields of its op.
type Answer struct {
	Error string `json:"error,omitempty"`
	// Nanos are all of open and commit; of one key each of get, prove and iterate.
	Nanos int64  `json:"nanos,omitempty"`
	Set   int64  `json:"set,omitempty"`   // of a commit: nanoseconds for the changes before it
	Root  []byte `json:"root,omitempty"`  // of the one store, after open and commit
	Bytes int    `json:"bytes,omitempty"` // prove: a proof's length; memory: anonymous memory
}

// Change puts a value or, where Value is nil, deletes a key.
type Change struct{ Key, Value []byte }

// Store is a multi-store with one store. It is for one goroutine. Keys and values are changed
// neither by it nor by who calls it.
type Store interface {
	// Change takes the changes of a block, in key order.
	Change(changes []Change) error
	// Commit makes the block a version, and waits for what a node waits for.
	Commit() error
	// Root is the store's root after Open, Commit and Settle.
	Root() []byte
	// Get returns nil or what is empty for a key that is absent.
	Get(key []byte) []byte
	// Iterate reads n entries from the first on, and returns how many there were.
	Iterate(n int) (int, error)
	// Prove returns the length of an ICS-23 proof of a key in the newest version.
	Prove(key []byte) (bytes int, err error)
	// Settle does what a node does in the background at its interval, so that it opens quickly.
	Settle() error
	Close() error
}

// Open opens the databases of the store of a name, in a folder of its own.
type Open func(name, dir string) (Store, error)

type server struct {
	open   Open
	c      Store // nil before the request to open
	before int   // anonymous memory then
}

// Failure implements harness.Answer.
func (a *Answer) Failure() string { return a.Error }

// Serve answers requests until there are no more; open opens the store, at the first. An
// error ends it, since changes that follow the request may be unread.
func Serve(open Open, stdin io.Reader, stdout io.Writer) (err error) {
	s := &server{open: open}
	defer func() {
		if s.c != nil {
			err = errors.Join(err, s.c.Close())
		}
	}()
	return Answers(stdin, stdout, s.answer)
}

func (s *server) answer(r Request, in *bufio.Reader) (a Answer, err error) {
	if r.Op == "open" {
		s.before = anonymous()
		from := time.Now()
		s.c, err = s.open(r.Store, r.Dir)
		if err == nil {
			a = Answer{Nanos: time.Since(from).Nanoseconds(), Root: s.c.Root()}
		}
		return a, err
	}
	if s.c == nil {
		return a, errors.New("it is not open")
	}
	var changes []Change
	if slices.Contains([]string{"commit", "get", "prove"}, r.Op) {
		if changes, err = ReadChanges(in, r.N); err != nil {
			return a, err
		}
	}
	switch r.Op {
	case "commit":
		return s.commit(changes, r.Procs)
	case "get":
		return s.get(changes)
	case "prove":
		return s.prove(changes)
	case "iterate":
		from := time.Now()
		n, err := s.c.Iterate(r.N)
		if err == nil && n != r.N {
			err = fmt.Errorf("%d entries of %d", n, r.N)
		}
		return Answer{Nanos: time.Since(from).Nanoseconds() / int64(max(n, 1))}, err
	case "memory":
		return Answer{Bytes: anonymous() - s.before}, nil
	case "settle":
		return a, s.c.Settle()
	}
	return a, errors.New("no such request")
}

func (s *server) commit(changes []Change, procs int) (Answer, error) {
	if procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	}
	slices.SortFunc(changes, func(a, b Change) int { return bytes.Compare(a.Key, b.Key) })
	from := time.Now()
	if err := s.c.Change(changes); err != nil {
		return Answer{}, err
	}
	set := time.Since(from)
	if err := s.c.Commit(); err != nil {
		return Answer{}, err
	}
	return Answer{Nanos: time.Since(from).Nanoseconds(), Set: set.Nanoseconds(), Root: s.c.Root()}, nil
}

func (s *server) get(keys []Change) (Answer, error) {
	found := 0
	from := time.Now()
	for _, c := range keys {
		if len(s.c.Get(c.Key)) > 0 {
			found++
		}
	}
	took := time.Since(from)
	if found != len(keys) {
		return Answer{}, fmt.Errorf("%d of %d keys were found", found, len(keys))
	}
	return Answer{Nanos: took.Nanoseconds() / int64(max(len(keys), 1))}, nil
}

func (s *server) prove(keys []Change) (Answer, error) {
	total := 0
	from := time.Now()
	for _, c := range keys {
		n, err := s.c.Prove(c.Key)
		if err != nil {
			return Answer{}, err
		}
		total += n
	}
	n := max(len(keys), 1)
	return Answer{Nanos: time.Since(from).Nanoseconds() / int64(n), Bytes: total / n}, nil
}

// anonymous returns the bytes of this process's anonymous resident memory after a garbage
// collection, 0 where the system does not tell.
func anonymous() int {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kib int
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}
