package sgc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the reference: the same cache as plain slices with linear search. Each list is ordered
// by use, most recent first.
type model struct {
	budget, minTarget int64
	fixed             bool
	target            [numZones]int64
	zones             [numZones]modelZone
	runZone           Zone
	run               int64
}

type modelZone struct {
	probation, protected []modelEntry
	evictions            []modelEviction // latest ones, oldest first
	other                int64
	hits, misses, ghosts uint64
}

type modelEntry struct {
	key    string
	value  int
	charge int64
}

type modelEviction struct {
	key          string
	charge       int64
	live, missed bool
}

func newModel(budget int64, split float64, fixed bool) *model {
	m := &model{budget: budget, minTarget: budget / 16, fixed: fixed}
	m.target[State] = int64(float64(budget) * split)
	m.target[Blocks] = budget - m.target[State]
	return m
}

func find(list []modelEntry, key string) int {
	return slices.IndexFunc(list, func(e modelEntry) bool { return e.key == key })
}

func sum(list []modelEntry) (n int64) {
	for _, e := range list {
		n += e.charge
	}
	return n
}

func (z *modelZone) bytes() int64 { return sum(z.probation) + sum(z.protected) }

func (m *model) capacity(z Zone) int64 { return max(0, m.target[z]-m.zones[z].other) }

func (m *model) get(z Zone, key string) (int, bool) {
	zo := &m.zones[z]
	list := &zo.protected
	i := find(*list, key)
	if i < 0 {
		list = &zo.probation
		i = find(*list, key)
	}
	if i >= 0 {
		e := (*list)[i]
		*list = slices.Delete(*list, i, i+1)
		zo.protected = slices.Insert(zo.protected, 0, e)
		zo.balance(m.capacity(z))
		zo.hits++
		return e.value, true
	}
	zo.misses++
	depth := int64(0)
	for i := len(zo.evictions) - 1; i >= 0; i-- {
		v := &zo.evictions[i]
		if depth += v.charge; v.key != key || !v.live || v.missed {
			continue
		}
		v.missed = true
		zo.ghosts++
		behind := depth - max(0, m.capacity(z)-zo.bytes())
		if donor := 1 - z; !m.fixed && behind > 0 && behind <= m.budget/windowPart {
			if m.runZone != z {
				m.runZone, m.run = z, 0
			}
			m.run = min(m.run+1, longestRun)
			step := max(0, min(m.run*max(1, m.budget/stepPart), m.target[donor]-m.minTarget))
			m.target[z] += step
			m.target[donor] -= step
			m.fit(donor)
		}
	}
	return 0, false
}

func (m *model) drop(z Zone, key string) (again bool) {
	zo := &m.zones[z]
	for i := range zo.evictions {
		if v := &zo.evictions[i]; v.key == key && v.live {
			v.live, again = false, true
		}
	}
	if i := find(zo.probation, key); i >= 0 {
		zo.probation = slices.Delete(zo.probation, i, i+1)
	}
	if i := find(zo.protected, key); i >= 0 {
		zo.protected, again = slices.Delete(zo.protected, i, i+1), true
	}
	return again
}

func (m *model) put(z Zone, key string, value int, charge int64) {
	zo := &m.zones[z]
	again := m.drop(z, key)
	if charge > m.budget/largestPart {
		return
	}
	if charge > m.capacity(z)/largestOfZone {
		m.evicted(z, key, charge)
		return
	}
	if e := (modelEntry{key, value, charge}); again {
		zo.protected = slices.Insert(zo.protected, 0, e)
	} else {
		zo.probation = slices.Insert(zo.probation, 0, e)
	}
	m.fit(z)
}

func (z *modelZone) balance(capacity int64) {
	for sum(z.protected) > capacity-capacity/probationPart {
		last := len(z.protected) - 1
		z.probation = slices.Insert(z.probation, 0, z.protected[last])
		z.protected = z.protected[:last]
	}
}

func (m *model) fit(z Zone) {
	for zo := &m.zones[z]; zo.bytes() > m.capacity(z); {
		zo.balance(m.capacity(z))
		last := len(zo.probation) - 1
		m.evicted(z, zo.probation[last].key, zo.probation[last].charge)
		zo.probation = zo.probation[:last]
	}
}

func (m *model) evicted(z Zone, key string, charge int64) {
	zo := &m.zones[z]
	for i := range zo.evictions {
		if zo.evictions[i].key == key {
			zo.evictions[i].live = false
		}
	}
	zo.evictions = append(zo.evictions, modelEviction{key, charge, true, false})
	for depth, i := int64(0), len(zo.evictions)-1; i >= 0; i-- {
		if depth += zo.evictions[i].charge; depth > m.budget/ghostPart {
			zo.evictions = zo.evictions[i+1:]
			break
		}
	}
}

