package store

import "cosmossdk.io/store/types"

// testTree is a Store with the methods of iavl.MutableTree that the SDK's tests call.
type testTree struct{ *Store }

func newTree() *testTree {
	s, err := New(Options{})
	if err != nil {
		panic(err)
	}
	return &testTree{s}
}

func (t *testTree) Set(key, value []byte) (updated bool, err error) {
	updated = t.Has(key)
	t.Store.Set(key, value)
	return updated, nil
}

func (t *testTree) SaveVersion() (hash []byte, version int64, err error) {
	id := t.Commit()
	return id.Hash, id.Version, nil
}

// UnsafeNewStore stands for the SDK's function of that name.
func UnsafeNewStore(tree *testTree) *Store { return tree.Store }

// loadStore opens a version that the store has. From disk, package rootmulti does that.
func loadStore(s *Store, id types.CommitID) (*Store, error) { return s.GetImmutable(id.Version) }

// pairs stands for the SDK's internal message, which the answer to "/subspace" is.
type pairs struct{ Pairs []pair }

type pair struct{ Key, Value []byte }

func (p pairs) Marshal() ([]byte, error) {
	b := []byte{}
	for _, kv := range p.Pairs {
		b = append(b, 0x0a, byte(4+len(kv.Key)+len(kv.Value)), 0x0a, byte(len(kv.Key)))
		b = append(append(b, kv.Key...), 0x12, byte(len(kv.Value)))
		b = append(b, kv.Value...)
	}
	return b, nil
}
