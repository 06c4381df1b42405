package snapshot

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/statesync/statetest"
	"github.com/starling-kv/starling/transport"
)

// speaker is a simulated peer: what it sends of a manifest, and where it stops.
type speaker struct {
	says  []byte
	stops int // maximum number of bytes per request
	said  int
}

// ask asks a speaker until it stops, the manifest is proved, or the speaker is caught.
func (s *speaker) ask(t *testing.T, k *sketch, id transport.ID) (lied bool) {
	t.Helper()
	d, err := k.draft(t.Context(), id)
	require.NoError(t, err)
	defer k.rest(d)
	left := s.stops
	for k.proved() == nil {
		if b := k.whole(d); b != nil {
			if k.prove(b) != nil && k.refuted(d) {
				k.forget(id)
				return true
			}
			continue
		}
		r := k.next(d)
		if r.Length == 0 {
			return true
		}
		from := min(r.Offset, uint64(len(s.says)))
		b := s.says[from:min(from+uint64(r.Length), uint64(len(s.says)))]
		if len(b) > left {
			k.took(d, r, b[:left], false)
			s.said += left
			return false
		}
		left -= len(b)
		s.said += len(b)
		k.took(d, r, b, true)
	}
	return false
}

func newSketch(t *testing.T, v *avlstar.Version) *sketch {
	t.Helper()
	k := new(sketches).at(10, v.AppHash())
	k.bound(v.Commitment())
	return k
}

const endless = 1 << 30

// Each peer continues what the previous ones sent, and the result is the manifest.
func TestManifestOfSeveralPeers(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	k := newSketch(t, v)
	said := 0
	for _, id := range []transport.ID{"a", "b", "c", "a", "d", "b"} {
		require.False(t, (&speaker{says: truth, stops: 5000}).ask(t, k, id))
		if said += 5000; said < len(truth) {
			require.Equal(t, said, k.mu.of[id].length(), "nothing is requested twice")
			require.Nil(t, k.proved())
		}
	}
	require.Less(t, said, len(truth), "the test is about parts")
	require.False(t, (&speaker{says: truth, stops: len(truth) - said}).ask(t, k, "e"))
	require.Equal(t, truth, k.proved().Encode())
}

