package iavlsynctest

import (
	"encoding/binary"
	"errors"

	"github.com/starling-kv/starling/cosmos/iavlsync"
)

// Reader is an iavlsync.Reader of naive trees. It counts the nodes that were read.
type Reader struct {
	Reads int
	keys  map[*Node][]byte
	nodes map[string]*Node
}

// Key returns the key with which Node finds n, or nil if n is nil.
func (r *Reader) Key(n *Node) []byte {
	if n == nil {
		return nil
	}
	if r.keys == nil {
		r.keys, r.nodes = map[*Node][]byte{}, map[string]*Node{}
	}
	if r.keys[n] == nil {
		r.keys[n] = binary.AppendUvarint(nil, uint64(len(r.keys)))
		r.nodes[string(r.keys[n])] = n
	}
	return r.keys[n]
}

// Node implements iavlsync.Reader.
func (r *Reader) Node(key []byte) (*iavlsync.Node, error) {
	r.Reads++
	n := r.nodes[string(key)]
	if n == nil {
		return nil, errors.New("no such node")
	}
	return &iavlsync.Node{Height: uint8(n.height), Size: n.size, Version: n.Version, Hash: iavlsync.Hash(n.Hash()),
		Left: r.Key(n.Left), Right: r.Key(n.Right), Key: n.Key, Value: n.Value}, nil
}

// Cut returns the manifest of a state, built with iavlsync.Cut.
func (r *Reader) Cut(f iavlsync.Format, height int64, s State) (*iavlsync.Manifest, error) {
	m := &iavlsync.Manifest{Format: f, Height: height}
	for _, name := range s.Names() {
		store, err := iavlsync.Cut(f, height, name, r.Key(s[name]), r)
		if err != nil {
			return nil, err
		}
		m.Stores = append(m.Stores, store)
	}
	return m, nil
}
