package lint

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// The commands of the README and of the tutorials are run unchanged. A comment before a `sh` block
// says how:
//
//	<!-- test: GROUP -->                        it ends with exit status 0
//	<!-- test: GROUP, stays up, "TEXT" -->      it prints TEXT and stays up while the rest of its group runs; then Ctrl-C ends it
//	                                            with exit status 0 (except `make`, which Ctrl-C ends itself, whatever it ran)
//	<!-- test: GROUP, stays up until killed, "TEXT" -->
//	                                            the same, but a later block of its group kills it
//
// The blocks of a group run in order, each in its own shell, as a reader would open one: exports of
// an earlier block are not visible. All groups run in a copy of the repository with its own home
// folder (~), so no files of the reader are touched. A block without such a comment may contain
// only `make TARGET`, and is checked by `make --dry-run` (this test runs as part of `make test`).

// block is a fenced block of the README.
type block struct {
	line     int
	group    string // empty: not run
	staysUp  string // text that shows that it is up; empty: it ends by itself
	killed   bool   // a later block of the group kills it; only with staysUp
	commands string
}

var (
	markerPattern = regexp.MustCompile(`^<!-- test: ([a-z0-9-]+)(, stays up( until killed)?, "([^"]+)")? -->$`)
	makePattern   = regexp.MustCompile(`^make( [a-z0-9-]+)+$`)
)

// readmeBlocks extracts the `sh` blocks.
func readmeBlocks(t *testing.T, text string) (blocks []block) {
	t.Helper()
	var (
		marker  []string // of the last line, if that was a marker
		current *block   // inside a fence
	)
	for i, line := range strings.Split(text, "\n") {
		switch {
		case current != nil && line == "```":
			if current.line > 0 {
				blocks = append(blocks, *current)
			}
			current = nil
		case current != nil:
			current.commands += line + "\n"
		case line == "```sh":
			current = &block{line: i + 1}
			if marker != nil {
				current.group, current.killed, current.staysUp = marker[1], marker[3] != "", marker[4]
			}
		case strings.HasPrefix(line, "```"):
			current = new(block) // another language: ignored
		case strings.HasPrefix(line, "<!-- test"):
			marker = markerPattern.FindStringSubmatch(line)
			require.NotNil(t, marker, "README.md:%d: %s is not one of the comments described in readme_test.go", i+1, line)
			continue
		case line == "" && marker != nil:
			t.Fatalf("README.md:%d: the comment of a test must be right above its block", i+1)
		}
		marker = nil
	}
	require.Nil(t, current, "README.md ends inside a block")
	return blocks
}

func TestREADMECommands(t *testing.T) {
	clone := cloneOfRepository(t)
	for _, page := range []string{
		"README.md", "docs/tutorials/first-program.md", "docs/tutorials/first-node.md", "docs/tutorials/byzantine-network.md",
	} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		var groups []string
		byGroup := map[string][]block{}
		for _, b := range readmeBlocks(t, string(text)) {
			if b.group == "" {
				checkMakeTargets(t, b)
				continue
			}
			if byGroup[b.group] == nil {
				groups = append(groups, b.group)
			}
			byGroup[b.group] = append(byGroup[b.group], b)
		}
		require.NotEmpty(t, groups, page)
		for _, group := range groups {
			t.Run(group, func(t *testing.T) { runGroup(t, clone, page, byGroup[group]) })
		}
	}
}

// The tutorial shows the whole program that it runs.
func TestTutorialProgram(t *testing.T) {
	program, err := os.ReadFile("examples/seats/main.go")
	require.NoError(t, err)
	page, err := os.ReadFile("docs/tutorials/first-program.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```go\n"+string(program)+"```\n")
}

func checkMakeTargets(t *testing.T, b block) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(b.commands), "\n") {
		require.Regexp(t, makePattern, line, "README.md:%d: a block that is not run may contain only `make TARGET`: put a comment above it", b.line)
		args := append([]string{"--dry-run"}, strings.Fields(line)[1:]...)
		out, err := exec.Command("make", args...).CombinedOutput()
		require.NoError(t, err, "README.md:%d: %s\n%s", b.line, line, out)
	}
}