func (m *model) requireLike(t require.TestingT, c *Cache) {
	s := c.Stats()
	require.Equal(t, m.budget, s.Budget)
	for z := range numZones {
		zo, got := &m.zones[z], s.Zones[z]
		ghosts := 0
		for _, v := range zo.evictions {
			if v.live {
				ghosts++
			}
		}
		want := ZoneStats{
			Hits: zo.hits, Misses: zo.misses, GhostHits: zo.ghosts, Entries: len(zo.probation) + len(zo.protected),
			Bytes: zo.bytes(), Ghosts: ghosts, Target: m.target[z], Other: zo.other,
		}
		require.Equal(t, want, got, "%v", z)
		require.Equal(t, m.target[z], c.Target(z))
	}
}

// requireInvariants checks conditions that always hold.
func requireInvariants(t require.TestingT, c *Cache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	require.True(t, c.mu.target >= 0 && c.mu.target <= c.budget)
	total := int64(0)
	for z := range numZones {
		zo := &c.mu.zones[z]
		require.LessOrEqual(t, zo.bytes(), c.capacity(z))
		if !c.fixed {
			require.GreaterOrEqual(t, c.targetLocked(z), c.minTarget)
		}
		total += zo.bytes()
		zo.requireInvariants(t)
		// The ghosts represent at most half of the budget, and so does their memory.
		window := zo.ghosts.next - zo.ghosts.first
		require.LessOrEqual(t, int64(window)*entryOverhead, c.budget/ghostPart+entryOverhead)
		require.LessOrEqual(t, uint64(zo.ghosts.index.n), window)
		require.Less(t, zo.ghosts.first-zo.ghosts.base, uint64(chunk))
	}
	require.LessOrEqual(t, total, c.budget)
}

// requireInvariants checks every link of the store.
func (s *store) requireInvariants(t require.TestingT) {
	entries := 0
	for _, l := range []*list{&s.probation, &s.protected} {
		bytes, before := int64(0), uint32(none)
		for e := l.front; e != none; before, e = e, s.entries.at(e).next {
			at := s.entries.at(e)
			require.Equal(t, before, at.prev)
			require.Equal(t, l == &s.protected, at.protected)
			require.Equal(t, e, *s.index.place(s, e, at.hash))
			if at.class == outsideClass {
				require.Equal(t, e, s.outside[at.slot].entry)
			} else {
				require.Equal(t, e, binary.LittleEndian.Uint32(s.arena.classes[at.class].at(at.slot)))
			}
			bytes += s.chargeAt(e)
			entries++
		}
		require.Equal(t, l.back, before)
		require.Equal(t, l.bytes, bytes)
	}
	require.Equal(t, s.count(), entries)
	require.EqualValues(t, s.count(), s.index.n)
	filled := len(s.outside)
	for _, class := range s.arena.classes {
		filled += int(class.n)
		require.Less(t, uint32(len(class.slabs))*class.perSlab, class.n+max(class.perSlab, 1), "a slab is empty")
	}
	require.Equal(t, entries, filled)
}

// numbered returns a value of about size bytes that contains a number.
func numbered(n, size int) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(n)), make([]byte, size)...)
}

// requireNumbered checks the number in a value that was stored as an object or as bytes.
func requireNumbered(t require.TestingT, want int, got any) {
	if value, is := got.([]byte); is {
		require.GreaterOrEqual(t, len(value), 8)
		require.EqualValues(t, want, binary.BigEndian.Uint64(value))
		return
	}
	require.Equal(t, want, got)
}

