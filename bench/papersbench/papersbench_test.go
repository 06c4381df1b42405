package papersbench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/dsmbench"
	"github.com/starling-kv/starling/bench/e2ebench"
	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/joinbench"
	"github.com/starling-kv/starling/bench/programsbench"
	"github.com/starling-kv/starling/bench/relaybench"
	"github.com/starling-kv/starling/bench/storagebench"
	"github.com/starling-kv/starling/bench/syncbench"
	"github.com/starling-kv/starling/transport/rdma"
)

// parsers check the commands of figures, by their first word.
var parsers = map[string]func(string) error{
	"avlstar/space":  parses[spaceOptions],
	"join/moving":    parses[movingOptions],
	"chainkv/cache":  parses[cacheOptions],
	"byzantine":      parses[syncbench.ByzantineOptions],
	"newcomer":       parses[e2ebench.NewcomerOptions],
	"snapshots":      parses[e2ebench.SnapshotsOptions],
	"sync":           parses[syncbench.Options],
	"storage":        parses[storagebench.Options],
	"start":          parses[storagebench.StartOptions],
	"dsm":            parses[dsmbench.Options],
	"rainblock/trie": parses[trieOptions],
	"join":           parses[joinbench.Options],
	"relay":          parses[relaybench.Options],
	"programs":       parses[programsbench.Options],
}

func parses[O any, P interface {
	*O
	Flags(flags *harness.Flags)
}](command string) error {
	_, err := parse[O, P](command)
	return err
}

func TestRegistry(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range figures {
		require.False(t, seen[f.id], "%s twice", f.id)
		seen[f.id] = true
		require.NotEmpty(t, f.title, f.id)
		require.NotEmpty(t, f.paper, "%s: what the paper measured", f.id)
		paper, _, _ := strings.Cut(f.id, "/")
		known := false
		for _, p := range papers {
			known = known || p.short == paper
		}
		require.True(t, known, "%s is not on the page", f.id)
		if f.run == nil {
			require.NotEmpty(t, f.reason, f.id)
			require.NotEmpty(t, f.needs, f.id)
			continue
		}
		require.Empty(t, f.reason, f.id)
		require.NotEmpty(t, f.how, f.id)
		require.NotEmpty(t, f.differs, "%s: what differs from the paper", f.id)
		for _, o := range []Options{{}, {Quick: true}, {Full: true}} {
			require.NotEmpty(t, f.commands(o), f.id)
			for _, c := range f.commands(o) {
				word, _, _ := strings.Cut(c, " ")
				require.NotNil(t, parsers[word], c)
				require.NoError(t, parsers[word](c))
			}
		}
	}
}

// The figures of BoR measure RDMA on the devices of the run, or in the VM; the others ignore them.
func TestTargets(t *testing.T) {
	for _, target := range []guest.Target{{Devices: "mlx5_0,mlx5_1"}, {Guest: true}} {
		for _, f := range figures {
			plain, commands := f.commands(Options{Full: true}), f.commands(Options{Full: true, Target: target})
			require.Len(t, commands, len(plain))
			for i, c := range commands {
				want := plain[i]
				if strings.HasPrefix(f.id, "bor/") && (f.id != "bor/components" || !target.Guest) {
					want = target.Add(want)
				}
				require.Equal(t, want, c)
				word, _, _ := strings.Cut(c, " ")
				require.NoError(t, parsers[word](c))
			}
		}
	}
	o, err := parse[joinbench.Options](figureOf("bor/fig9").commands(Options{Target: guest.Target{Devices: "mlx5_0,mlx5_1"}})[0])
	require.NoError(t, err)
	require.Equal(t, "mlx5_0,mlx5_1", o.Devices)
	require.Equal(t, 20, o.Blocks)
	if !rdma.Supported {
		_, err := Run(t.Context(), Options{Out: t.TempDir(), Target: guest.Target{Devices: "mlx5_0,mlx5_1"}}, harness.NewProgress(os.Stderr))
		require.ErrorContains(t, err, "no RDMA device mlx5_0: ")
	}
}

func figureOf(id string) *figure {
	return figures[slices.IndexFunc(figures, func(f *figure) bool { return f.id == id })]
}

