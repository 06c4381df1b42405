package testnet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/manifest"
	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
	"github.com/starling-kv/starling/internal/smalldisk"
)

// mixed has nodes of every kind, whose order by name differs from the order of their starts.
const mixed = `
seed = 3
[link]
delay = "10ms"
[load]
initial_keys = 50
value_bytes = 33
[node.a-full]
mode = "full"
[node.b-late]
start_at = 20
power = 1
[node.c-validator]
[node.d-validator]
lie = "mix"
[node.e-later]
mode = "full"
start_at = 30
join = "in-band"
[node.f-validator]
paged = true
send_rate = 1000
[node.g-validator]
`

// offline returns a network that does not run, over a provider that records its calls.
func offline(t *testing.T, text string) (*Network, *noting) {
	t.Helper()
	m, err := manifest.Parse("unit", []byte(text))
	require.NoError(t, err)
	p := &noting{}
	n := &Network{Manifest: m, options: Options{
		Manifest: m, Provider: p, Dir: t.TempDir(), Log: t.Logf, Programs: Programs{"starlingd", "byzantine", "relay"},
	}}
	n.order()
	n.links = pairs(n.nodes)
	for _, node := range n.nodes {
		node.Home = &runner.Home{Name: node.Name, Dir: filepath.Join(n.options.Dir, node.Name)}
	}
	return n, p
}

// noting is a provider and relay that only records calls.
type noting struct {
	Provider
	mu       sync.Mutex
	did      []string
	settings []link.Setting
}

func (p *noting) note(what string, n *Node) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, what+" "+n.Name)
	return nil
}

func (p *noting) Name() string                                           { return "noting" }
func (p *noting) Context() context.Context                               { return context.Background() }
func (p *noting) Start(_ context.Context, n *Node) error                 { return p.note("start", n) }
func (p *noting) Stop(_ context.Context, n *Node, _ time.Duration) error { return p.note("stop", n) }
func (p *noting) Kill(_ context.Context, n *Node) error                  { return p.note("kill", n) }
func (p *noting) Pause(_ context.Context, n *Node) error                 { return p.note("pause", n) }
func (p *noting) Resume(_ context.Context, n *Node) error                { return p.note("resume", n) }
func (p *noting) Disconnect(_ context.Context, n *Node) error            { return p.note("disconnect", n) }
func (p *noting) Connect(_ context.Context, n *Node) error               { return p.note("connect", n) }
func (p *noting) Links() Links                                           { return p }
func (p *noting) Close() error                                           { return nil }

func (p *noting) Set(_ context.Context, settings ...link.Setting) error {
	p.settings = append(p.settings, settings...)
	return nil
}

func peers(n *Node) (names []string) {
	for _, peer := range n.Peers {
		names = append(names, peer.Name)
	}
	return names
}

func TestWhoDialsWhom(t *testing.T) {
	n, _ := offline(t, mixed)
	var order []string
	dials := map[string][]string{}
	for _, node := range n.Nodes() {
		order = append(order, node.Name)
		dials[node.Name] = peers(node)
	}
	require.Equal(t, []string{"c-validator", "d-validator", "f-validator", "g-validator", "a-full", "b-late", "e-later"}, order)
	genesis := order[:5]
	require.Equal(t, map[string][]string{
		"c-validator": nil, "d-validator": order[:1], "f-validator": order[:2], "g-validator": order[:3], "a-full": order[:4],
		"b-late": genesis, "e-later": genesis,
	}, dials)
	require.Len(t, n.links, 2*countLinks(n.nodes))
	require.Equal(t, "c-validator", n.Node("c-validator").Name)
	require.Nil(t, n.Node("nobody"))
}

