package avlstar

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

// needsNoPage lists the methods of Version that read nothing below stubs, with the reason.
var needsNoPage = map[string]string{
	"Retain": "reference", "TryRetain": "reference", "Release": "reference",
	"EnablePaging": "setting", "EnableIndex": "setting", "Stored": "setting", "SetRecords": "setting",
	"ByKey": "its methods read: TestByKeyFailsWhereRecordsDo", "Stubs": "names pages and reads none", "PageList": "as Stubs", "HasPageList": "as Stubs",
	"ReadAhead": "whoever needs the page meets the error", "ForgetAhead": "reads nothing",
	"Warm": "reads nothing", "Graft": "reads nothing",
	"Len": "in the version", "ChunkBytes": "in the version", "NumChunks": "in the version", "Hashed": "in the version", "Memory": "in the tree", "Reclaimed": "in the tree", "HeldBytes": "in the version",
	"Root": "in the version", "Commitment": "in the version", "AppHash": "in the version",
	"Partial": "a conversion", "Count": "in the version", "Missing": "names stubs and reads nothing below them", "TryManifest": "as Manifest", "ChunkKeys": "as Manifest",
	"NewInner": "new nodes are not stored yet, so in memory",
	"Manifest": "chunks begin above pages", "Cut": "pieces begin above pages, Piece reads them", "CutChunk": "as Cut",
}

// readsOf lists the methods that read leaves: the leaf with key, or all.
var readsOf = map[string]func(v *Version, key []byte) error{
	"Get":  func(v *Version, key []byte) error { _, _, err := v.Get(key); return err },
	"View": func(v *Version, key []byte) error { _, _, err := v.View(key); return err },
	"ViewMany": func(v *Version, key []byte) error {
		return v.ViewMany(make([][]byte, 3), [][]byte{{}, key, []byte("another")})
	},
	"Peek": func(v *Version, key []byte) error { _, _, err := v.Peek(key); return err },
	"PeekRange": func(v *Version, key []byte) error {
		if err := lastError(v.PeekRange(key, nil)); err != nil {
			return lastError(v.PeekRange(nil, nil))
		}
		return nil
	},
	"Holds": func(v *Version, key []byte) error { _, err := v.Holds(key, []byte("another value")); return err },
	"Has":   func(v *Version, key []byte) error { _, err := v.Has(key); return err },
	"Floor": func(v *Version, key []byte) error { _, _, _, err := v.Floor(key); return err },
	"ViewFloor": func(v *Version, key []byte) error {
		if _, _, _, err := v.ViewFloor(key, true); err != nil {
			_, _, _, err = v.ViewFloor(key, false)
			return err
		}
		return nil
	},
	"Ascend": func(v *Version, key []byte) error {
		if err := lastError(v.Ascend(key, nil)); err != nil {
			return lastError(v.Ascend(nil, nil))
		}
		return nil
	},
	"Leaves":     func(v *Version, _ []byte) error { return lastError(v.Leaves()) },
	"Multiproof": func(v *Version, key []byte) error { _, err := v.Multiproof([]Want{{Key: key}}, Below{}); return err },
	"Upper":      func(v *Version, _ []byte) error { _, err := v.Upper(1 << 20); return err },
	"UpperWithin": func(v *Version, _ []byte) error {
		_, err := v.UpperWithin(1<<20, 1<<30)
		return err
	},
	"Boundary": func(v *Version, key []byte) error { _, err := v.Boundary(KeyRange{First: key}); return err },
	"UpdateOf": func(v *Version, key []byte) error {
		_, err := v.UpdateOf(v, KeyRange{After: key}, nil)
		return err
	},
	"RangeBytes": func(v *Version, key []byte) error {
		if _, err := v.RangeBytes(key, nil); err != nil {
			_, err = v.RangeBytes(nil, key)
			return err
		}
		return nil
	},
	"Chunk": func(v *Version, _ []byte) error {
		var first error
		for k := range v.NumChunks() {
			_, err := v.Chunk(k)
			if first == nil {
				first = err
			}
		}
		return first
	},
	"ChunkRange": func(v *Version, _ []byte) error {
		var first error
		for k, e := range v.Manifest().Entries {
			_, err := v.ChunkRange(uint32(k), 1, e.Root.Bytes)
			if first == nil {
				first = err
			}
		}
		return first
	},
	"Prove": func(v *Version, key []byte) error { _, err := v.Prove(key); return err },
	"ProveRange": func(v *Version, key []byte) error {
		if _, _, _, err := v.ProveRange(key, nil, 10); err != nil {
			_, _, _, err = v.ProveRange(nil, nil, int(v.Len()))
			return err
		}
		return nil
	},
	"Prune": func(v *Version, _ []byte) error {
		p, err := v.Prune(func(Subtree) bool { return false })
		if err == nil {
			p.Release()
		}
		return err
	},
	"Fill": func(v *Version, _ []byte) error {
		_, _, err := v.Fill(nil, 1<<20, v.tree.paging.Pages.Page)
		return err
	},
	"Apply": func(v *Version, key []byte) error {
		next, err := v.Apply([]Change{{key, []byte("another value")}})
		if err == nil {
			next.Release()
		}
		return err
	},
}