// A Byzantine peer begins the manifest and an honest peer continues it: the honest peer is asked
// for the beginning too, and is not banned, even if it first continued the false beginning and then
// its own.
func TestManifestThatALiarBegan(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	lie := bytes.Clone(truth)
	lie[100] ^= 1
	for name, began := range map[string][]byte{
		"altered": lie, "longer": append(bytes.Clone(lie), make([]byte, 500)...), "cut": truth[:len(truth)/2],
	} {
		t.Run(name, func(t *testing.T) {
			k := newSketch(t, v)
			liar := &speaker{says: began, stops: len(began) - 1}
			require.False(t, liar.ask(t, k, "liar"), "nothing is proved yet")
			other := &speaker{says: truth, stops: 0}
			require.False(t, other.ask(t, k, "other"))
			require.False(t, (&speaker{says: truth, stops: endless}).ask(t, k, "honest"))
			require.Equal(t, truth, k.proved().Encode())
		})
	}
	t.Run("a peer that sent all bytes is caught", func(t *testing.T) {
		for _, lie := range [][]byte{lie, truth[:len(truth)-1], append(bytes.Clone(truth), 0), nil, make([]byte, 1<<20)} {
			k := newSketch(t, v)
			require.True(t, (&speaker{says: lie, stops: endless}).ask(t, k, "liar"))
			require.Nil(t, k.proved())
		}
	})
	t.Run("nothing is sent twice", func(t *testing.T) {
		k := newSketch(t, v)
		honest := &speaker{says: truth, stops: 5000}
		require.False(t, honest.ask(t, k, "honest"))
		require.False(t, (&speaker{says: lie, stops: 10_000}).ask(t, k, "another"))
		require.False(t, (&speaker{says: make([]byte, len(truth)), stops: 10_000}).ask(t, k, "liar"))
		honest.stops = endless
		require.False(t, honest.ask(t, k, "honest"), "it continues the false draft, and then its own")
		require.Equal(t, truth, k.proved().Encode())
		require.Equal(t, len(truth), honest.said)
	})
	t.Run("a doubtful beginning is not continued again", func(t *testing.T) {
		k := newSketch(t, v)
		require.False(t, (&speaker{says: lie, stops: 10_000}).ask(t, k, "liar"))
		require.False(t, (&speaker{says: truth, stops: len(truth) - 10_000}).ask(t, k, "honest"), "it sends the rest")
		d, err := k.draft(t.Context(), "another")
		require.NoError(t, err)
		require.Zero(t, d.length())
		k.rest(d)
	})
	t.Run("a draft that is too long is not continued", func(t *testing.T) {
		k := newSketch(t, v)
		liar := &speaker{says: make([]byte, 1<<20), stops: endless}
		require.True(t, liar.ask(t, k, "liar"))
		// It is not refuted yet.
		k.mu.of["liar"] = &draft{asking: make(chan struct{}, 1), tail: make([]byte, k.mu.limit)}
		require.False(t, (&speaker{says: truth, stops: endless}).ask(t, k, "honest"))
		require.Equal(t, truth, k.proved().Encode())
	})
	t.Run("a peer that ends another's beginning falsely is caught", func(t *testing.T) {
		k := newSketch(t, v)
		require.False(t, (&speaker{says: truth, stops: 10_000}).ask(t, k, "honest"))
		require.True(t, (&speaker{says: append(bytes.Clone(truth), 0), stops: endless}).ask(t, k, "liar"))
		require.False(t, k.mu.of["honest"].doubtful, "the Byzantine peer's draft does not count")
		require.False(t, (&speaker{says: truth, stops: len(truth) - 10_000}).ask(t, k, "honest"))
		require.Equal(t, truth, k.proved().Encode())
	})
}

// Once the manifest is proved, no peer is judged by parts that are no longer kept.
func TestNobodyIsJudgedAfterTheProof(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	k := newSketch(t, v)
	require.False(t, (&speaker{says: make([]byte, 100), stops: 99}).ask(t, k, "liar"))
	d, err := k.draft(t.Context(), "honest")
	require.NoError(t, err)
	require.NotNil(t, d.base, "it continues the false draft")
	k.took(d, k.next(d), truth[99:], true)
	mixed := k.whole(d)
	require.NoError(t, k.prove(truth))
	require.Error(t, k.prove(mixed))
	require.False(t, k.refuted(d))
	k.rest(d)
}

// The number of received bytes never decreases, since rates are derived from it.
func TestForgottenDraftsCount(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 1000)
	s := new(sketches)
	k := s.at(10, v.AppHash())
	k.bound(v.Commitment())
	d, err := k.draft(t.Context(), "liar")
	require.NoError(t, err)
	d.received.Add(100)
	k.rest(d)
	require.EqualValues(t, 100, s.received(10))
	k.forget("liar")
	k.forget("liar")
	require.EqualValues(t, 100, s.received(10))
}

// Few idle drafts are kept, the longest ones, and few heights, the latest ones.
func TestDraftsAreFew(t *testing.T) {
	v := statetest.New(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	s := new(sketches)
	k := s.at(10, v.AppHash())
	k.bound(v.Commitment())
	for i := range 50 {
		id := transport.ID(rune('A' + i))
		(&speaker{says: bytes.Repeat([]byte{byte(i)}, len(truth)), stops: 100 - i}).ask(t, k, id)
		require.LessOrEqual(t, len(k.mu.of), idleDrafts)
	}
	require.Contains(t, k.mu.of, transport.ID("A"))
	for h := range int64(50) {
		s.at(20+h, v.AppHash())
	}
	require.Len(t, s.of, idleSketches)
	require.Contains(t, s.of, int64(69))
	require.NotContains(t, s.of, int64(10))
}
