package dsmbench

import (
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
	"github.com/starling-kv/starling/dsm/storagenode"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

// node is a storage node of one range. Its headers come from the parent, which stands for CometBFT
// and the light client.
type node struct {
	replica *storagenode.Replica
	node    *storagenode.Node
	server  *tcp.Server
	address string
	headers headers
	end     func() error // of Run
}

// headers has the app hashes that the parent has named.
type headers struct {
	mu     sync.Mutex
	hashes map[int64]avlstar.Hash
}

// AppHash implements storagenode.Headers.
func (h *headers) AppHash(height int64) (avlstar.Hash, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash, ok := h.hashes[height]
	return hash, ok
}

// replicaOptions are those of a replica in a folder, which parent and child agree on.
func replicaOptions(dir string, r keyRange, h storagenode.Headers) (storagenode.Options, error) {
	label := fmt.Appendf(nil, "%s %x %x", chainID, r.First, r.After)
	disk, err := storagenode.OpenFiles(vfs.Default, filepath.Join(dir, "states"), label)
	if err != nil {
		return storagenode.Options{}, err
	}
	return storagenode.Options{
		Range: r.tree(), Disk: disk, Headers: h,
		Log: storagenode.LogOptions{FS: vfs.Default, Dir: filepath.Join(dir, "log"), Label: label},
	}, nil
}

func openNode(b begin) (*node, error) {
	n := &node{headers: headers{hashes: map[int64]avlstar.Hash{}}}
	o, err := replicaOptions(b.Dir, b.Range, &n.headers)
	if err != nil {
		return nil, err
	}
	if n.replica, err = storagenode.Open(o); err != nil {
		return nil, errors.Join(err, o.Disk.Close())
	}
	failed := make(chan error, 1)
	if n.node, err = storagenode.NewNode(storagenode.NodeOptions{Failed: func(err error) {
		select {
		case failed <- err:
		default: // the first one is enough
		}
	}}, n.replica); err != nil {
		return nil, errors.Join(err, n.replica.Close())
	}
	mux := new(transport.Mux)
	n.node.Register(mux)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err == nil {
		n.server, err = tcp.Listen("127.0.0.1:0", tcp.Options{Key: key, ChainID: chainID, Handler: mux})
	}
	if err != nil {
		return nil, errors.Join(err, n.replica.Close())
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
	return n, nil
}

// do implements role.
func (n *node) do(r request) (a answer, err error) {
	switch r.Op {
	case opBegin:
		a.Address = n.address
	case opUsage:
		a.CPU, a.RSS = harness.CPUTime().Total().Seconds(), harness.OwnMemory().Anon
	case opProve:
		n.headers.mu.Lock()
		for i, hash := range r.Hashes {
			n.headers.hashes[r.Height+int64(i)] = hash
		}
		n.headers.mu.Unlock()
		n.node.Proved()
	default:
		err = errNoSuchRequest
	}
	return a, err
}

func (n *node) close() error { return errors.Join(n.server.Close(), n.end(), n.replica.Close()) }