// lastError returns the error with which an iterator ended. It must be the last thing that the
// iterator yields, with a zero value.
func lastError[T any](seq func(yield func(T, error) bool)) (last error) {
	for x, err := range seq {
		if last != nil {
			panic("something was yielded after an error")
		}
		if last = err; err != nil && !reflect.ValueOf(x).IsZero() {
			panic("something was yielded along with an error")
		}
	}
	return last
}

// TestEveryReadFailsWhereAPageDoes: every method returns an error if it cannot read a page, and
// none reports a key as absent. A new method of Version must be added to one of the two tables.
func TestEveryReadFailsWhereAPageDoes(t *testing.T) {
	smallPages(t, 500)
	rnd := seeds.Rand(t)
	d := &disk{}
	block := randomBlock(rnd, 2_000, 1<<30, 0, false)
	key := block[len(block)/2].Key
	full := advance(t, mustEmpty(t, 1<<14), block...)
	d.store(t, full)
	v, err := FromLeavesPaged(1<<14, Paging{Pages: d, Budget: func() int64 { return 0 }}, full.Leaves())
	require.NoError(t, err)

	methods := reflect.TypeFor[*Version]()
	require.Equal(t, methods.NumMethod(), len(needsNoPage)+len(readsOf), "a method of Version is in neither table, or a table has one that is gone")
	for method := range methods.Methods() {
		read, reads := readsOf[method.Name]
		require.NotEqual(t, reads, needsNoPage[method.Name] != "", "%s must be in one table", method.Name)
		if !reads {
			continue
		}
		t.Run(method.Name, func(t *testing.T) {
			d.broken.Store(true)
			before := d.reads.Load()
			err := read(v, key)
			require.ErrorIs(t, err, errBroken)
			var at *PageError
			require.ErrorAs(t, err, &at)
			require.NotEqual(t, before, d.reads.Load())
			d.broken.Store(false)
			require.NoError(t, read(v, key), "a page that can be read again")
		})
	}
	d.broken.Store(true)
	cut, err := v.Cut(MinCutBytes)
	require.NoError(t, err)
	_, err = cut.Piece(0)
	require.ErrorIs(t, err, errBroken, "Cut.Piece")
}

// TestEveryReadOfAPartialTreeFails does the same for a tree without paging, where missing nodes
// cannot be read at all.
func TestEveryReadOfAPartialTreeFails(t *testing.T) {
	full := stateOf(t, 50, 20)
	depth := 0
	for _, stub := range []func(Subtree) bool{
		func(Subtree) bool { return true },
		func(Subtree) bool { depth++; return depth > 1 },
	} {
		p, err := full.Prune(stub)
		require.NoError(t, err)
		for name, read := range readsOf {
			// A copy and an upper tree may have stubs, a Partial has no chunks, and Fill needs
			// Paging.
			if name == "Fill" || name == "Prune" || name == "Upper" || name == "UpperWithin" || name == "Chunk" || name == "ChunkRange" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				var missing *MissingNodeError
				require.ErrorAs(t, read(p.v, []byte("k04")), &missing)
			})
		}
	}
}
