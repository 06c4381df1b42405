//go:build upstream

package store

import "github.com/cosmos/cosmos-sdk/store/v2/types"

// testTree adds to Store the methods of iavl.MutableTree that the SDK's tests call.
type testTree struct{ *Store }

func newTree(any) *testTree {
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

// UnsafeNewStore replaces the SDK's function of that name.
func UnsafeNewStore(tree *testTree) *Store { return tree.Store }

// loadStore returns the store at a version that it has in memory. Loading from disk is in package
// rootmulti.
func loadStore(s *Store, id types.CommitID) (*Store, error) { return s.GetImmutable(id.Version) }

// pairs replaces the SDK's internal message type of the response to "/subspace".
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
