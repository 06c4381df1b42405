package manifest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/e2e/manifest"
)

func TestNetworksAreValid(t *testing.T) {
	paths, err := filepath.Glob("../networks/*.toml")
	require.NoError(t, err)
	var names []string
	for _, path := range paths {
		m, err := manifest.Read(path)
		require.NoError(t, err)
		require.NotEmpty(t, m.Description, path)
		names = append(names, m.Name)
		for _, liarName := range m.Liars() {
			_, err := liar.ParseSet(m.Nodes[liarName].Lie)
			require.NoError(t, err, "%s: %s", path, liarName)
		}
	}
	require.Equal(t, []string{"byzantine", "churn", "ci", "lan", "large", "long", "programs", "sharded-byzantine", "sharded-churn", "sharded", "wan"}, names)
}

func TestOn(t *testing.T) {
	const text = `
snapshot_interval = 10
[node.a]
[node.b]
network = "wan"
[node.c]
version = "previous"
[node.d]
[node.joiner]
mode = "full"
start_at = 12
`
	m, err := manifest.Parse("some", []byte(text))
	require.NoError(t, err)
	require.NoError(t, m.On(manifest.LAN))
	require.Equal(t, "some@lan", m.Name)
	for name, want := range map[string]manifest.Network{"a": manifest.LAN, "b": manifest.WAN, "c": "", "joiner": manifest.LAN} {
		require.Equal(t, want, m.Nodes[name].Network, name)
	}
	require.EqualValues(t, 200, m.SnapshotInterval)
	require.EqualValues(t, 240, m.Nodes["joiner"].StartAt)
	m, err = manifest.Parse("some", []byte(text))
	require.NoError(t, err)
	require.ErrorContains(t, m.On("moon"), "neither lan nor wan")
}

