package config

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/transport"
)

// StorageNodes is the map of a sharded state: its key ranges, the storage nodes of each, and their
// addresses. The operator's file is trusted; the nodes' responses are verified. It is immutable.
type StorageNodes struct {
	// Version grows with each change. 0: the file is not signed, and nodes do not exchange it.
	Version  uint64
	ChainID  string            // empty in a file that is not signed
	Operator ed25519.PublicKey // signs the map; nil if the file is not signed
	Ranges   *dsm.Ranges
	// Next are ranges that their nodes fill and keep up to date, to replace some of Ranges with a
	// later version: ascending, and none of them in Ranges.
	Next []dsm.Placement
	// Leaving are replicas of some of Ranges that the next version will not have.
	Leaving []dsm.Placement
	// Addresses are the nodes' transports, with their IDs, by the node's name in Ranges, which is
	// its ID.
	Addresses map[dsm.NodeID]transport.Address
	// Validators are the nodes whose updates have priority: ascending.
	Validators []transport.ID
	// Text is the content of the file.
	Text []byte
}

// storageNodesFile is the content of the file.
type storageNodesFile struct {
	Signature  string         `toml:"signature"`
	ChainID    string         `toml:"chain_id"`
	Version    uint64         `toml:"version"`
	Operator   string         `toml:"operator"`
	Validators []string       `toml:"validators"`
	Ranges     []storageRange `toml:"range"`
	Next       []storageRange `toml:"next"`
}

// storageRange is a range in the file.
type storageRange struct {
	First   *string  `toml:"first"`
	After   *string  `toml:"after"` // of a next range
	Nodes   []string `toml:"nodes"`
	Leaving []string `toml:"leaving"` // of a current range: IDs of some of its nodes
}

// DefaultStorageNodesFile is the default path of the file, relative to the home folder.
const DefaultStorageNodesFile = "config/storage_nodes.toml"

// StorageNodesPath returns the path of the storage nodes file that a setting names, which may be
// relative to the home folder.
func StorageNodesPath(home, setting string) string {
	if filepath.IsAbs(setting) {
		return setting
	}
	return filepath.Join(home, setting)
}