func TestPlanLinks(t *testing.T) {
	n, _ := offline(t, mixed)
	links, addresses := planLinks(n.nodes[:3], "relay",
		func(k int) (string, int) { return "0.0.0.0", 30000 + 20*k },
		func(node *Node) (string, int) { return node.Name, 26656 })
	require.Equal(t, []link.Link{
		{From: "d-validator", To: "c-validator", Listen: "0.0.0.0:30000", Target: "c-validator:26656"},
		{From: "d-validator", To: "c-validator", Listen: "0.0.0.0:30010", Target: "c-validator:26666"},
		{From: "f-validator", To: "c-validator", Listen: "0.0.0.0:30020", Target: "c-validator:26656"},
		{From: "f-validator", To: "c-validator", Listen: "0.0.0.0:30030", Target: "c-validator:26666"},
		{From: "f-validator", To: "d-validator", Listen: "0.0.0.0:30040", Target: "d-validator:26656"},
		{From: "f-validator", To: "d-validator", Listen: "0.0.0.0:30050", Target: "d-validator:26666"},
	}, links)
	require.Equal(t, "relay:30040", addresses[n.nodes[2]][n.nodes[1]])
	require.Empty(t, addresses[n.nodes[0]])

	n.nodes[0].mapped = true // all nodes dial it at the same address
	links, addresses = planLinks(n.nodes[:3], "relay",
		func(k int) (string, int) { return "0.0.0.0", 30000 + 20*k },
		func(node *Node) (string, int) { return node.Name, 26656 })
	require.Len(t, links, 4)
	require.Equal(t, link.Link{To: "c-validator", Listen: "0.0.0.0:30010", Target: "c-validator:26666"}, links[1])
	require.Equal(t, "f-validator", links[2].From)
	for _, node := range n.nodes[1:3] {
		require.Equal(t, "relay:30000", addresses[node][n.nodes[0]])
	}
}

func TestMiddleKey(t *testing.T) {
	for i := range 3 {
		require.Less(t, firstKey(i, 3), middleKey(i, 3))
		require.True(t, i == 2 || middleKey(i, 3) < firstKey(i+1, 3))
	}
}

func TestPairs(t *testing.T) {
	all := [][2]string{{"a", "b"}, {"b", "a"}, {"a", "c"}, {"c", "a"}, {"b", "c"}, {"c", "b"}, {"d", "a"}}
	require.Equal(t, [][2]string{{"a", "c"}, {"c", "a"}, {"b", "c"}, {"c", "b"}, {"d", "a"}}, crossing(all, []string{"c", "d"}))
	require.Equal(t, [][2]string{{"a", "c"}, {"c", "a"}, {"b", "c"}, {"c", "b"}}, touching(all, []string{"c"}))
	require.Equal(t, all, touching(all, []string{"a", "b"}))
	require.Empty(t, crossing(all, []string{"a", "b", "c", "d"}))
}

func TestProgramsAndSettings(t *testing.T) {
	n, _ := offline(t, mixed)
	require.NoError(t, n.choosePrograms(t.Context()))
	liar, honest := n.Node("d-validator"), n.Node("f-validator")
	require.Equal(t, "byzantine", liar.Program)
	require.Equal(t, []string{"--home", "/home", "--lie", "mix", "--seed", "6"}, liar.Args("/home"))
	require.Equal(t, "starlingd", honest.Program)
	require.Equal(t, []string{"start", "--home", "/home"}, honest.Args("/home"))
	require.Contains(t, environment(honest), "STARLINGD_DISK_STATE_IN_MEMORY=false")
	require.Contains(t, environment(honest), "STARLINGD_TRANSPORT_SEND_RATE=1000")
	require.NotContains(t, environment(honest), "STARLINGD_JOIN_MODE=cometbft")
	require.Contains(t, environment(n.Node("e-later")), "STARLINGD_JOIN_MODE=cometbft")
}

func TestDataset(t *testing.T) {
	d := Dataset{Seed: 5, Keys: 2000, ValueBytes: 10}
	seen := map[string]bool{}
	for i := range d.Keys {
		key, value := d.At(i)
		again, same := d.At(i)
		require.Equal(t, key, again)
		require.Equal(t, value, same)
		require.Len(t, value, 10)
		require.True(t, strings.HasPrefix(string(key), Prefix))
		seen[string(key)] = true
	}
	require.Len(t, seen, d.Keys)
	for i := range d.Keys {
		require.False(t, seen[string(d.Absent(i))])
	}
	other, _ := Dataset{Seed: 6, Keys: 1, ValueBytes: 10}.At(0)
	require.False(t, seen[string(other)])
}