func TestGenerate(t *testing.T) {
	kinds, liars := map[manifest.Kind]bool{}, 0
	largest := 0 // networks of four validators, all sharded, and three ranges
	for seed := range uint64(500) {
		m := manifest.Generate(seed, "v0")
		require.NoError(t, m.Check(), "seed %d", seed)
		require.Equal(t, m, manifest.Generate(seed, "v0"), "a seed stands for one manifest")
		liars += len(m.Liars())
		sharded, validators := 0, 0
		for _, n := range m.Nodes {
			if n.Mode == manifest.Validator {
				validators++
				if n.Sharded {
					sharded++
				}
			}
		}
		if sharded == 4 && validators == 4 && m.Shards == 3 {
			largest++
		}
		for _, name := range m.Liars() {
			_, err := liar.ParseSet(m.Nodes[name].Lie)
			require.NoError(t, err, "seed %d", seed)
		}
		for _, s := range m.Steps {
			kinds[s.Do] = true
		}
		for _, name := range manifest.Generate(seed, "").Names() {
			require.Empty(t, manifest.Generate(seed, "").Nodes[name].Version)
		}
	}
	require.NotZero(t, liars)
	require.NotZero(t, largest)
	for _, kind := range manifest.Kinds() {
		// FullDisk needs root, changes of ranges Linux, an older build does not know the next app
		// version, and Wait has no effect
		if kind != manifest.FullDisk && kind != manifest.SplitRange && kind != manifest.MoveRange && kind != manifest.UpgradeApp && kind != manifest.Wait {
			require.True(t, kinds[kind], "%s is never generated", kind)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "small.toml")
	require.NoError(t, os.WriteFile(path, []byte(`
		description = "one validator and a joiner"
		[node.validator-0]
		[node.joiner]
		mode = "full"
		start_at = 20
		[[steps]]
		do = "pause"
		nodes = ["joiner"]
		for = "1.5s"
	`), 0o644))
	m, err := manifest.Read(path)
	require.NoError(t, err)
	require.Equal(t, "small", m.Name)
	require.Equal(t, []string{"joiner", "validator-0"}, m.Names())
	require.Equal(t, m.Names(), m.Honest())
	require.Empty(t, m.Liars())
	require.EqualValues(t, 10, m.Nodes["validator-0"].Power)
	require.Equal(t, manifest.Transport, m.Nodes["joiner"].Join)
	require.Equal(t, "pause joiner for 1.5s", m.Steps[0].String())
	_, err = manifest.Read(filepath.Join(t.TempDir(), "absent.toml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	const good = "[node.a]\n"
	const two = "shards = 2\n" + good + "sharded = true\n[node.s]\nmode = 'storage'\n[node.t]\nmode = 'storage'\n"
	for _, c := range []struct{ toml, want string }{
		{"", "there is no validator"},
		{good + "colour = 'red'\n", "colour"},
		{"[node.A]\n", `node "A": a name`},
		{good + "mode = 'archive'\n", `mode "archive"`},
		{good + "power = -1\n", "power -1"},
		{good + "[node.b]\nmode = 'full'\npower = 1\n", "only a validator has power"},
		{good + "[node.b]\nlie = 'mix'\n", "10 of 20 of the power"},
		{good + "[node.b]\nstart_at = 5\n", "10 of 20 of the power"},
		{good + "join = 'blocks'\n", "join needs start_at"},
		{good + "[node.b]\nmode = 'full'\nstart_at = 3\njoin = 'magic'\n", `join "magic"`},
		{good + "version = 'a b'\n", `version "a b"`},
		{"block_pause = '-1s'\n" + good, "block_pause"},
		{"snapshot_interval = -1\n" + good, "snapshot_interval -1"},
		{"[load]\nclients = -1\n" + good, "load:"},
		{"[link]\ndelay = '-1s'\n" + good, "link:"},
		{good + "[[steps]]\ndo = 'dance'\n", "step 1 (dance): do is not one of"},
		{good + "[[steps]]\ndo = 'kill'\n", "nodes is empty"},
		{good + "[[steps]]\ndo = 'kill'\nnodes = ['b']\n", `there is no node "b"`},
		{good + "[[steps]]\ndo = 'kill'\nnodes = ['a', 'a']\n", "named twice"},
		{good + "[[steps]]\ndo = 'restart'\nnodes = ['a']\nfor = '1s'\n", "for has no meaning"},
		{good + "[[steps]]\ndo = 'kill'\nnodes = ['a']\nfor = '-1s'\n", "for has no meaning"},
		{good + "[[steps]]\ndo = 'pause'\nnodes = ['a']\n", "for must say how long"},
		{good + "[[steps]]\ndo = 'bandwidth'\nnodes = ['a']\nfor = '1s'\n", "rate belongs to bandwidth"},
		{good + "[[steps]]\ndo = 'delay'\nnodes = ['a']\nfor = '1s'\n", "delay belongs to"},
		{good + "[[steps]]\ndo = 'kill-mid-sync'\nnodes = ['a']\n", "a does not join"},
		{good + "[[steps]]\ndo = 'upgrade'\nnodes = ['a']\n", "no version to begin with"},
		{good + "[[steps]]\ndo = 'upgrade-app'\nnodes = ['a']\n", "nodes has no meaning"},
		{good + "[[steps]]\ndo = 'upgrade-app'\n[[steps]]\ndo = 'upgrade-app'\n", "one newer app version only"},
		{good + "[[steps]]\ndo = 'lose-disk'\nnodes = ['a']\n", "a is not a storage node"},
		{"shards = 1\n[node.a]\nsharded = true\n[node.s]\nmode = 'storage'\n[[steps]]\ndo = 'delete-snapshot'\nnodes = ['a']\n", "a stores no snapshots"},
		{two + "[[steps]]\ndo = 'split-range'\nnodes = ['a']\n", "a split names one storage node"},
		{two + "[[steps]]\ndo = 'move-range'\nnodes = ['s']\n", "a move two"},
		{two + "[[steps]]\ndo = 'move-range'\nnodes = ['s', 't']\n", "divided first"},
		{two + "[[steps]]\ndo = 'split-range'\nnodes = ['s']\n[[steps]]\ndo = 'split-range'\nnodes = ['s']\n", "changed before"},
		{"shards = 2\n" + good + "[node.s]\nmode = 'storage'\n[node.t]\nmode = 'storage'\nlie = 'mix'\n", "1 of 2 storage nodes are Byzantine"},
		{good + "[node.b]\nmode = 'full'\nstart_at = 3\n[[steps]]\ndo = 'kill'\nnodes = ['b']\n[[steps]]\ndo = 'kill-mid-sync'\nnodes = ['b']\n",
			"step 1 (kill): b joins in a later step"},
	} {
		_, err := manifest.Parse("test", []byte(c.toml))
		require.ErrorContains(t, err, c.want, c.toml)
	}
}
