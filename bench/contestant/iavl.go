package contestant

import (
	"errors"
	"fmt"
	"os"

	"github.com/cosmos/iavl"

	"github.com/starling-kv/starling/bench/workload"
)

// iavlCache is the Cosmos SDK's default for iavl-cache-size, in nodes.
const iavlCache = 781_250

// iavlTree is IAVL v1 as the Cosmos SDK uses it: fast storage on, a cache of 781,250 nodes, no
// fsync. No version is pruned. Its database is Pebble, which is faster than the SDK's default,
// goleveldb. A commit is Set, Remove and SaveVersion.
type iavlTree struct {
	db    *pebbleDB
	tree  *iavl.MutableTree
	dir   string
	saved *iavl.ImmutableTree // the newest version, for proofs; reset to nil by a commit
}

func openIAVL(dir string) (*iavlTree, error) {
	db, err := openPebble(dir)
	if err != nil {
		return nil, err
	}
	return &iavlTree{db: db, tree: newIAVL(db), dir: dir}, nil
}

func newIAVL(db *pebbleDB) *iavl.MutableTree {
	return iavl.NewMutableTree(db, iavlCache, false, iavl.NewNopLogger())
}

func (t *iavlTree) Prepare(changes []workload.Change) func() ([]byte, error) {
	return func() ([]byte, error) {
		sortChanges(changes)
		for _, c := range changes {
			if c.Value == nil {
				if _, _, err := t.tree.Remove(c.Key); err != nil {
					return nil, err
				}
			} else if _, err := t.tree.Set(c.Key, c.Value); err != nil {
				return nil, err
			}
		}
		t.saved = nil
		root, _, err := t.tree.SaveVersion()
		return root, err
	}
}

func (t *iavlTree) Get(key []byte) ([]byte, error) { return t.tree.Get(key) }

func (t *iavlTree) newest() (*iavl.ImmutableTree, error) {
	if t.saved == nil {
		saved, err := t.tree.GetImmutable(t.tree.Version())
		if err != nil {
			return nil, err
		}
		t.saved = saved
	}
	return t.saved, nil
}

func (t *iavlTree) Prove(key []byte) (Proof, error) {
	newest, err := t.newest()
	if err != nil {
		return nil, err
	}
	proof, err := newest.GetMembershipProof(key)
	if err != nil {
		return nil, err
	}
	b, err := proof.Marshal()
	return Proof{b}, err
}

func (t *iavlTree) VerifyProof(p Proof, key, value []byte) error {
	return verifyIAVL(t.tree.Hash(), p, key, value)
}

func (t *iavlTree) CheckLen(n int) error { return checkLen(int(t.tree.Size()), n) }

func (t *iavlTree) Close() error { return errors.Join(t.tree.Close(), t.db.Close()) }

// iavlStream reads the exporter of a saved version, and starts over at its end.
type iavlStream struct {
	pinned   *iavl.ImmutableTree
	exporter *iavl.Exporter
}

func (t *iavlTree) Stream() (Stream, error) {
	pinned, err := t.tree.GetImmutable(t.tree.Version())
	if err != nil {
		return nil, err
	}
	exporter, err := pinned.Export()
	return &iavlStream{pinned: pinned, exporter: exporter}, err
}

func (s *iavlStream) Next() (int, error) {
	n := 0
	for n < StreamPiece {
		node, err := s.exporter.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
			s.exporter.Close()
			if s.exporter, err = s.pinned.Export(); err != nil {
				return n, err
			}
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

func (s *iavlStream) Close() { s.exporter.Close() }

type iavlExport struct {
	nodes   []*iavl.ExportNode
	root    []byte
	version int64
	bytes   int
	dir     string
}

func (t *iavlTree) Export() (Export, error) {
	newest, err := t.tree.GetImmutable(t.tree.Version())
	if err != nil {
		return nil, err
	}
	exporter, err := newest.Export()
	if err != nil {
		return nil, err
	}
	defer exporter.Close()
	e := &iavlExport{root: newest.Hash(), version: newest.Version(), dir: t.dir}
	for {
		node, err := exporter.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
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

func (e *iavlExport) Bytes() int { return e.bytes }

func (e *iavlExport) Import() (func(), error) {
	dir, err := os.MkdirTemp(e.dir, "iavl-import-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder for IAVL's import: %w", err)
	}
	db, err := openPebble(dir)
	if err != nil {
		return nil, err
	}
	tree := newIAVL(db)
	importer, err := tree.Import(e.version)
	if err != nil {
		return nil, err
	}
	defer importer.Close()
	for _, node := range e.nodes {
		if err := importer.Add(node); err != nil {
			return nil, err
		}
	}
	if err := importer.Commit(); err != nil {
		return nil, err
	}
	return func() {
		_ = errors.Join(tree.Close(), db.Close()) // the process's exit closes both
		_ = os.RemoveAll(dir)
	}, checkRoot(tree.Hash(), e.root)
}