// Steps call the provider and relay as expected; a Byzantine node need not follow the chain.
func TestStepsOfALiar(t *testing.T) {
	n, p := offline(t, mixed)
	n.mark(n.Node("d-validator"), true)
	step := func(s manifest.Step) []string {
		t.Helper()
		p.did, p.settings = nil, nil
		s.Nodes = []string{"d-validator"}
		require.NoError(t, n.Perturb(t.Context(), s))
		return p.did
	}
	const moment = manifest.Duration(time.Millisecond)
	require.Equal(t, []string{"kill d-validator", "start d-validator"}, step(manifest.Step{Do: manifest.Kill}))
	require.Equal(t, []string{"stop d-validator", "start d-validator"}, step(manifest.Step{Do: manifest.Restart}))
	require.Equal(t, []string{"pause d-validator", "resume d-validator"}, step(manifest.Step{Do: manifest.Pause, For: moment}))
	require.Equal(t, []string{"disconnect d-validator", "connect d-validator"}, step(manifest.Step{Do: manifest.Disconnect, For: moment}))

	usual := link.Treatment{Delay: 10 * time.Millisecond}
	treatments := func() (before, after map[link.Treatment]int) {
		before, after = map[link.Treatment]int{}, map[link.Treatment]int{}
		for i, s := range p.settings {
			require.True(t, s.From == "d-validator" || s.To == "d-validator")
			if i < len(p.settings)/2 {
				before[s.Treatment]++
			} else {
				after[s.Treatment]++
			}
		}
		return before, after
	}
	for _, c := range []struct {
		step manifest.Step
		want link.Treatment
	}{
		{manifest.Step{Do: manifest.Partition, For: moment}, link.Treatment{Cut: true, Delay: usual.Delay}},
		{manifest.Step{Do: manifest.Delay, Delay: manifest.Duration(time.Second), For: moment}, link.Treatment{Delay: usual.Delay + time.Second}},
		{manifest.Step{Do: manifest.Bandwidth, Rate: 77, For: moment}, link.Treatment{Delay: usual.Delay, Bandwidth: 77}},
	} {
		require.Empty(t, step(c.step))
		before, after := treatments()
		const both = 2 * 6 // settings of its links with the others
		require.Equal(t, map[link.Treatment]int{c.want: both}, before, c.step.Do)
		require.Equal(t, map[link.Treatment]int{usual: both}, after, c.step.Do)
	}
}

func TestStepsThatCannotBe(t *testing.T) {
	n, _ := offline(t, mixed)
	n.mark(n.Node("b-late"), true)
	for want, s := range map[string]manifest.Step{
		"there is no node":                         {Do: manifest.Kill, Nodes: []string{"nobody"}},
		"does not run yet: it starts at height 30": {Do: manifest.Kill, Nodes: []string{"e-later"}},
		"runs already":                             {Do: manifest.KillMidSync, Nodes: []string{"b-late"}},
		"is not a step":                            {Do: "dance"},
	} {
		require.ErrorContains(t, n.Perturb(t.Context(), s), want)
	}
}

