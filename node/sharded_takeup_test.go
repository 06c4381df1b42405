package node

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/client"
)

// The height that a start chooses, or the reason why there is none.
func TestTakeUp(t *testing.T) {
	low, high := avlstar.KeyRange{After: []byte("m")}, avlstar.KeyRange{First: []byte("m")}
	ranges, err := dsm.NewRanges([]dsm.Placement{
		{Range: low, Replicas: []dsm.NodeID{"a", "b"}}, {Range: high, Replicas: []dsm.NodeID{"c"}},
	})
	require.NoError(t, err)
	has := func(r avlstar.KeyRange, oldest, newest int64) dsm.Claim {
		return dsm.Claim{Range: r, Oldest: oldest, Newest: newest, Durable: newest, Needs: newest + 1}
	}
	genesis := func(r avlstar.KeyRange) dsm.Claim { return dsm.Claim{Range: r, Needs: 1} }
	for name, c := range map[string]struct {
		least, limit int64
		claims       []dsm.Claim
		want         int64
		err          string // part of the error; "": none
		away         bool
	}{
		"the newest that both have":                   {5, 100, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 50, "", false},
		"not above own blocks":                        {5, 40, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 40, "", false},
		"the better replica":                          {5, 100, []dsm.Claim{has(low, 1, 30), has(low, 10, 60), has(high, 20, 50)}, 50, "", false},
		"one that covers both ranges":                 {5, 100, []dsm.Claim{has(avlstar.KeyRange{}, 10, 60)}, 60, "", false},
		"nobody has more than genesis":                {0, 100, []dsm.Claim{genesis(low), genesis(high)}, 0, "", false},
		"one range is at genesis, the other keeps it": {0, 100, []dsm.Claim{genesis(low), has(high, 1, 30)}, 0, "", false},
		"a range is silent":                           {5, 100, []dsm.Claim{has(low, 10, 60)}, 0, `no storage node answers for the keys in ["m", ) (node c)`, false},
		"a range is being fetched":                    {5, 100, []dsm.Claim{has(low, 10, 60), {Range: high}}, 0, `no storage node answers for the keys in ["m", )`, false},
		"storage nodes behind own blocks":             {70, 100, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 0, "the newest state that all storage nodes have is after block 50, but this home's blocks continue from block 70 at the earliest: waiting", false},
		"as far as own blocks":                        {50, 100, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 50, "", false},
		"one block behind own blocks":                 {51, 100, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 0, "continue from block 51 at the earliest", false},
		"away":                                        {5, 15, []dsm.Claim{has(low, 10, 60), has(high, 20, 50)}, 0, `the storage nodes of the keys in ["m", ) have states from block 20 on, but this node's blocks end at block 15: join again with`, true},
		"away, except for one replica":                {5, 15, []dsm.Claim{has(low, 20, 60), has(low, 10, 60), has(high, 12, 50)}, 15, "", false},
		"nothing in common":                           {5, 100, []dsm.Claim{has(low, 10, 19), has(high, 20, 50)}, 0, "no height", false},
	} {
		t.Run(name, func(t *testing.T) {
			u := takeUp{ranges: ranges, name: func(n dsm.NodeID) string { return "node " + string(n) }, initial: 1, least: c.least, limit: c.limit, claims: c.claims}
			height, err := u.height()
			if c.err == "" {
				require.NoError(t, err)
				require.Equal(t, c.want, height)
				return
			}
			require.ErrorContains(t, err, c.err)
			require.Equal(t, c.away, strings.HasPrefix(err.Error(), ErrAway.Error()))
		})
	}
}

// goneSource is a source of which only Gone is called.
type goneSource struct {
	stateSource
	gone client.Gone
}

func (s goneSource) Gone(height int64) (client.Gone, bool) { return s.gone, height == s.gone.Height }

// A block that needs data which no storage node has any more ends the node, after a while and with
// a hint.
func TestAway(t *testing.T) {
	gone := client.Gone{Range: avlstar.KeyRange{First: []byte("m")}, Height: 7, Oldest: 20, Since: time.Now().Add(-time.Minute)}
	s := shardedStore{source: goneSource{gone: gone}, times: storeTimes{away: 15 * time.Second}}
	err := s.away(7)
	require.ErrorIs(t, err, ErrAway)
	require.EqualError(t, err, `this node was away for too long: block 8 needs the keys in ["m", ) as of block 7, but their storage nodes only have states from block 20 on: `+
		"join again with `starlingd join ADDRESS --home NEW-HOME`, where ADDRESS is a node of the network")
	require.NoError(t, s.away(8), "another block")
	gone.Since = time.Now()
	s.source = goneSource{gone: gone}
	require.NoError(t, s.away(7), "only just now")
}

// The subtrees that stay in memory are those with an edge, and those that end at one: they have the
// leaf before it.
func TestKeepEdges(t *testing.T) {
	keep := keepEdges(func() [][]byte { return [][]byte{[]byte("g"), []byte("p")} })
	for _, c := range []struct {
		first, after string // "": open
		want         bool
	}{
		{"", "", true}, {"", "f", false}, {"", "g", true}, {"g", "h", true}, {"h", "o", false}, {"h", "p", true}, {"h", "", true}, {"p", "", true}, {"q", "", false},
	} {
		var after []byte
		if c.after != "" {
			after = []byte(c.after)
		}
		require.Equal(t, c.want, keep([]byte(c.first), after), "[%q, %q)", c.first, c.after)
	}
}
