package simd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cosmos/cosmos-sdk/server"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
	"github.com/starling-kv/starling/cosmos/sdk/simd"
	"github.com/starling-kv/starling/e2e/runner"
)

// guidePages are the pages of the guide, in the order in which their commands must run.
var guidePages = []string{"docs/how-to/cosmos.md", "docs/how-to/cosmos-join.md", "docs/how-to/cosmos-running.md", "docs/how-to/cosmos-mount.md"}

// notRun lists commands that the guide's prose mentions and its blocks do not contain, with the
// reason.
var notRun = map[string]string{
	"simd comet show-node-id": "TestGuide runs it, and compares its output with the ID of the node key",
	"simd rollback":           "it concerns cosmos/store, which this simd does not mount: cosmos/store/rootmulti tests RollbackToVersion",
	"simd prune":              "it concerns cosmos/store: the guide says that it does not work with that store",
}

// guideBlock is a block of commands in the guide.
type guideBlock struct {
	place   string   // page:line
	groups  []string // the block runs once per group, in the group's home directory
	staysUp string   // output after which the program counts as running; empty: it exits by itself
	steps   []guideStep
}

// guideStep is a command and the lines that it must print. In these lines, a number matches any
// number, and … matches any text.
type guideStep struct {
	command string
	prints  []string
}

var guideMarker = regexp.MustCompile(`^<!-- test: ([a-z, ]+?)(?:, stays up, "([^"]+)")? -->$`)

// guideBlocks returns the `console` blocks of a page of the guide. The comment above each block
// names the groups that run it, in the syntax of the README's comments
// (internal/lint/readme_test.go).
func guideBlocks(t *testing.T, page, text string) (blocks []guideBlock) {
	t.Helper()
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		require.NotContains(t, []string{"```sh", "```bash", "```shell"}, lines[i], "%s:%d: use a `console` block for commands", page, i+1)
		if lines[i] != "```console" {
			continue
		}
		m := guideMarker.FindStringSubmatch(lines[i-1])
		require.NotNil(t, m, "%s:%d: the block needs a comment above it that says how to run it", page, i+1)
		b := guideBlock{place: fmt.Sprintf("%s:%d", page, i+1), groups: strings.Split(m[1], ", "), staysUp: m[2]}
		for i++; lines[i] != "```"; i++ {
			if command, is := strings.CutPrefix(lines[i], "$ "); is {
				for strings.HasSuffix(command, "\\") {
					i++
					command = strings.TrimSuffix(command, "\\") + strings.TrimSpace(lines[i])
				}
				b.steps = append(b.steps, guideStep{command: command})
				continue
			}
			require.NotEmpty(t, b.steps, "%s:%d: output without a command", page, i+1)
			last := &b.steps[len(b.steps)-1]
			last.prints = append(last.prints, lines[i])
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// printed reports whether a program has printed a documented line.
func printed(out, line string) bool {
	pattern := regexp.QuoteMeta(line)
	pattern = regexp.MustCompile(`[0-9a-f]*…`).ReplaceAllString(pattern, ".*")
	pattern = regexp.MustCompile(`[0-9]+(\\\.[0-9]+)?`).ReplaceAllString(pattern, `[0-9]+(\.[0-9]+)?`)
	return regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(out)
}

// guideTakes matches lines that are printed only if a join takes more than 5 seconds.
var guideTakes = regexp.MustCompile(` left$`)

// TestGuide runs the commands of guidePages. One operator joins from a stopped node
// only, and another from a running node, with CometBFT's state from its RPC. The test replaces
// addresses and the trusted header, and nothing else.
func TestGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("a network of processes")
	}
	var (
		text   string
		blocks []guideBlock
	)
	for _, page := range guidePages {
		content, err := os.ReadFile("../../../" + page)
		require.NoError(t, err)
		text += string(content)
		blocks = append(blocks, guideBlocks(t, page, string(content))...)
	}
	checkGuideSentences(t, text, blocks)

	n := newNetwork(t)
	chain := n.alone()
	chain.reach(interval + 3)
	require.NoError(t, chain.process.Stop(grace))
	homes, genesis := map[string]string{}, n.genesis()
	for _, group := range []string{"operator", "other"} {
		homes[group] = filepath.Join(n.dir, "home-of-"+group)
		require.NoError(t, os.Mkdir(homes[group], 0o700))
	}
	require.NoError(t, os.CopyFS(filepath.Join(homes["operator"], "stopped"), os.DirFS(chain.home)))
	chain.start()
	n.until("the chain serves a state", func() bool { return chain.logged("serving states to joiners") > 1 })
	trusted, err := chain.header(3)
	require.NoError(t, err)
	stopped := n.at("stopped", "")
	stopped.ports.Release()

	g := &guide{network: n, chain: chain, genesis: genesis, trusted: trusted.hash,
		env: map[string][]string{}, words: map[string]*strings.Replacer{}, joiners: map[string]*node{}}
	cache := strings.Fields(n.must("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH"))
	for group, peer := range map[string]string{"operator": stopped.ports.Address(portJoiners), "other": chain.ports.Address(portJoiners)} {
		g.env[group] = []string{"HOME=" + homes[group], "GOBIN=" + filepath.Join(n.dir, "bin"),
			"GOCACHE=" + cache[0], "GOMODCACHE=" + cache[1], "GOPATH=" + cache[2],
			"PATH=" + filepath.Join(n.dir, "bin") + ":" + n.dir + ":" + os.Getenv("PATH")}
		g.words[group] = strings.NewReplacer("--home ~/stopped", "--home ~/stopped --laddr "+peer, "[::]:26666", peer, "10.0.0.1:26666", peer,
			"--trust-height 1200", "--trust-height 3", "5D3C…", trusted.hash, " genesis.json", " "+genesis)
		g.joiners[group] = n.at(group, filepath.Join(homes[group], ".simapp"))
	}
	for _, b := range blocks {
		for _, group := range b.groups {
			g.run(b, group)
		}
	}
	for _, d := range g.joiners {
		require.NotNil(t, d.process, "the guide has started %s", d.name)
		head, _, err := chain.state()
		require.NoError(t, err)
		d.reach(head + 2)
		d.agrees()
	}
	id := strings.TrimSpace(n.must(n.simd, "comet", "show-node-id", "--home", chain.home))
	require.Equal(t, strings.TrimSuffix(chain.peer(), "@"+chain.ports.Address(portP2P)), id)
}

