package contestant

import (
	"errors"
	"fmt"
	"os"

	"github.com/crypto-org-chain/cronos/memiavl"

	"github.com/starling-kv/starling/bench/workload"
)

// memiavlTree is memiavl's Tree alone, in memory or over a mapped snapshot. It has no write-ahead
// log and takes no snapshots, which would only cost time, and no cache of values, which random keys
// do not hit. A commit is ApplyChangeSet and SaveVersion with the hash.
type memiavlTree struct {
	tree *memiavl.Tree
	dir  string
}

func openMemiavl(dir string) *memiavlTree { return &memiavlTree{tree: memiavl.New(0), dir: dir} }

func (m *memiavlTree) Prepare(changes []workload.Change) func() ([]byte, error) {
	array := make([]memiavl.KVPair, len(changes))
	set := memiavl.ChangeSet{Pairs: make([]*memiavl.KVPair, len(changes))}
	return func() ([]byte, error) {
		sortChanges(changes)
		for i, c := range changes {
			array[i] = memiavl.KVPair{Delete: c.Value == nil, Key: c.Key, Value: c.Value}
			set.Pairs[i] = &array[i]
		}
		m.tree.ApplyChangeSet(set)
		root, _, err := m.tree.SaveVersion(true)
		return root, err
	}
}

func (m *memiavlTree) Get(key []byte) ([]byte, error) { return m.tree.Get(key), nil }

func (m *memiavlTree) Prove(key []byte) (Proof, error) {
	proof, err := m.tree.GetMembershipProof(key)
	if err != nil {
		return nil, err
	}
	b, err := proof.Marshal()
	return Proof{b}, err
}

func (m *memiavlTree) VerifyProof(p Proof, key, value []byte) error {
	return verifyIAVL(m.tree.RootHash(), p, key, value)
}

func (m *memiavlTree) CheckLen(n int) error {
	node := m.tree.Iterator(nil, nil, true) // Tree has no method for its size
	have := 0
	for ; node.Valid(); node.Next() {
		have++
	}
	return errors.Join(node.Close(), checkLen(have, n))
}

func (m *memiavlTree) Close() error { return m.tree.Close() }

// memiavlStream reads the exporter of a copy, and starts over at its end.
type memiavlStream struct {
	pinned   *memiavl.Tree
	exporter *memiavl.Exporter
}

func (m *memiavlTree) Stream() (Stream, error) {
	pinned := m.tree.Copy(0)
	return &memiavlStream{pinned: pinned, exporter: pinned.Export()}, nil
}

func (s *memiavlStream) Next() (int, error) {
	n := 0
	for n < StreamPiece {
		node, err := s.exporter.Next()
		if errors.Is(err, memiavl.ErrorExportDone) {
			s.exporter.Close()
			s.exporter = s.pinned.Export()
			continue
		}
		if err != nil {
			return n, err
		}
		if node.Height == 0 {
			n += leafBytes(node.Key, node.Value)
		}
	}
	return n, nil
}

func (s *memiavlStream) Close() { s.exporter.Close() }

type memiavlExport struct {
	nodes   []*memiavl.ExportNode
	root    []byte
	version int64
	bytes   int
	dir     string
}

func (m *memiavlTree) Export() (Export, error) {
	e := &memiavlExport{root: m.tree.RootHash(), version: m.tree.Version(), dir: m.dir}
	exporter := m.tree.Export()
	defer exporter.Close()
	for {
		node, err := exporter.Next()
		if errors.Is(err, memiavl.ErrorExportDone) {
			return e, nil
		}
		if err != nil {
			return nil, err
		}
		e.nodes = append(e.nodes, node)
		if node.Height == 0 {
			e.bytes += leafBytes(node.Key, node.Value)
		}
	}
}

func (e *memiavlExport) Bytes() int { return e.bytes }

// Import writes a snapshot to disk, because memiavl has no other importer. It hashes every node.
func (e *memiavlExport) Import() (func(), error) {
	dir, err := os.MkdirTemp(e.dir, "memiavl-import-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder for memiavl's import: %w", err)
	}
	importer := memiavl.NewTreeImporter(dir, e.version)
	for _, node := range e.nodes {
		importer.Add(node)
	}
	if err := importer.Close(); err != nil {
		return nil, err
	}
	snapshot, err := memiavl.OpenSnapshot(dir)
	if err != nil {
		return nil, err
	}
	return func() {
		_ = snapshot.Close() // the process's exit closes both
		_ = os.RemoveAll(dir)
	}, checkRoot(snapshot.RootHash(), e.root)
}

// Snapshot writes the newest version as a snapshot into the new folder dir, and syncs its files.
func (m *memiavlTree) Snapshot(dir string) error { return m.tree.WriteSnapshot(dir) }

// MapMemiavl opens the snapshot in a folder as a node does at its start: the files are mapped,
// reads do not copy, and changes are kept in memory. dir is a folder for further files.
func MapMemiavl(snapshot, dir string) (Contestant, error) {
	s, err := memiavl.OpenSnapshot(snapshot)
	if err != nil {
		return nil, err
	}
	return &memiavlTree{tree: memiavl.NewFromSnapshot(s, true, 0), dir: dir}, nil
}

// PipeMemiavl maps the snapshot in the folder from, and pipes its export into an import that writes
// the new folder to and syncs its files. It returns the bytes of the leaf records, and fails if the
// roots differ.
func PipeMemiavl(from, to string) (bytes int, err error) {
	source, err := memiavl.OpenSnapshot(from)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	exporter := source.Export()
	defer exporter.Close()
	importer := memiavl.NewTreeImporter(to, int64(source.Version()))
	for node, done := exporter.Next(); done == nil; node, done = exporter.Next() {
		if node.Height == 0 {
			bytes += leafBytes(node.Key, node.Value)
		}
		importer.Add(node)
	}
	if err := importer.Close(); err != nil {
		return bytes, err
	}
	imported, err := memiavl.OpenSnapshot(to)
	if err != nil {
		return bytes, err
	}
	return bytes, errors.Join(checkRoot(imported.RootHash(), source.RootHash()), imported.Close())
}
