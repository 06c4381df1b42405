package fastsync

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
)

// speaker is a peer as a sketch sees it: what it says of a manifest, and where it falls silent.
type speaker struct {
	says  []byte
	stops int // the most bytes that it says in one question
	said  int
}

// ask asks a speaker until it falls silent, the manifest is proved, or it is caught.
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
		if r.length == 0 {
			return true
		}
		from := min(r.offset, uint64(len(s.says)))
		b := s.says[from:min(from+uint64(r.length), uint64(len(s.says)))]
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

// What one peer gave, the next continues, and what comes at last is the manifest.
func TestManifestOfSeveralPeers(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	k := newSketch(t, v)
	said := 0
	for _, id := range []transport.ID{"a", "b", "c", "a", "d", "b"} {
		require.False(t, (&speaker{says: truth, stops: 5000}).ask(t, k, id))
		if said += 5000; said < len(truth) {
			require.Equal(t, said, k.mu.of[id].length(), "nothing is asked for twice")
			require.Nil(t, k.proved())
		}
	}
	require.Less(t, said, len(truth), "the test is about parts")
	require.False(t, (&speaker{says: truth, stops: len(truth) - said}).ask(t, k, "e"))
	require.Equal(t, truth, k.proved().Encode())
}

// A liar begins the manifest, and an honest peer continues: it is asked for the beginning too, and
// is not banned. Nor is who continued a liar's beginning and then its own.
func TestManifestThatALiarBegan(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
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
	t.Run("who lies alone is caught", func(t *testing.T) {
		for _, lie := range [][]byte{lie, truth[:len(truth)-1], append(bytes.Clone(truth), 0), nil, make([]byte, 1<<20)} {
			k := newSketch(t, v)
			require.True(t, (&speaker{says: lie, stops: endless}).ask(t, k, "liar"))
			require.Nil(t, k.proved())
		}
	})
	t.Run("nothing is said twice", func(t *testing.T) {
		k := newSketch(t, v)
		honest := &speaker{says: truth, stops: 5000}
		require.False(t, honest.ask(t, k, "honest"))
		require.False(t, (&speaker{says: lie, stops: 10_000}).ask(t, k, "another"))
		require.False(t, (&speaker{says: make([]byte, len(truth)), stops: 10_000}).ask(t, k, "liar"))
		honest.stops = endless
		require.False(t, honest.ask(t, k, "honest"), "it continues the liar's, and then its own")
		require.Equal(t, truth, k.proved().Encode())
		require.Equal(t, len(truth), honest.said)
	})
	t.Run("nobody continues what is too long", func(t *testing.T) {
		k := newSketch(t, v)
		liar := &speaker{says: make([]byte, 1<<20), stops: endless}
		require.True(t, liar.ask(t, k, "liar"))
		// It is not yet judged.
		k.mu.of["liar"] = &draft{asking: make(chan struct{}, 1), tail: make([]byte, k.mu.limit)}
		require.False(t, (&speaker{says: truth, stops: endless}).ask(t, k, "honest"))
		require.Equal(t, truth, k.proved().Encode())
	})
	t.Run("who ends another's beginning falsely is caught", func(t *testing.T) {
		k := newSketch(t, v)
		require.False(t, (&speaker{says: truth, stops: 10_000}).ask(t, k, "honest"))
		require.True(t, (&speaker{says: append(bytes.Clone(truth), 0), stops: endless}).ask(t, k, "liar"))
		require.False(t, k.mu.of["honest"].doubtful, "the liar's word is worth nothing")
		require.False(t, (&speaker{says: truth, stops: len(truth) - 10_000}).ask(t, k, "honest"))
		require.Equal(t, truth, k.proved().Encode())
	})
}