// guide holds the environment and replacements of the commands, by group.
type guide struct {
	*network
	chain            *node
	genesis, trusted string
	env              map[string][]string
	words            map[string]*strings.Replacer
	joiners          map[string]*node
}

// run runs a block in the repository's root, with the home directory of a group.
func (g *guide) run(b guideBlock, group string) {
	t := g.t
	t.Helper()
	require.Contains(t, g.env, group)
	d := g.joiners[group]
	for i, s := range b.steps {
		where := b.place + ", " + s.command
		log := filepath.Join(g.dir, fmt.Sprintf("guide-%s-%s-%d.log", group, filepath.Base(b.place), i))
		start := s.command == "simd start"
		if start {
			d.ports.Release()
		}
		if s.command == "simd comet bootstrap-state" { // it reads the two headers after the state
			head, _, err := g.chain.state()
			require.NoError(t, err)
			g.chain.reach(head + 2)
		}
		p, err := g.processes.Start(runner.Spec{Name: where, Path: "bash", Args: []string{"-euc", g.words[group].Replace(s.command)},
			Env: g.env[group], Dir: "../../..", Log: log, Ends: b.staysUp == ""})
		require.NoError(t, err)
		output := func() string { content, _ := os.ReadFile(log); return string(content) }
		if b.staysUp != "" {
			g.until(where+" to print "+b.staysUp, func() bool { return strings.Contains(output(), b.staysUp) })
		} else {
			g.until(where, func() bool {
				select {
				case <-p.Done():
					return true
				default:
					return false
				}
			})
			require.NoError(t, p.ExitError(), "%s\n%s", where, output())
		}
		for _, line := range s.prints {
			if !guideTakes.MatchString(line) {
				require.True(t, printed(output(), g.words[group].Replace(line)), "%s prints %q:\n%s", where, line, output())
			}
		}
		switch {
		case start:
			d.process = p
		case strings.HasPrefix(s.command, "simd init "):
			// Settings that the guide leaves to the operator: addresses of this node and of others.
			d.configure()
			rpc := "http://" + g.chain.ports.Address(portRPC)
			d.set("config/config.toml", map[string]string{"p2p.persistent_peers": quoted(g.chain.peer()), "statesync.rpc_servers": quoted(rpc + "," + rpc),
				"statesync.trust_height": "3", "statesync.trust_hash": quoted(g.trusted)})
			d.set("config/app.toml", map[string]string{"state-sync.snapshot-interval": "0"})
		}
	}
}

