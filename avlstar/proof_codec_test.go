package avlstar

import (
	"bytes"
	"testing"

	ics23 "github.com/cosmos/ics23/go"
	"github.com/stretchr/testify/require"
)

// TestHostileStateProofs verifies proofs that were forged from a correct one. Where the error names
// the reason, only the named check refuses the proof: ics23/go alone would accept it.
func TestHostileStateProofs(t *testing.T) {
	v := stateOf(t, 50, 20)
	presence := func() *ics23.ExistenceProof { return proofMessage(t, v, "k06").GetExist() }
	absence := func() *ics23.NonExistenceProof { return proofMessage(t, v, "k07").GetNonexist() }
	exist := func(e *ics23.ExistenceProof) []byte {
		return marshalProof(&ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Exist{Exist: e}})
	}
	nonexist := func(n *ics23.NonExistenceProof) []byte {
		return marshalProof(&ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Nonexist{Nonexist: n}})
	}
	batch := func(entries ...*ics23.BatchEntry) *ics23.CommitmentProof {
		return &ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Batch{Batch: &ics23.BatchProof{Entries: entries}}}
	}
	existEntry := &ics23.BatchEntry{Proof: &ics23.BatchEntry_Exist{Exist: presence()}}

	for _, c := range []struct {
		name, key, reason string
		state             func() []byte
	}{
		{"unknown field", "k06", "extra bytes", func() []byte { return append(exist(presence()), 0x7a, 0) }},
		{"unknown field inside", "k06", "is missing", func() []byte {
			e := presence()
			b, err := e.Marshal()
			require.NoError(t, err)
			return wrap(0x0a, append(b, 0x7a, 0))
		}},
		{"the message twice", "k06", "extra bytes", func() []byte { return append(exist(presence()), exist(presence())...) }},
		{"length of the message in a longer form", "k06", "length", func() []byte {
			e := presence()
			b, err := e.Marshal()
			require.NoError(t, err)
			return append([]byte{0x0a, byte(len(b)) | 0x80, byte(len(b)>>7) | 0x80, 0}, b...)
		}},
		{"batch", "k06", "batch", func() []byte { return marshalProof(batch(existEntry)) }},
		{"compressed", "k06", "batch", func() []byte { return marshalProof(ics23.Compress(batch(existEntry))) }},
		{"empty message", "k06", "neither", func() []byte { return []byte{0xff, 0xff} }},
		{"empty proof of presence", "k06", "1 to", func() []byte { return exist(&ics23.ExistenceProof{}) }},
		{"empty proof of absence", "k07", "1 to", func() []byte { return nonexist(&ics23.NonExistenceProof{}) }},
		{"presence where absence is asked", "k07", "for an absent key", func() []byte { return exist(presence()) }},
		{"absence where presence is asked", "k06", "for a value", func() []byte { return nonexist(absence()) }},
		{"key of the absence proof altered", "k07", "another key", func() []byte {
			n := absence()
			n.Key = []byte("k071")
			return nonexist(n)
		}},
		{"no neighbours", "k07", "no neighbour", func() []byte { return nonexist(&ics23.NonExistenceProof{Key: []byte("k07")}) }},
		{"left neighbour only", "k07", "not adjacent", func() []byte {
			n := absence()
			n.Right = nil
			return nonexist(n)
		}},
		{"right neighbour only", "k07", "not adjacent", func() []byte {
			n := absence()
			n.Left = nil
			return nonexist(n)
		}},
		{"neighbours exchanged", "k07", "left neighbour is not below", func() []byte {
			n := absence()
			n.Left, n.Right = n.Right, n.Left
			return nonexist(n)
		}},
		{"left neighbour not adjacent", "k07", "not adjacent", func() []byte {
			n := absence()
			n.Left = proofMessage(t, v, "k04").GetExist()
			return nonexist(n)
		}},
		{"a present key between neighbours further off", "k06", "for a value", func() []byte {
			return nonexist(&ics23.NonExistenceProof{
				Key: []byte("k06"), Left: proofMessage(t, v, "k04").GetExist(), Right: proofMessage(t, v, "k08").GetExist(),
			})
		}},
		{"a left neighbour that is the key itself", "k07", "right neighbour is not above", func() []byte {
			n := absence()
			n.Right = n.Left
			return nonexist(n)
		}},
		{"leaf prefix longer than the spec's", "k06", "leaf operation", func() []byte {
			e := presence()
			e.Leaf.Prefix = []byte{0, 0}
			return exist(e)
		}},
		{"leaf without key hash", "k06", "leaf operation", func() []byte {
			e := presence()
			e.Leaf.PrehashKey = ics23.HashOp_NO_HASH
			return exist(e)
		}},
		{"no leaf", "k06", "leaf operation", func() []byte {
			e := presence()
			e.Leaf = nil
			return exist(e)
		}},
		{"inner prefix 00", "k06", "start with 01", func() []byte {
			e := presence()
			e.Path[0].Prefix[0] = 0
			return exist(e)
		}},
		{"both child hashes after a short prefix", "k06", "operation of", func() []byte {
			e := presence()
			e.Path[0].Suffix = make([]byte, 64)
			return exist(e)
		}},
		{"no child hash", "k06", "operation of", func() []byte {
			e := presence()
			e.Path[0].Prefix, e.Path[0].Suffix = e.Path[0].Prefix[:51], nil
			return exist(e)
		}},
		{"another hash function", "k06", "form", func() []byte {
			e := presence()
			e.Path[0].Hash = ics23.HashOp_SHA512_256
			return exist(e)
		}},
		{"path too short", "k06", "does not lead", func() []byte {
			e := presence()
			e.Path = e.Path[:len(e.Path)-1]
			return exist(e)
		}},
		{"path too long", "k06", "does not lead", func() []byte {
			e := presence()
			e.Path = append(e.Path, e.Path[0])
			return exist(e)
		}},
		{"path beyond the bound", "k06", "more than 128", func() []byte {
			e := presence()
			for len(e.Path) <= maxProofDepth {
				e.Path = append(e.Path, e.Path[0])
			}
			return exist(e)
		}},
		{"oversize", "k06", "at most", func() []byte { return make([]byte, maxStateProofBytes+1) }},
		{"value too long", "k06", "value of", func() []byte {
			e := presence()
			e.Value = make([]byte, MaxValueBytes+1)
			return exist(e)
		}},
		{"key too long", "k06", "key of", func() []byte {
			e := presence()
			e.Key = make([]byte, MaxKeyBytes+1)
			return exist(e)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			value, _ := mustGet(t, v, []byte(c.key))
			p, err := v.Prove([]byte(c.key))
			require.NoError(t, err)
			p.State = c.state()
			err = VerifyProof(v.AppHash(), []byte(c.key), value, p)
			require.ErrorIs(t, err, ErrInvalidProof)
			require.ErrorContains(t, err, c.reason)
		})
	}
}

