package config

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// StorageNodes lists the storage nodes of each key range of a sharded state, and their addresses.
// The operator's file is trusted; the nodes' responses are verified.
type StorageNodes struct {
	Ranges *dsm.Ranges
	// Addresses are the nodes' transports, with their IDs, by the node's name in Ranges, which is
	// its ID.
	Addresses map[dsm.NodeID]transport.Address
}

// storageNodesFile is the content of the file.
type storageNodesFile struct {
	Ranges []struct {
		First *string  `toml:"first"`
		Nodes []string `toml:"nodes"`
	} `toml:"range"`
}

// DefaultStorageNodesFile is the default path of the file, relative to the home folder.
const DefaultStorageNodesFile = "config/storage_nodes.toml"

// LoadStorageNodes reads the storage nodes file, whose path is relative to the home folder:
//
//	[[range]]
//	first = ""                   # text, or hex after 0x; each range ends where the next begins
//	nodes = ["ID@HOST:PORT"]     # transports of the storage nodes that keep it
//
// The error matches ErrInvalid.
func LoadStorageNodes(home, path string) (*StorageNodes, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(home, path)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, Invalid(fmt.Errorf("%q is missing, which lists the key ranges and their storage nodes: create it with `starlingd storage ranges`, or copy it from a validator", path))
	} else if err != nil {
		return nil, err
	}
	s, err := ParseStorageNodes(b)
	if err != nil {
		return nil, Invalid(fmt.Errorf("%s: %w", path, err))
	}
	return s, nil
}

// ParseStorageNodes parses the content of the storage nodes file.
func ParseStorageNodes(b []byte) (*StorageNodes, error) {
	var file storageNodesFile
	d := toml.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	if len(file.Ranges) == 0 {
		return nil, errors.New("the file has no [[range]]")
	}
	s := &StorageNodes{Addresses: make(map[dsm.NodeID]transport.Address)}
	shards := make([]dsm.Placement, len(file.Ranges))
	for i, r := range file.Ranges {
		first, err := parseFirst(r.First)
		if err != nil {
			return nil, fmt.Errorf("range %d: %w", i+1, err)
		}
		shards[i].Range.First = first
		if i > 0 {
			if bytes.Compare(shards[i-1].Range.First, first) >= 0 {
				return nil, fmt.Errorf("range %d begins with %q, which is not above %q, the beginning of the previous range", i+1, first, shards[i-1].Range.First)
			}
			shards[i-1].Range.After = first
		} else if len(first) > 0 {
			return nil, fmt.Errorf("no range covers the keys below %q: the first one begins with \"\"", first)
		}
		for _, name := range r.Nodes {
			a, err := transport.ParseAddress(name)
			if err == nil && a.ID == "" {
				err = errors.New("the node's ID is missing: use ID@HOST:PORT")
			}
			if err != nil {
				return nil, fmt.Errorf("range %d: node %q: %w", i+1, name, err)
			}
			node := dsm.NodeID(a.ID)
			if other, ok := s.Addresses[node]; ok && other != a {
				return nil, fmt.Errorf("node %s has two addresses, %s and %s", a.ID, other.HostPort, a.HostPort)
			}
			s.Addresses[node] = a
			shards[i].Replicas = append(shards[i].Replicas, node)
		}
		if len(r.Nodes) == 0 {
			return nil, fmt.Errorf("range %d, from %q, has no nodes", i+1, first)
		}
	}
	var err error
	s.Ranges, err = dsm.NewRanges(shards)
	return s, err
}

func parseFirst(s *string) ([]byte, error) {
	if s == nil {
		return nil, errors.New(`"first" is missing`)
	}
	digits, isHex := strings.CutPrefix(*s, "0x")
	if !isHex {
		return []byte(*s), nil
	}
	first, err := hex.DecodeString(digits)
	if err != nil {
		return nil, fmt.Errorf("first %q is not hex: %w", *s, err)
	}
	return first, nil
}
