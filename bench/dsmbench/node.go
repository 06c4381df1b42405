package dsmbench

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/node/storagenode"
	"github.com/starling-kv/starling/storage/rangestore"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// node is a storage node. Its headers come from the parent, which replaces CometBFT and the light
// client.
type node struct {
	replicas []*server.Replica
	stores   []*rangestore.Store
	log      *server.RedoLog
	node     *server.Server
	server   *tcp.Server
	address  string
	headers  headers
	end      func() error // stops Run, and returns its error
}

// headers has the app hashes that the parent announced.
type headers struct {
	mu     sync.Mutex
	hashes map[int64]avlstar.Hash
}

// AppHash implements server.Headers.
func (h *headers) AppHash(height int64) (avlstar.Hash, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash, ok := h.hashes[height]
	return hash, ok
}

// openStore opens the store of a storage node's range i.
func openStore(b begin, i int, memory *rangestore.Memory) (*rangestore.Store, error) {
	return rangestore.Open(rangestore.Options{
		Dir: filepath.Join(b.Dir, fmt.Sprint("state-", i)), FS: vfs.Default, Keys: b.Ranges[i].tree(), ChainID: chainID, Memory: memory,
	})
}

// newMemory returns the memory that the stores of a storage node share.
func newMemory(b begin) *rangestore.Memory {
	return rangestore.NewMemory(cmp.Or(b.PagedBytes, memoryBytes))
}

// open opens the replica of range i.
func (n *node) open(b begin, i int, memory *rangestore.Memory) error {
	store, err := openStore(b, i, memory)
	if err != nil {
		return err
	}
	replica, err := server.Open(context.Background(), server.Options{
		Range: b.Ranges[i].tree(), Store: store, Log: n.log, Headers: &n.headers, ServeHeights: b.Heights,
	})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	n.replicas, n.stores = append(n.replicas, replica), append(n.stores, store)
	return nil
}

func openNode(b begin) (_ worker, a answer, err error) {
	storagenode.LimitGarbage() // as starlingd storage start does
	n := &node{headers: headers{hashes: map[int64]avlstar.Hash{}}}
	n.log, err = server.OpenRedoLog(server.RedoOptions{FS: vfs.Default, Dir: filepath.Join(b.Dir, "log"), Label: []byte(chainID)})
	if err != nil {
		return nil, a, err
	}
	memory := newMemory(b)
	for i := range b.Ranges {
		if err := n.open(b, i, memory); err != nil {
			return nil, a, errors.Join(err, n.close())
		}
	}
	if n.node, err = server.NewServer(server.ServerOptions{}, n.replicas...); err != nil {
		return nil, a, errors.Join(err, n.close())
	}
	mux := new(transport.Mux)
	n.node.Register(mux)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err == nil {
		n.server, err = tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: chainID, Handler: mux})
	}
	if err != nil {
		return nil, a, errors.Join(err, n.close())
	}
	n.address = transport.Address{ID: tcp.IDOf(key.Public().(ed25519.PublicKey)), HostPort: n.server.Addr().String()}.String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.node.Run(ctx) }()
	n.end = func() error {
		cancel()
		return <-ended
	}
	a.Address = n.address
	return n, a, nil
}

// Do implements child.Worker.
func (n *node) Do(r request, _ *bufio.Reader) (a answer, err error) {
	switch r.Op {
	case opUsage:
		a.CPU, a.RSS = harness.CPUTime().Seconds(), harness.OwnMemory().Anon
		for _, s := range n.stores {
			a.Written += s.Metrics().WrittenBytes
		}
	case opProve:
		n.headers.mu.Lock()
		for i, hash := range r.Hashes {
			n.headers.hashes[r.Height+int64(i)] = hash
		}
		n.headers.mu.Unlock()
		n.node.Proved()
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	return a, err
}

// Close implements child.Worker.
func (n *node) Close() error { return errors.Join(n.server.Close(), n.end(), n.close()) }

// close closes the replicas and their log.
func (n *node) close() (err error) {
	for _, r := range n.replicas {
		err = errors.Join(err, r.Close())
	}
	return errors.Join(err, n.log.Close())
}