// TestHostileMapProofs verifies map operators that lead to the app hash, or to a forged one.
func TestHostileMapProofs(t *testing.T) {
	v := stateOf(t, 50, 20)
	p, err := v.Prove([]byte("k06"))
	require.NoError(t, err)
	value, _ := mustGet(t, v, []byte("k06"))
	var honest ics23.CommitmentProof
	require.NoError(t, honest.Unmarshal(p.Map))
	state := honest.GetExist()
	c := v.Commitment().Encode()
	commitment := append(c[:12:12], c[12:21]...) // B, m, stat(root): the value of "chunks"
	stateLeaf, err := state.Leaf.Apply(state.Key, state.Value)
	require.NoError(t, err)
	chunks := &ics23.ExistenceProof{
		Key: []byte("chunks"), Value: commitment, Leaf: MapSpec.LeafSpec,
		Path: []*ics23.InnerOp{{Hash: ics23.HashOp_SHA256, Prefix: []byte{1}, Suffix: stateLeaf}},
	}
	appHash := v.AppHash()
	wrapped := &ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Exist{Exist: chunks}}
	require.True(t, ics23.VerifyMembership(MapSpec, appHash[:], wrapped, []byte("chunks"), commitment), "the other leaf is proved")
	require.ErrorContains(t, VerifyProof(appHash, []byte("k06"), value, Proof{p.State, marshalProof(wrapped)}), "map operator")

	empty := stateOf(t, 50, 0)
	q, err := empty.Prove([]byte("k06"))
	require.NoError(t, err)
	for name, b := range map[string][]byte{
		"of another state": q.Map,
		"unknown field":    append(bytes.Clone(p.Map), 0x7a, 0),
		"none":             nil,
		"batch": marshalProof(&ics23.CommitmentProof{Proof: &ics23.CommitmentProof_Batch{Batch: &ics23.BatchProof{
			Entries: []*ics23.BatchEntry{{Proof: &ics23.BatchEntry_Exist{Exist: state}}}}}}),
	} {
		err := VerifyProof(appHash, []byte("k06"), value, Proof{p.State, b})
		require.ErrorIs(t, err, ErrInvalidProof, name)
		require.ErrorContains(t, err, "map operator", name)
	}
}

// The decoder accepts exactly the results of Marshal.
func FuzzVerifyProof(f *testing.F) {
	v := stateOf(f, 50, 9)
	for _, k := range []string{"k00", "k06", "k07", "a", "z"} {
		value, _ := mustGet(f, v, []byte(k))
		p, err := v.Prove([]byte(k))
		require.NoError(f, err)
		f.Add([]byte(k), value, p.State, p.Map)
	}
	f.Add([]byte("k"), []byte{}, []byte{}, []byte{})
	f.Add([]byte("k"), []byte{1}, []byte{0x12, 3, 0x0a, 1, 'k'}, []byte{0x0a, 0x5b})
	f.Fuzz(func(t *testing.T, key, value, state, m []byte) {
		if p, err := decodeStateProof(state); err == nil {
			require.Equal(t, state, marshalProof(p))
		}
		if err := VerifyProof(v.AppHash(), key, value, Proof{state, m}); err == nil {
			got, ok := mustGet(t, v, key)
			require.Equal(t, len(value) != 0, ok)
			require.True(t, bytes.Equal(got, value))
			p, err := v.Prove(key)
			require.NoError(t, err)
			require.Equal(t, p, Proof{state, m}, "a second proof of the same")
		}
	})
}

// proofMessage returns the decoded state operator of a proof of key.
func proofMessage(t *testing.T, v *Version, key string) *ics23.CommitmentProof {
	t.Helper()
	p, err := v.Prove([]byte(key))
	require.NoError(t, err)
	var m ics23.CommitmentProof
	require.NoError(t, m.Unmarshal(p.State))
	return &m
}

// wrap returns a protobuf field of wire type 2.
func wrap(tag byte, body []byte) []byte {
	b := []byte{tag}
	n := len(body)
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(append(b, byte(n)), body...)
}