func TestUnknownFigure(t *testing.T) {
	var o Options
	flags := &harness.Flags{FlagSet: pflag.NewFlagSet("papers", pflag.ContinueOnError)}
	o.Flags(flags)
	require.NoError(t, flags.Parse([]string{"--only", "avlstar/fig8"}))
	err := flags.Check()
	require.ErrorContains(t, err, `--only has "avlstar/fig8"`)
	require.ErrorContains(t, err, "avlstar/fig7")
	require.NoError(t, flags.Parse([]string{"--only", "avlstar/fig7", "--quick", "--full"}))
	require.ErrorContains(t, flags.Check(), "--quick and --full exclude each other")
}

func sample() *report {
	return &report{
		ID: "avlstar/fig7", Commands: []string{"byzantine"},
		Machine: harness.Machine{CPUs: 2, Commit: "0123456789abcdef", Date: time.Unix(1_800_000_000, 0).UTC(), CPU: "A <processor>"},
		outcome: outcome{
			Rows: []row{{"join", "below 16.3 s", "1 s"}},
			Charts: []chart{
				{Title: "AVL* & others", X: "peers", Y: "seconds", Lines: []line{
					{Name: "ours", Points: []point{at(26, 3), at(1, 2, 1, 4)}}, {Name: "paper", Paper: true, Points: []point{at(20, 16.3)}},
				}},
				{Name: "logs", Title: "t", X: "x", Y: "y", LogX: true, LogY: true, Lines: []line{{Name: "a", Points: []point{at(1, 0.001), at(100_000, 70)}}}},
			},
		},
	}
}

// A picture depends on the report alone, has colors for both backgrounds, and no placeholders.
func TestPicture(t *testing.T) {
	r := sample()
	for _, c := range r.Charts {
		first, err := picture(c, r.label())
		require.NoError(t, err)
		second, err := picture(c, r.label())
		require.NoError(t, err)
		require.Equal(t, string(first), string(second))
		text := string(first)
		require.Contains(t, text, "prefers-color-scheme: dark")
		require.Contains(t, text, "commit 012345678")
		require.Contains(t, text, "A &lt;processor&gt;")
		require.Contains(t, text, "var(--a)")
		for _, placeholder := range []string{"#01020", "#04050", "#0701", "NaN", "Inf", "#-"} {
			require.NotContains(t, text, placeholder)
		}
	}
}

// All pictures of reads have their lines in the same order, which a line's color follows. Each mix
// was measured with another contestant first.
func TestReadCharts(t *testing.T) {
	r, contestants := new(storagebench.Result), []string{"mixed", "zones", "geth-path", "starling"}
	for i, distribution := range []string{"normal", "zipf"} {
		for j, mix := range []string{"10:0", "0:10"} {
			for k := range contestants {
				contestant := contestants[(2*i+j+k+1)%len(contestants)]
				step := map[string]string{"zones": "+ zones", "starling": "+ no log"}[contestant]
				r.Reads = append(r.Reads, storagebench.ReadCell{Contestant: contestant, Step: step, Mix: mix, Distribution: distribution})
			}
		}
	}
	charts := readCharts(r)
	require.Len(t, charts, 2)
	for _, c := range charts {
		var names []string
		for _, l := range c.Lines {
			names = append(names, l.Name)
		}
		require.Equal(t, []string{"mixed", "+ zones", "geth-path", "+ no log"}, names)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.05: "0.05", 5000: "5000", 20_000: "20k", 1.5e6: "1.5M", -30_000: "-30k", 2e9: "2G"} {
		require.Equal(t, want, short(v))
	}
}

func TestPage(t *testing.T) {
	r := sample()
	b, err := page(map[string]*report{r.ID: r})
	require.NoError(t, err)
	text := string(b)
	for _, f := range figures {
		require.Contains(t, text, `id="`+f.id+`"`)
	}
	require.Contains(t, text, `src="avlstar-fig7.svg"`)
	require.Contains(t, text, `src="avlstar-fig7-logs.svg"`)
	require.Contains(t, text, "below 16.3 s")
	require.Contains(t, text, "A &lt;processor&gt;")
	require.Contains(t, text, "It would take:")
	require.Contains(t, text, "Not measured yet.")
}

// A saved report is loaded as it was.
func TestLoad(t *testing.T) {
	dir, r := t.TempDir(), sample()
	r.Charts = nil
	require.NoError(t, r.save(dir))
	loaded, err := load(dir, r.ID)
	require.NoError(t, err)
	require.Equal(t, r, loaded)
}

