// Package gethtrie keeps a benchmark's state in go-ethereum's Merkle Patricia trie. The caller
// stores the nodes.
//
//	changes ──▶ Commit ──▶ Node: path, hash, blob ──▶ hash scheme: key is the hash          (geth's hashdb)
//	                                              ├─▶ the same with ChainKV's prefix of the key: the depth, or the path
//	                                              └─▶ path scheme: key is 'A' ‖ path        (geth's pathdb)
//	account ──▶ Get, Prove ──▶ Read: the caller's blob of a path and a hash
//
// As in geth, an account's place in the trie is the Keccak-256 hash of its key.
package gethtrie

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb/memorydb"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/ethereum/go-ethereum/trie/trienode"
	"github.com/ethereum/go-ethereum/triedb/database"
)

// Hash is the hash of a node; that of the root is the root of the trie.
type Hash = common.Hash

// Empty is the root of a trie without accounts.
var Empty = types.EmptyRootHash

// Read returns the stored blob of a node, or nil if there is none. The trie only reads the blob.
type Read func(path []byte, hash Hash) ([]byte, error)

var _ database.NodeDatabase = Read(nil)

// NodeReader implements database.NodeDatabase: Read answers for every state.
func (r Read) NodeReader(Hash) (database.NodeReader, error) { return r, nil }

// Node implements database.NodeReader.
func (r Read) Node(_ Hash, path []byte, hash Hash) ([]byte, error) { return r(path, hash) }

// Change sets the value of an account, or deletes the account if Value is nil.
type Change struct{ Key, Value []byte }

// Node is a node that a commit stores, or deletes from its path if Blob is nil.
type Node struct {
	Path string
	Hash Hash
	Blob []byte
}

// place returns the key of an account in the trie.
func place(key []byte) []byte { return crypto.Keccak256(key) }

// HashKey returns the key of a node in geth's hash scheme (core/rawdb/accessors_trie.go,
// WriteLegacyTrieNode).
func HashKey(hash Hash) []byte { return hash.Bytes() }

// RowKey returns the key of a node with the row prefix of ChainKV (Chen et al., 2023, section 7.2):
// nodes of one depth are neighbours.
func RowKey(path []byte, hash Hash) []byte { return append([]byte{byte(len(path))}, hash.Bytes()...) }

// ColumnKey returns the key of a node with the column prefix of ChainKV: a node's neighbours are
// those below it. As in the hash scheme, a node that changes gets another key.
func ColumnKey(path []byte, hash Hash) []byte { return append(bytes.Clone(path), hash.Bytes()...) }

// PathKey returns the key of a node in geth's path scheme (core/rawdb/schema.go,
// accountTrieNodeKey).
func PathKey(path []byte) []byte { return append([]byte{'A'}, path...) }

// FlatKey returns the key of an account in geth's flat state, which the path scheme has in addition
// to the trie (core/rawdb/schema.go, accountSnapshotKey).
func FlatKey(key []byte) []byte { return append([]byte{'a'}, place(key)...) }

// HashOf returns the hash of a blob.
func HashOf(blob []byte) Hash { return crypto.Keccak256Hash(blob) }

// Commit applies changes to the trie with a root. It returns the new root, and the nodes that
// changed, children before parents.
func Commit(root Hash, read Read, changes []Change) (Hash, []Node, error) {
	next, all, _, err := CommitWitnessed(root, read, changes)
	return next, all, err
}

// CommitWitnessed is Commit, and returns the blobs of the old nodes that the changes needed: the
// witness of the changes, without duplicates.
func CommitWitnessed(root Hash, read Read, changes []Change) (next Hash, all []Node, witness map[string][]byte, err error) {
	t, err := trie.New(trie.StateTrieID(root), read)
	if err != nil {
		return root, nil, nil, err
	}
	for _, c := range changes {
		if c.Value == nil {
			err = t.Delete(place(c.Key))
		} else {
			err = t.Update(place(c.Key), c.Value)
		}
		if err != nil {
			return root, nil, nil, err
		}
	}
	witness = t.Witness()
	next, set := t.Commit(false)
	if set == nil { // nothing changed
		return next, nil, witness, nil
	}
	all = make([]Node, 0, len(set.Nodes))
	set.ForEachWithOrder(func(path string, n *trienode.Node) { all = append(all, Node{path, n.Hash, n.Blob}) })
	return next, all, witness, nil
}

// Get returns the value of an account, or nil. It reads every node from the root to the account.
func Get(root Hash, read Read, key []byte) ([]byte, error) {
	t, err := trie.New(trie.StateTrieID(root), read)
	if err != nil {
		return nil, err
	}
	return t.Get(place(key))
}

// Proof has the blobs of the nodes from the root to an account.
type Proof struct {
	nodes *memorydb.Database
	Bytes int // of all blobs
}

// Prove returns the proof of an account.
func Prove(root Hash, read Read, key []byte) (Proof, error) {
	t, err := trie.New(trie.StateTrieID(root), read)
	if err != nil {
		return Proof{}, err
	}
	p := Proof{nodes: memorydb.New()}
	err = t.Prove(place(key), &counter{p.nodes, &p.Bytes})
	return p, err
}

// counter counts the bytes of the values that are put into a database.
type counter struct {
	*memorydb.Database
	bytes *int
}

func (c *counter) Put(key, value []byte) error {
	*c.bytes += len(value)
	return c.Database.Put(key, value)
}

var errAbsent = errors.New("the proof shows that the account is absent")

// Verify returns the value that a proof has for an account.
func (p Proof) Verify(root Hash, key []byte) ([]byte, error) {
	value, err := trie.VerifyProof(root, place(key), p.nodes)
	if err != nil {
		return nil, fmt.Errorf("ethereum's proof: %w", err)
	}
	if value == nil {
		return nil, errAbsent
	}
	return value, nil
}
