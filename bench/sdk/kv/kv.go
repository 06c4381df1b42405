// Package kv measures the operations of one store of a Cosmos SDK chain, in a process of the
// store's own.
//
//	starling   our rootmulti   ─▶ AVL* in memory ─▶ goleveldb (records), Starling's state store
//	iavl       the SDK's       ─▶ iavl v1.2.6    ─▶ goleveldb
//	memiavl    memiavl.DB      ─▶ its log
//
// Timing starts with sorted changes, because the SDK's cache sorts changes for every store. It ends
// when a node would respond to Commit.
package kv

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/crypto-org-chain/cronos/memiavl"

	"github.com/starling-kv/starling/bench/sdk/usage"
	"github.com/starling-kv/starling/internal/child"
)

// Begin names the store and the folder of its databases.
type Begin struct {
	Store string `json:"store"`
	Dir   string `json:"dir"`
}

// Request is a request. commit, get and prove are followed by N changes; get and prove use only
// their keys.
type Request struct {
	Op string `json:"op"` // commit, get, prove, iterate, memory, settle
	N  int    `json:"n,omitempty"`
	// Procs is the number of processors for a commit; 0: all.
	Procs int `json:"procs,omitempty"`
}

// Answer has the fields of its request's op.
type Answer struct {
	// Nanos is the total time of begin and commit, and the time per key of get, prove and iterate.
	Nanos int64  `json:"nanos,omitempty"`
	Set   int64  `json:"set,omitempty"`   // commit: nanoseconds for the changes before Commit
	Root  []byte `json:"root,omitempty"`  // root of the store, after open and commit
	Bytes int    `json:"bytes,omitempty"` // prove: length of a proof; memory: anonymous memory
}

// Store is a multi-store with one store. It is not safe for concurrent use. Neither the store nor
// its caller modifies keys and values.
type Store interface {
	// Change applies the changes of a block, which are in key order.
	Change(changes []child.Change) error
	// Commit makes the block a version, and returns when a node would respond to Commit.
	Commit() error
	// Root returns the store's root after Open, Commit and Settle.
	Root() []byte
	// Get returns nil or an empty slice for an absent key.
	Get(key []byte) []byte
	// Iterate reads up to n entries from the first key, and returns their number.
	Iterate(n int) (int, error)
	// Prove returns the length of an ICS-23 proof of a key in the newest version.
	Prove(key []byte) (bytes int, err error)
	// Settle does what a node does in the background at intervals, so that the store opens quickly.
	Settle() error
	Close() error
}

// worker implements child.Worker.
type worker struct {
	Store
	before int64 // anonymous memory before opening the store
}

// Run runs a child process.
func Run(in io.Reader, out io.Writer) error {
	return child.Run(in, out, func(b Begin) (child.Worker[Request, Answer], Answer, error) {
		w := &worker{before: anonymous()}
		from := time.Now()
		s, err := open(b.Store, b.Dir)
		if err != nil {
			return nil, Answer{}, err
		}
		w.Store = s
		return w, Answer{Nanos: time.Since(from).Nanoseconds(), Root: s.Root()}, nil
	})
}

// open opens the databases of the named store in dir.
func open(name, dir string) (Store, error) {
	switch name {
	case "starling":
		return openStarling(dir, true)
	case "starling, not synced":
		return openStarling(dir, false)
	case "starling, tree alone":
		return openStarlingTree()
	case "iavl":
		return openIAVL(dir)
	case "memiavl":
		return openMemiavl(dir, 0)
	case "memiavl, log in commit":
		return openMemiavl(dir, -1)
	case "memiavl, log synced":
		return openSyncedMemiavl(dir)
	case "memiavl, tree alone":
		return &memiavlTree{memiavl.New(0)}, nil
	}
	return nil, fmt.Errorf("unknown store %q", name)
}

// Do implements child.Worker.
func (s *worker) Do(r Request, in *bufio.Reader) (a Answer, err error) {
	var changes []child.Change
	if slices.Contains([]string{"commit", "get", "prove"}, r.Op) {
		if changes, err = child.ReadChanges(in, r.N); err != nil {
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
		n, err := s.Iterate(r.N)
		if err == nil && n != r.N {
			err = fmt.Errorf("got %d of %d entries", n, r.N)
		}
		return Answer{Nanos: time.Since(from).Nanoseconds() / int64(max(n, 1))}, err
	case "memory":
		return Answer{Bytes: int(anonymous() - s.before)}, nil
	case "settle":
		return a, s.Settle()
	}
	return a, fmt.Errorf("unknown request %q", r.Op)
}

func (s *worker) commit(changes []child.Change, procs int) (Answer, error) {
	if procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	}
	slices.SortFunc(changes, func(a, b child.Change) int { return bytes.Compare(a.Key, b.Key) })
	from := time.Now()
	if err := s.Change(changes); err != nil {
		return Answer{}, err
	}
	set := time.Since(from)
	if err := s.Commit(); err != nil {
		return Answer{}, err
	}
	return Answer{Nanos: time.Since(from).Nanoseconds(), Set: set.Nanoseconds(), Root: s.Root()}, nil
}

func (s *worker) get(keys []child.Change) (Answer, error) {
	found := 0
	from := time.Now()
	for _, c := range keys {
		if len(s.Get(c.Key)) > 0 {
			found++
		}
	}
	took := time.Since(from)
	if found != len(keys) {
		return Answer{}, fmt.Errorf("found %d of %d keys", found, len(keys))
	}
	return Answer{Nanos: took.Nanoseconds() / int64(max(len(keys), 1))}, nil
}

func (s *worker) prove(keys []child.Change) (Answer, error) {
	total := 0
	from := time.Now()
	for _, c := range keys {
		n, err := s.Prove(c.Key)
		if err != nil {
			return Answer{}, err
		}
		total += n
	}
	n := max(len(keys), 1)
	return Answer{Nanos: time.Since(from).Nanoseconds() / int64(n), Bytes: total / n}, nil
}

// anonymous returns this process's anonymous memory after a garbage collection.
func anonymous() int64 {
	debug.FreeOSMemory()
	n, _ := usage.Memory()
	return n
}
