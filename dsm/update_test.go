package dsm

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
)

// TestAssembly sends an update in parts: probes, repeated parts and out-of-order parts add nothing.
func TestAssembly(t *testing.T) {
	rng := seeds.Rand(t)
	update := make([]byte, 2*MaxPartBytes+rng.IntN(MaxPartBytes))
	for i := range update {
		update[i] = byte(rng.IntN(256))
	}
	r, sum := avlstar.KeyRange{First: []byte("g")}, sha256.Sum256(update)
	var a Assembly
	sent := 0
	for have := 0; ; {
		p := PartOf(7, r, update, sum, have)
		b := p.Encode()
		require.LessOrEqual(t, len(b), MaxBodyBytes)
		p, err := DecodeUpdatePart(b)
		require.NoError(t, err)
		for _, other := range []int{-1, have + 1, have - 1} {
			still, none, err := a.Add(PartOf(7, r, update, sum, other))
			require.NoError(t, err)
			require.Nil(t, none)
			require.EqualValues(t, have, still)
		}
		now, whole, err := a.Add(p)
		require.NoError(t, err)
		clear(b) // the Assembly must have its own copy
		sent++
		if whole != nil {
			require.True(t, bytes.Equal(update, whole))
			require.EqualValues(t, len(update), now)
			break
		}
		require.LessOrEqual(t, a.Bytes(), 2*int(now)+MaxPartBytes)
		have = int(now)
	}
	require.Equal(t, 3, sent)
	require.Zero(t, a.Bytes(), "it is empty again")
}

func TestAssemblyRefuses(t *testing.T) {
	update := []byte("an update")
	sum := sha256.Sum256(update)
	r := avlstar.KeyRange{After: []byte("m")}
	part := func() UpdatePart { return UpdatePart{Height: 5, Range: r, Total: 9, Sum: sum, Part: update[:4]} }
	for name, change := range map[string]func(p *UpdatePart){
		"height": func(p *UpdatePart) { p.Height++ }, "range": func(p *UpdatePart) { p.Range = avlstar.KeyRange{} },
		"total": func(p *UpdatePart) { p.Total++ }, "sum": func(p *UpdatePart) { p.Sum[0]++ },
	} {
		var a Assembly
		_, _, err := a.Add(part())
		require.NoError(t, err)
		p := part()
		change(&p)
		_, _, err = a.Add(p)
		require.ErrorIs(t, err, ErrOtherUpdate, name)
		require.Zero(t, a.Bytes(), name)
	}
	var a Assembly
	wrong := UpdatePart{Height: 5, Range: r, Total: 9, Sum: sum, Part: []byte("another 1")}
	_, whole, err := a.Add(wrong)
	require.ErrorIs(t, err, ErrSum)
	require.Nil(t, whole)
	require.Zero(t, a.Bytes())
	_, _, err = a.Add(UpdatePart{Height: 5, Range: r, Total: 0})
	require.ErrorIs(t, err, ErrMessage)
	have, _, err := a.Add(UpdatePart{Height: 5, Range: r, Total: MaxUpdateBytes, Sum: sum, Part: update})
	require.NoError(t, err)
	require.EqualValues(t, len(update), have)
	require.Less(t, a.Bytes(), 1000, "announced bytes take no memory")
}