// alone starts a chain with one validator, which serves joiners.
func (n *network) alone() *node {
	n.t.Helper()
	d := n.init("validator")
	d.set("config/app.toml", map[string]string{"state-sync.snapshot-interval": strconv.Itoa(5)})
	d.serving()
	d.validates()
	return d
}

// validates starts a new node as the only validator of a chain.
func (d *node) validates() {
	n := d.n
	n.t.Helper()
	n.nodes = []*node{d}
	keyring := []string{"--keyring-backend", "test", "--home", d.home}
	for _, args := range [][]string{
		{"keys", "add", "key"}, {"genesis", "add-genesis-account", "key", "1000000000stake"}, {"genesis", "gentx", "key", "500000000stake", "--chain-id", chainID},
	} {
		n.must(n.simd, append(args, keyring...)...)
	}
	n.must(n.simd, "genesis", "collect-gentxs", "--home", d.home)
	d.start()
}

// checkGuideSentences fails if the guide's prose contains a command or line of code that no test
// runs.
func checkGuideSentences(t *testing.T, text string, blocks []guideBlock) {
	t.Helper()
	var commands []string
	for _, b := range blocks {
		for _, s := range b.steps {
			commands = append(commands, s.command)
		}
	}
	for _, m := range regexp.MustCompile("`((?:simd|starling-iavl) [^`]*)`").FindAllStringSubmatch(text, -1) {
		require.True(t, notRun[m[1]] != "" || slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(c, m[1]) }),
			"the guide names %q, which is in no block", m[1])
	}
	for command := range notRun {
		require.Contains(t, text, "`"+command+"`")
	}
	source, err := os.ReadFile("guide_test.go")
	require.NoError(t, err)
	_, line, _ := strings.Cut(text, "# Serve joiners from a running node\n")
	_, line, _ = strings.Cut(line, "```go\n")
	line, _, _ = strings.Cut(line, "```")
	require.Contains(t, string(source), "\n\t"+line)
	root := &cobra.Command{Use: "simd"}
	documentedLine(root, generation.Creator(simd.New), nil, func(*cobra.Command) {})
	start, _, err := root.Find([]string{"start"})
	require.NoError(t, err)
	require.Equal(t, "start", start.Name())

	module, err := os.ReadFile("../sdk053.mod")
	require.NoError(t, err)
	replaced := regexp.MustCompile("(?s)```text\n(replace .*?)```").FindStringSubmatch(text)
	require.NotNil(t, replaced)
	require.Contains(t, string(module), replaced[1])
}

// documentedLine contains the line that a chain has to change.
func documentedLine(rootCmd *cobra.Command, newApp servertypes.AppCreator, appExport servertypes.AppExporter, addModuleInitFlags servertypes.ModuleInitFlags) {
	app := struct{ DefaultNodeHome string }{simd.DefaultHome()}
	server.AddCommands(rootCmd, app.DefaultNodeHome, serve.Creator(newApp), appExport, addModuleInitFlags)
}
