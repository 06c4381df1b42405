package dsmbench

import (
	"bufio"
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
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// node is a storage node of one range. Its headers come from the parent, which replaces CometBFT
// and the light client.
type node struct {
	replica *server.Replica
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

// replicaOptions returns the options of a replica in a folder. Parent and child must use the same
// ones.
func replicaOptions(dir string, r keyRange, h server.Headers) (server.Options, error) {
	label := fmt.Appendf(nil, "%s %x %x", chainID, r.First, r.After)
	disk, err := server.OpenFiles(vfs.Default, filepath.Join(dir, "states"), label)
	if err != nil {
		return server.Options{}, err
	}
	return server.Options{
		Range: r.tree(), Disk: disk, Headers: h,
		Log: server.LogOptions{FS: vfs.Default, Dir: filepath.Join(dir, "log"), Label: label},
	}, nil
}

func openNode(b begin) (_ worker, a answer, err error) {
	n := &node{headers: headers{hashes: map[int64]avlstar.Hash{}}}
	o, err := replicaOptions(b.Dir, b.Range, &n.headers)
	if err != nil {
		return nil, a, err
	}
	if n.replica, err = server.Open(o); err != nil {
		return nil, a, errors.Join(err, o.Disk.Close())
	}
	failed := make(chan error, 1)
	if n.node, err = server.NewServer(server.ServerOptions{Failed: func(err error) {
		select {
		case failed <- err:
		default: // keep only the first error
		}
	}}, n.replica); err != nil {
		return nil, a, errors.Join(err, n.replica.Close())
	}
	mux := new(transport.Mux)
	n.node.Register(mux)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err == nil {
		n.server, err = tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: chainID, Handler: mux})
	}
	if err != nil {
		return nil, a, errors.Join(err, n.replica.Close())
	}
	n.address = transport.Address{ID: tcp.IDOf(key.Public().(ed25519.PublicKey)), HostPort: n.server.Addr().String()}.String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.node.Run(ctx) }()
	n.end = func() error {
		cancel()
		err := <-ended
		select {
		case first := <-failed:
			return errors.Join(err, first)
		default:
			return err
		}
	}
	a.Address = n.address
	return n, a, nil
}

// Do implements child.Worker.
func (n *node) Do(r request, _ *bufio.Reader) (a answer, err error) {
	switch r.Op {
	case opUsage:
		a.CPU, a.RSS = harness.CPUTime().Seconds(), harness.OwnMemory().Anon
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
func (n *node) Close() error { return errors.Join(n.server.Close(), n.end(), n.replica.Close()) }