// LoadStorageNodes reads the storage nodes file, whose path is relative to the home folder:
//
//	validators = ["ID"]          # optional: nodes whose updates have priority
//	[[range]]
//	first = ""                   # text, or hex after 0x; each range ends where the next begins
//	nodes = ["ID@HOST:PORT"]     # transports of the storage nodes that keep it
//
// A signed file begins with signature, chain_id, version and operator, and can have [[next]] ranges
// with first, after and nodes: see Sign. The error matches ErrInvalid.
func LoadStorageNodes(home, path string) (*StorageNodes, error) {
	path = StorageNodesPath(home, path)
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

// ParseStorageNodes parses the content of the storage nodes file, and verifies its signature if it
// has one.
func ParseStorageNodes(b []byte) (*StorageNodes, error) { return parseStorageNodes(b, true) }

func parseStorageNodes(b []byte, verify bool) (*StorageNodes, error) {
	var file storageNodesFile
	d := toml.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, malformed(err)
	}
	s := &StorageNodes{Version: file.Version, ChainID: file.ChainID, Addresses: make(map[dsm.NodeID]transport.Address), Text: b}
	if verify {
		if err := s.verify(file); err != nil {
			return nil, err
		}
	}
	if err := s.NameValidators(file.Validators); err != nil {
		return nil, err
	}
	if len(file.Ranges) == 0 {
		return nil, errors.New("the file has no [[range]]")
	}
	shards := make([]dsm.Placement, len(file.Ranges))
	var leaves []int // numbers of the ranges of Leaving
	for i, r := range file.Ranges {
		first, err := parseFirst(r.First)
		switch {
		case err != nil:
			return nil, fmt.Errorf("range %d: %w", i+1, err)
		case r.After != nil:
			return nil, fmt.Errorf("range %d has \"after\": it ends where the next one begins", i+1)
		case i > 0 && bytes.Compare(shards[i-1].Range.First, first) >= 0:
			return nil, fmt.Errorf("range %d begins with %q, which is not above %q, the beginning of the previous range", i+1, first, shards[i-1].Range.First)
		case i > 0:
			shards[i-1].Range.After = first
		case len(first) > 0:
			return nil, fmt.Errorf("no range covers the keys below %q: the first one begins with \"\"", first)
		}
		shards[i].Range.First = first
		if shards[i].Replicas, err = s.replicas(r.Nodes); err != nil {
			return nil, fmt.Errorf("range %d, from %q: %w", i+1, first, err)
		}
		if len(r.Leaving) > 0 {
			leaving := dsm.Placement{}
			for _, id := range r.Leaving {
				if !slices.Contains(shards[i].Replicas, dsm.NodeID(id)) {
					return nil, fmt.Errorf("range %d, from %q: leaving node %q is not one of its nodes", i+1, first, id)
				}
				leaving.Replicas = append(leaving.Replicas, dsm.NodeID(id))
			}
			s.Leaving = append(s.Leaving, leaving)
			leaves = append(leaves, i)
		}
	}
	for i, k := range leaves {
		s.Leaving[i].Range = shards[k].Range // its end is known now
	}
	var err error
	if s.Ranges, err = dsm.NewRanges(shards); err != nil {
		return nil, err
	}
	for i, r := range file.Next {
		next := dsm.Placement{}
		if next.Range.First, err = parseFirst(r.First); err == nil && r.After != nil {
			next.Range.After, err = parseFirst(r.After)
		}
		if err == nil {
			next.Replicas, err = s.replicas(r.Nodes)
		}
		if err != nil {
			return nil, fmt.Errorf("next range %d: %w", i+1, err)
		}
		s.Next = append(s.Next, next)
	}
	if verify && s.Version == 0 && len(s.Next)+len(s.Leaving) > 0 {
		return nil, errors.New("a file with [[next]] or leaving nodes must be signed: use `starlingd storage ranges sign`")
	}
	return s, s.Ranges.CheckNext(s.Next)
}

// NameValidators replaces Validators by nodes with these IDs.
func (s *StorageNodes) NameValidators(ids []string) error {
	s.Validators = nil
	for _, id := range ids {
		if err := transport.ID(id).Validate(); err != nil {
			return fmt.Errorf("validators: %w", err)
		}
		s.Validators = append(s.Validators, transport.ID(id))
	}
	slices.Sort(s.Validators)
	s.Validators = slices.Compact(s.Validators)
	return nil
}

// HasValidator reports whether Validators contains a node.
func (s *StorageNodes) HasValidator(id transport.ID) bool {
	_, has := slices.BinarySearch(s.Validators, id)
	return has
}

// replicas parses the nodes of a range, and adds their addresses.
func (s *StorageNodes) replicas(names []string) (replicas []dsm.NodeID, err error) {
	for _, name := range names {
		a, err := transport.ParseAddress(name)
		if err == nil && a.ID == "" {
			err = errors.New("the node's ID is missing: use ID@HOST:PORT")
		}
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", name, err)
		}
		node := dsm.NodeID(a.ID)
		if other, ok := s.Addresses[node]; ok && other != a {
			return nil, fmt.Errorf("node %s has two addresses, %s and %s", a.ID, other.HostPort, a.HostPort)
		}
		s.Addresses[node] = a
		replicas = append(replicas, node)
	}
	if len(names) == 0 {
		return nil, errors.New("it has no nodes")
	}
	return replicas, nil
}

// parseFirst parses a key; nil: the empty key.
func parseFirst(s *string) ([]byte, error) {
	if s == nil {
		return nil, errors.New(`"first" is missing`)
	}
	if *s == "" || *s == "0x" {
		return nil, nil
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