// A report is used again for the same commands at the same known commit only.
func TestFits(t *testing.T) {
	r := sample()
	require.True(t, r.fits(r.Commands, r.Machine.Commit))
	require.False(t, r.fits([]string{"byzantine --keys 7"}, r.Machine.Commit))
	require.False(t, r.fits(r.Commands, "another"))
	r.Machine.Commit = ""
	require.False(t, r.fits(r.Commands, ""), "changed code")
	require.False(t, (*report)(nil).fits(r.Commands, "another"))
}

func TestSpace(t *testing.T) {
	out, err := runSpace(t.Context(), []string{"avlstar/space --keys 4000 --limit 50"}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	require.Len(t, out.Charts, 1)
	theirs, ours := out.Charts[0].Lines[0].Points, out.Charts[0].Lines[1].Points
	require.Len(t, theirs, 4+1+3+4, "a point after each block")
	require.Len(t, ours, len(theirs))
	require.Greater(t, theirs[len(theirs)-1].Y, 1.5*ours[len(ours)-1].Y, "the paper's chunks never merge")
	require.NotEmpty(t, out.Raw)
}

func TestMoving(t *testing.T) {
	out, err := runMoving(t.Context(), []string{"join/moving --keys 30000 --shares 0.01"}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	bytes := out.Charts[0].Lines
	require.Less(t, bytes[0].Points[0].Y, 0.2*bytes[4].Points[0].Y, "few keys changed, and most bytes were fetched")
	require.Less(t, bytes[1].Points[0].Y, 0.01*bytes[4].Points[0].Y, "three changes are in one block")
	require.Less(t, bytes[2].Points[0].Y, bytes[3].Points[0].Y, "a retargeted join uses what it has")
}

func TestCache(t *testing.T) {
	out, err := runCache(t.Context(), []string{"chainkv/cache --requests 6000"}, harness.NewProgress(os.Stderr))
	require.NoError(t, err)
	require.Len(t, out.Charts, 3, "distributions")
	for _, c := range out.Charts {
		require.Len(t, c.Lines, 4, c.Title)
		for _, l := range c.Lines {
			require.Len(t, l.Points, 5, "%s, %s: constant mixes", c.Title, l.Name)
		}
	}
}

// Figures of an interrupted run are kept, and a figure that fails does not end the run.
func TestRun(t *testing.T) {
	kept := figures
	t.Cleanup(func() { figures = kept })
	dir, runs := t.TempDir(), 0
	ctx, cancel := context.WithCancel(t.Context())
	good := func(context.Context, []string, *harness.Progress) (*outcome, error) {
		runs++
		return &sample().outcome, nil
	}
	figures = []*figure{
		{id: "avlstar/a", usual: []string{"a"}, run: good},
		{id: "avlstar/b", usual: []string{"b"}, run: func(context.Context, []string, *harness.Progress) (*outcome, error) {
			return nil, os.ErrPermission
		}},
		{id: "avlstar/c", usual: []string{"c"}, run: func(ctx context.Context, _ []string, _ *harness.Progress) (*outcome, error) {
			cancel()
			return nil, harness.ErrInterrupted
		}},
	}
	progress := harness.NewProgress(os.Stderr)
	_, err := Run(ctx, Options{Out: dir}, progress)
	require.ErrorContains(t, err, "interrupted: 1 figure of this run is in "+dir)
	for _, name := range []string{"avlstar-a.json", "avlstar-a.svg", "avlstar-a-logs.svg", "index.html"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	require.NoFileExists(t, filepath.Join(dir, "avlstar-b.json"))

	_, err = Run(t.Context(), Options{Out: dir, Only: []string{"avlstar/b"}}, progress)
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "avlstar/b: ")
	result, err := Run(t.Context(), Options{Out: dir, Only: []string{"avlstar/a"}, Force: true}, progress)
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	require.Len(t, result.Reports, 1)
	var out bytes.Buffer
	result.Print(&out)
	require.Contains(t, out.String(), "below 16.3 s")
	require.Contains(t, out.String(), "1 figure measured now")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "avlstar-a.json"), []byte("{"), 0o600))
	_, err = Run(t.Context(), Options{Out: dir}, progress)
	require.ErrorContains(t, err, "avlstar-a.json")
	require.ErrorContains(t, err, "remove the file")
}
