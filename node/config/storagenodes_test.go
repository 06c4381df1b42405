package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

func TestStorageNodes(t *testing.T) {
	a, b := strings.Repeat("a", 40), strings.Repeat("b", 40)
	s, err := config.ParseStorageNodes([]byte(`
validators = ["` + b + `", "` + a + `"]
[[range]]
first = ""
nodes = ["` + a + `@127.0.0.1:1", "` + b + `@127.0.0.1:2"]
[[range]]
first = "0x6d00"
nodes = ["` + b + `@127.0.0.1:2"]
[[range]]
first = "x"
nodes = ["` + a + `@127.0.0.1:1"]
`))
	require.NoError(t, err)
	require.Equal(t, 3, s.Ranges.Len())
	require.Equal(t, avlstar.KeyRange{First: []byte("m\x00"), After: []byte("x")}, s.Ranges.Shard(1).Range)
	require.Equal(t, []int{0, 2}, s.Ranges.Of(dsm.NodeID(a)))
	require.Equal(t, "127.0.0.1:2", s.Addresses[dsm.NodeID(b)].HostPort)
	require.True(t, s.HasValidator(transport.ID(a)))
	require.False(t, s.HasValidator(transport.ID(strings.Repeat("c", 40))))
	for _, test := range []struct{ name, text, want string }{
		{"no validator's ID", `validators = ["` + a + `@h:1"]`, "is not a node id"},
		{"empty", ``, "no [[range]]"},
		{"unknown setting", "[[range]]\nfirst = \"\"\nlast = \"z\"\nnodes = []", `line 3: there is no setting "range.last"`},
		{"no first", "[[range]]\nnodes = [\"" + a + "@h:1\"]", `"first" is missing`},
		{"uncovered", "[[range]]\nfirst = \"b\"\nnodes = [\"" + a + "@h:1\"]", `no range covers the keys below "b"`},
		{"order", "[[range]]\nfirst = \"\"\nnodes = [\"" + a + "@h:1\"]\n[[range]]\nfirst = \"\"\nnodes = [\"" + a + "@h:1\"]", "not above"},
		{"no nodes", "[[range]]\nfirst = \"\"\nnodes = []", "has no nodes"},
		{"no ID", "[[range]]\nfirst = \"\"\nnodes = [\"h:1\"]", "ID@HOST:PORT"},
		{"two addresses", "[[range]]\nfirst = \"\"\nnodes = [\"" + a + "@h:1\"]\n[[range]]\nfirst = \"b\"\nnodes = [\"" + a + "@h:2\"]", "two addresses"},
		{"twice", "[[range]]\nfirst = \"\"\nnodes = [\"" + a + "@h:1\", \"" + a + "@h:1\"]", "twice"},
		{"no hex", "[[range]]\nfirst = \"0xg\"\nnodes = [\"" + a + "@h:1\"]", "not hex"},
	} {
		_, err := config.ParseStorageNodes([]byte(test.text))
		require.ErrorContains(t, err, test.want, test.name)
	}
	_, err = config.LoadStorageNodes(t.TempDir(), config.DefaultStorageNodesFile)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "starlingd storage ranges")
}
