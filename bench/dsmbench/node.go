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

// node is a storage node of one range. Its headers come from the parent, which replaces CometBFT
// and the light client.
type node struct {
	replica *server.Replica
	store   *rangestore.Store
	log     *server.RedoLog
	node    *server.Server
	server  *tcp.Server
	address string
	headers headers
	end     func() error // stops Run, and returns its error
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

// openStore opens the store of a storage node's range.
func openStore(b begin) (*rangestore.Store, error) {
	memory := cmp.Or(b.PagedBytes, memoryBytes)
	return rangestore.Open(rangestore.Options{
		Dir: filepath.Join(b.Dir, "state"), FS: vfs.Default, Keys: b.Range.tree(), ChainID: chainID, Memory: rangestore.NewMemory(memory),
	})
}

func openNode(b begin) (_ worker, a answer, err error) {
	storagenode.LimitGarbage() // as starlingd storage start does
	n := &node{headers: headers{hashes: map[int64]avlstar.Hash{}}}
	store, err := openStore(b)
	if err != nil {
		return nil, a, err
	}
	n.log, err = server.OpenRedoLog(server.RedoOptions{FS: vfs.Default, Dir: filepath.Join(b.Dir, "log"), Label: []byte(chainID)})
	if err != nil {
		return nil, a, errors.Join(err, store.Close())
	}
	if n.replica, err = server.Open(context.Background(), server.Options{
		Range: b.Range.tree(), Store: store, Log: n.log, Headers: &n.headers, ServeHeights: b.Heights,
	}); err != nil {
		return nil, a, errors.Join(err, store.Close(), n.log.Close())
	}
	n.store = store
	if n.node, err = server.NewServer(server.ServerOptions{}, n.replica); err != nil {
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
		a.Written = n.store.Metrics().WrittenBytes
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

// close closes the replica and its log.
func (n *node) close() error { return errors.Join(n.replica.Close(), n.log.Close()) }