// The signing state of a node is kept when its other data are removed.
func TestForget(t *testing.T) {
	n, _ := offline(t, mixed)
	node := n.nodes[0]
	data := filepath.Join(node.Home.Dir, "data")
	require.NoError(t, os.MkdirAll(filepath.Join(data, "state", "deep"), 0o755))
	require.NoError(t, os.WriteFile(node.Home.SigningState(), []byte("signed"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(data, "other"), nil, 0o600))
	require.NoError(t, node.forget())
	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.FileExists(t, node.Home.SigningState())
}

// A node that dies ends all waits, and is named with the last lines of its log.
func TestADeadNode(t *testing.T) {
	dir := t.TempDir()
	p := NewProcesses(t.Context(), "")
	n := &Network{options: Options{Provider: p, Log: t.Logf}}
	defer func() { require.NoError(t, n.Close()) }()
	held, err := ports.Hold(runner.HomePorts)
	require.NoError(t, err)
	home := &runner.Home{Name: "victim", Dir: dir}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "config"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config", "config.toml"), nil, 0o600))
	victim := &Node{Name: "victim", Home: home, Program: filepath.Join(dir, "program")}
	require.NoError(t, victim.ServeAt(runner.Listen{}, held, ""))
	require.NoError(t, os.WriteFile(victim.Program, []byte("#!/bin/sh\necho last words\nexit 3\n"), 0o755))
	require.NoError(t, p.Start(t.Context(), victim))
	ctx, stop := n.under(t.Context())
	defer stop()
	err = n.follow(ctx, []*Node{victim})
	var died *runner.DiedError
	require.ErrorAs(t, err, &died)
	require.Equal(t, "victim", died.Name)
	require.Equal(t, []string{"last words"}, died.Tail)

	again := NewProcesses(t.Context(), "") // after MayEnd, its end is not an error
	defer func() { require.NoError(t, again.Close()) }()
	turn := filepath.Join(dir, "turn")
	require.NoError(t, os.WriteFile(victim.Program, fmt.Appendf(nil, "#!/bin/sh\nuntil [ -e %s ]; do sleep 0.05; done\nexit 5\n", turn), 0o755))
	require.NoError(t, again.Start(t.Context(), victim))
	again.MayEnd(victim)
	require.NoError(t, os.WriteFile(turn, nil, 0o600))
	status, err := again.Ended(t.Context(), victim)
	require.NoError(t, err)
	require.Equal(t, 5, status)
	require.NoError(t, again.Context().Err())
}

// A version is built once, from its commit; without the commit there is an error.
func TestBuildVersion(t *testing.T) {
	root, into := t.TempDir(), t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(bytes.TrimSpace(out))
	}
	file := func(name, content string) {
		t.Helper()
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	program := func(text string) string { return fmt.Sprintf("package main\n\nfunc main() { println(%q) }\n", text) }
	run("git", "init", "-q")
	file("go.mod", "module example.com/old\n\ngo 1.26\n")
	file("cmd/starlingd/main.go", program("old"))
	run("git", "add", ".")
	run("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "old")
	run("git", "tag", "v1")
	commit := run("git", "rev-parse", "HEAD")
	file("cmd/starlingd/main.go", program("new"))

	for range 2 {
		path, err := buildVersion(t.Context(), root, into, "v1")
		require.NoError(t, err)
		require.Equal(t, filepath.Join(into, commit, "starlingd"), path)
		require.Equal(t, "old", run(path))
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho old\n"), 0o755), "the second time, the version is not built")
	}
	_, err := buildVersion(t.Context(), root, into, "v2")
	require.ErrorIs(t, err, ErrNoVersion)

	// A name in the table stands for its commit, unless a tag has that name.
	_, err = buildVersion(t.Context(), root, into, Preview)
	require.ErrorIs(t, err, ErrNoVersion, "this clone has no such commit")
	run("git", "tag", Preview)
	path, err := buildVersion(t.Context(), root, into, Preview)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(into, commit, "starlingd"), path)

	// The error for a clone without history names the remedy.
	run("git", "add", ".")
	run("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "-m", "new")
	shallow := filepath.Join(t.TempDir(), "shallow")
	run("git", "clone", "-q", "--depth", "1", "--no-tags", "file://"+root, shallow)
	_, err = buildVersion(t.Context(), shallow, into, Preview)
	require.ErrorIs(t, err, ErrNoVersion)
	require.ErrorContains(t, err, "--unshallow")
	_, err = buildVersion(t.Context(), t.TempDir(), into, "v1")
	require.ErrorIs(t, err, ErrNoVersion)
}

// A small disk can be filled and unmounted.
func TestDisks(t *testing.T) {
	n, _ := offline(t, mixed+"\n[[steps]]\ndo = \"full-disk\"\nnodes = [\"c-validator\"]\n")
	require.NoError(t, n.mountDisks())
	disk, small := n.disks[n.Node("c-validator")]
	if !small {
		t.Skip("NOT RUN: a full disk: " + smalldisk.ErrNotPermitted.Error())
	}
	require.Len(t, n.disks, 1)
	ballast := filepath.Join(disk, "ballast")
	require.NoError(t, fill(disk, ballast))
	free, err := smalldisk.Free(disk)
	require.NoError(t, err)
	require.InDelta(t, ballastLeaves, free, 1<<20)
	require.NoError(t, n.Close())
	require.NoFileExists(t, ballast)
	require.NoError(t, n.Close())
}
