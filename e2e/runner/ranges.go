package runner

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// TransportOffset is the difference between a node's transport port and its p2p port.
const TransportOffset = 10

// Range is a range of keys of a sharded state, from First up to the First of the next range.
type Range struct {
	First string
	Nodes []string // its storage nodes, as ID@host:port of their transports
}

// Transport is the address of the node's transport for other nodes: ID@host:port.
func (h *Home) Transport() (string, error) { return h.TransportAt(h.at.P2P) }

// TransportAt is Transport for nodes that reach its p2p at another address, host:port.
func (h *Home) TransportAt(p2p string) (string, error) {
	at, err := TransportOf(p2p)
	return h.ID() + "@" + at, err
}

// TransportOf returns the address of a transport by that of its node's p2p, both host:port.
func TransportOf(p2p string) (string, error) {
	host, port, err := net.SplitHostPort(p2p)
	if err != nil {
		return "", err
	}
	number, err := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(number+TransportOffset)), err
}

// Divide divides the keys into ranges and assigns the storage nodes to them in turn: range i begins
// with first(i), and the first one with "".
func Divide(storage []*Home, ranges int, first func(i int) string) ([]Range, error) {
	divided := make([]Range, ranges)
	for i, h := range storage {
		name, err := h.Transport()
		if err != nil {
			return nil, err
		}
		r := &divided[i%ranges]
		r.Nodes = append(r.Nodes, name)
	}
	for i := 1; i < ranges; i++ {
		divided[i].First = first(i)
	}
	return divided, nil
}

// SetRanges writes the ranges and their storage nodes into the home.
func (h *Home) SetRanges(ranges []Range) error {
	var file strings.Builder
	for _, r := range ranges {
		names := make([]string, len(r.Nodes))
		for i, name := range r.Nodes {
			names[i] = strconv.Quote(name)
		}
		fmt.Fprintf(&file, "[[range]]\nfirst = %q\nnodes = [%s]\n\n", r.First, strings.Join(names, ", "))
	}
	return os.WriteFile(filepath.Join(h.Dir, "config", "storage_nodes.toml"), []byte(file.String()), 0o644)
}