func runGroup(t *testing.T, clone, page string, blocks []block) {
	processes := runner.NewProcesses(context.Background())
	ctx, cancel := context.WithTimeoutCause(processes.Context(), 10*time.Minute, fmt.Errorf("not done within 10 minutes"))
	t.Cleanup(func() {
		cancel()
		require.NoError(t, processes.Stop(30*time.Second))
	})
	env := shellEnvironment(t)
	type upShell struct {
		block
		proc *runner.Process
	}
	var up []upShell
	for _, b := range blocks {
		name := fmt.Sprintf("%s:%d", page, b.line)
		log := filepath.Join(t.TempDir(), "output")
		shell, err := processes.Start(runner.Spec{
			Name: name, Path: "bash", Args: []string{"-euc", b.commands}, Env: env, Dir: clone, Log: log, Ends: b.staysUp == "" || b.killed,
		})
		require.NoError(t, err)
		output := func() string { content, _ := os.ReadFile(log); return string(content) }
		if b.staysUp != "" {
			require.NoError(t, runner.Poll(ctx, fmt.Sprintf("%s to print %q", name, b.staysUp), func() bool {
				return strings.Contains(output(), b.staysUp) || ended(shell)
			}), "%s", output())
			require.Contains(t, output(), b.staysUp, name)
			up = append(up, upShell{b, shell})
			continue
		}
		select {
		case <-shell.Done():
			require.NoError(t, shell.ExitError(), "%s:\n%s\n%s", name, b.commands, output())
			t.Logf("%s:\n%s", name, output())
		case <-ctx.Done():
			require.NoError(t, context.Cause(ctx), "%s:\n%s\n%s", name, b.commands, output())
		}
	}
	for _, shell := range up { // Ctrl-C
		if shell.killed {
			select {
			case <-shell.proc.Done():
				require.Error(t, shell.proc.ExitError(), "%s is killed by a later block", shell.proc.Name())
			case <-ctx.Done():
				require.NoError(t, context.Cause(ctx), "%s is killed by a later block", shell.proc.Name())
			}
			continue
		}
		require.NoError(t, shell.proc.Interrupt(time.Minute))
		said := strings.Join(runner.Tail(shell.proc.Log(), 50), "\n")
		if !strings.HasPrefix(shell.commands, "make ") {
			require.NoError(t, shell.proc.ExitError(), "%s ends on Ctrl-C:\n%s", shell.proc.Name(), said)
		}
		t.Logf("%s:\n%s", shell.proc.Name(), said)
	}
}

func ended(shell *runner.Process) bool {
	select {
	case <-shell.Done():
		return true
	default:
		return false
	}
}

// shellEnvironment returns an environment with a new home folder and Go's existing caches.
func shellEnvironment(t *testing.T) []string {
	t.Helper()
	env := []string{"HOME=" + t.TempDir()}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOENV"} {
		out, err := exec.Command("go", "env", name).Output()
		require.NoError(t, err)
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	return env
}

// cloneOfRepository copies the working tree without build outputs and without history.
func cloneOfRepository(t *testing.T) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "starling")
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		to := filepath.Join(clone, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == ".git" || path == "build" || path == ".tools"):
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(to, 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, content, info.Mode().Perm()|0o200)
	}))
	return clone
}

func TestREADMEBlocks(t *testing.T) {
	blocks := readmeBlocks(t, strings.Join([]string{
		"Text", "```sh", "make test", "```", `<!-- test: a, stays up, "ready: now" -->`, "```sh", "one", "two", "```",
		"```go", "not run", "```", "<!-- test: b -->", "```sh", "three", "```", "```sh", "make x", "```",
		`<!-- test: c, stays up until killed, "up" -->`, "```sh", "four", "```",
	}, "\n"))
	require.Equal(t, []block{
		{2, "", "", false, "make test\n"}, {6, "a", "ready: now", false, "one\ntwo\n"}, {14, "b", "", false, "three\n"},
		{17, "", "", false, "make x\n"}, {21, "c", "up", true, "four\n"},
	}, blocks)
}