// A liar that is asked for what it said instead of another's beginning, and then refuses ranges as
// an older version does, is judged by the whole manifest that it gives.
func TestHostileRefusalAfterALie(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	lie := bytes.Clone(truth)
	lie[0] ^= 1
	k := newSketch(t, v)
	require.False(t, (&speaker{says: lie, stops: 100}).ask(t, k, "liar"))
	require.False(t, (&speaker{says: truth, stops: 1000}).ask(t, k, "honest"))
	d, err := k.draft(t.Context(), "liar")
	require.NoError(t, err)
	k.took(d, k.next(d), lie[:50], true)
	require.Error(t, k.prove(k.whole(d)))
	require.False(t, k.refuted(d), "the beginning is another's")
	require.True(t, k.refused(d))
	require.Nil(t, k.whole(d))
	r := k.next(d)
	require.Zero(t, r.offset)
	k.took(d, r, lie, true)
	require.Error(t, k.prove(k.whole(d)))
	require.True(t, k.refuted(d))
	k.rest(d)
}

// Once the manifest is proved, nobody is judged by parts that are no longer kept.
func TestNobodyIsJudgedAfterTheProof(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
	truth := v.Manifest().Encode()
	k := newSketch(t, v)
	require.False(t, (&speaker{says: make([]byte, 100), stops: 99}).ask(t, k, "liar"))
	d, err := k.draft(t.Context(), "honest")
	require.NoError(t, err)
	require.NotNil(t, d.base, "it continues the liar's")
	k.took(d, k.next(d), truth[99:], true)
	mixed := k.whole(d)
	require.NoError(t, k.prove(truth))
	require.Error(t, k.prove(mixed))
	require.False(t, k.refuted(d))
	k.rest(d)
}

// What has come never becomes less: rates would be told from it.
func TestForgottenDraftsCount(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
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

// Few drafts are kept beside those that grow: the longest. The same of heights: the latest.
func TestDraftsAreFew(t *testing.T) {
	v := stateOf(t, seeds.Rand(t), 2000, 1000)
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

// A node of an older version refuses ranges, and gives the manifest at once.
func TestManifestOfAnOlderVersion(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.state(2000, 1000, 10)
		n := w.add(func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
			if r.Method == MethodManifest && len(r.Body) != 8 {
				return nil, transport.ErrRefused
			}
			return answer, err
		}, 10)
		w.join(time.Minute, w.options(w.peers(), newDisk()), 10)
		require.Equal(t, 2, n.count(MethodManifest))
	})
}

// A commitment that does not have the app hash, or a manifest without an end, proves a lie; and no
// more of a manifest is asked for than its chunks allow.
func TestHostileLengthsOfManifests(t *testing.T) {
	for name, meddle := range map[string]func(v *avlstar.Version, most *atomic.Uint64) meddler{
		"a commitment to more chunks": func(v *avlstar.Version, _ *atomic.Uint64) meddler {
			return instead(MethodCommitment, func() ([]byte, error) {
				c := v.Commitment()
				c.Chunks = 1 << 30
				return c.Encode(), nil
			})
		},
		"a manifest without an end": func(_ *avlstar.Version, most *atomic.Uint64) meddler {
			return func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method != MethodManifest {
					return answer, err
				}
				m, err := decodeManifestRequest(r.Body)
				most.Store(max(most.Load(), m.offset+uint64(m.length)))
				return make([]byte, m.length), err
			}
		},
		"a range that is too long": func(*avlstar.Version, *atomic.Uint64) meddler {
			return func(_ *testNode, r transport.Request, answer []byte, err error) ([]byte, error) {
				if r.Method == MethodManifest {
					answer = make([]byte, manifestRange+1)
				}
				return answer, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := w.state(2000, 1000, 10)
				var most atomic.Uint64
				liar := w.add(meddle(v, &most), 10)
				p := w.peersOver(w.dialer(), 0)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_, err := Join(ctx, w.options(p, newDisk()))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, banned := p.addresses()
				require.Contains(t, banned, liar.listener.Address().ID)
				require.LessOrEqual(t, most.Load(), uint64(entryBytes*v.NumChunks()))
				if name == "a commitment to more chunks" {
					require.Zero(t, liar.count(MethodManifest))
				}
			})
		})
	}
}