// TestModel: the cache behaves like the model, operation by operation, although its hash seed
// differs in each run.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.SampledFrom([]int64{0, 1, 100, 4000, 20_000, 1 << 17}).Draw(t, "budget")
		fixed, split := rapid.Bool().Draw(t, "fixed"), 0.5
		var options []Option
		if fixed {
			split = rapid.Float64Range(0, 1).Draw(t, "split")
			options = append(options, WithFixedSplit(split))
		}
		c, m := New(budget, options...), newModel(budget, split, fixed)
		zone := rapid.Map(rapid.IntRange(0, 1), func(i int) Zone { return Zone(i) })
		key := rapid.Map(rapid.IntRange(0, 60), func(i int) string { return fmt.Sprintf("%0*d", 1+i%9, i) })
		size := rapid.OneOf(rapid.IntRange(0, 400), rapid.IntRange(0, int(budget/largestPart)+1))
		serial := 0
		put := func(t *rapid.T) {
			z, k, s := zone.Draw(t, "zone"), key.Draw(t, "key"), size.Draw(t, "size")
			serial++
			c.Put(z, []byte(k), serial, s)
			m.put(z, k, serial, chargeOf(len(k), s))
		}
		putBytes := func(t *rapid.T) {
			z, k, s := zone.Draw(t, "zone"), key.Draw(t, "key"), size.Draw(t, "size")
			serial++
			c.PutBytes(z, []byte(k), numbered(serial, s))
			m.put(z, k, serial, c.mu.zones[z].chargeOfBytes(len(k), len(numbered(serial, s))))
		}
		get := func(t *rapid.T) {
			z, k := zone.Draw(t, "zone"), key.Draw(t, "key")
			want, wantOK := m.get(z, k)
			var got any
			var ok bool
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				got, ok = c.Get(z, []byte(k))
			case 1:
				buf, found := c.GetBytes(z, []byte(k), []byte("before"))
				require.True(t, bytes.HasPrefix(buf, []byte("before")))
				object := wantOK && len(buf) == len("before")
				got, ok = buf[len("before"):], found || object
				if ok && !found {
					return
				}
			default:
				require.Equal(t, wantOK, c.Has(z, []byte(k)))
				return
			}
			require.Equal(t, wantOK, ok)
			if ok {
				requireNumbered(t, want, got)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": put, "put bytes": putBytes, "put more": putBytes, "get": get, "get more": get,
			"clear": func(t *rapid.T) {
				if z := zone.Draw(t, "zone"); rapid.IntRange(0, 20).Draw(t, "rare") == 0 {
					c.Clear(z)
					m.zones[z].probation, m.zones[z].protected, m.zones[z].evictions = nil, nil, nil
				}
			},
			"drop": func(t *rapid.T) {
				z, k := zone.Draw(t, "zone"), key.Draw(t, "key")
				c.Drop(z, []byte(k))
				m.drop(z, k)
			},
			"evicted": func(t *rapid.T) {
				z, k, s := zone.Draw(t, "zone"), key.Draw(t, "key"), size.Draw(t, "size")
				c.Evicted(z, []byte(k), s)
				if zo := &m.zones[z]; find(zo.probation, k) < 0 && find(zo.protected, k) < 0 {
					m.evicted(z, k, chargeOf(len(k), s))
				}
			},
			"other": func(t *rapid.T) {
				z, bytes := zone.Draw(t, "zone"), rapid.Int64Range(-1, budget+budget/4).Draw(t, "bytes")
				c.SetOther(z, bytes)
				m.zones[z].other = max(0, bytes)
				m.fit(z)
			},
			"": func(t *rapid.T) {
				m.requireLike(t, c)
				requireInvariants(t, c)
			},
		})
	})
}

// TestModelLong runs many operations, because the short runs of rapid do not fill a cache. The load
// drifts from zone to zone.
func TestModelLong(t *testing.T) {
	const operations = 20_000
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 0))
		t.Logf("seed %d", seed)
		c, m := New(60_000), newModel(60_000, 0.5, false)
		moved := false
		for i := range operations {
			z := State
			if rng.IntN(operations) < i {
				z = Blocks
			}
			n := int(min(rng.ExpFloat64()*40, 300))
			k := fmt.Sprint(n)
			switch op := rng.IntN(100); {
			case op == 0:
				c.Drop(z, []byte(k))
				m.drop(z, k)
			case op == 1 && i%10 == 0:
				other := rng.Int64N(20_000)
				c.SetOther(z, other)
				m.zones[z].other = other
				m.fit(z)
			default:
				want, wantOK := m.get(z, k)
				got, ok := c.Get(z, []byte(k))
				require.Equal(t, wantOK, ok)
				switch {
				case ok:
					requireNumbered(t, want, got)
				case n%3 == 0:
					c.Put(z, []byte(k), i, 10*(n%100))
					m.put(z, k, i, chargeOf(len(k), 10*(n%100)))
				default:
					value := numbered(i, 10*(n%100))
					c.PutBytes(z, []byte(k), value)
					m.put(z, k, i, c.mu.zones[z].chargeOfBytes(len(k), len(value)))
				}
			}
			if i%20 == 0 {
				m.requireLike(t, c)
				requireInvariants(t, c)
			}
			moved = moved || c.Target(State) == c.minTarget
		}
		require.True(t, moved)
		require.Greater(t, c.Stats().Moves, uint64(100))
	}
}
