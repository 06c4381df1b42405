package browser_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/browser"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/node/statuspage"
)

// large is a join with many chunks and peers, whose names are hostile.
type large struct{ chunks, perCell int }

func (l large) Map() statuspage.Map {
	random := rand.New(rand.NewPCG(1, 1))
	m := statuspage.Map{Version: 1, Height: 1000, Chunks: l.chunks, PerCell: l.perCell}
	for i := range (l.chunks + l.perCell - 1) / l.perCell {
		c := statuspage.Cell{Peer: uint16(1 + random.IntN(100))}
		switch {
		case i < l.chunks/l.perCell/2:
			c.State, c.Lied = statuspage.CellStored, random.IntN(500) == 0
		case random.IntN(40) == 0:
			c.State, c.Lied = statuspage.CellState(random.IntN(5)), random.IntN(5) == 0
		default:
			c.Peer = 0
		}
		m.Cells = append(m.Cells, c)
	}
	return m
}

func (l large) Status() statuspage.Status {
	bad := `"><script>document.title='marked'</script><img src=x onerror=document.title='marked'>&amp;`
	s := statuspage.Status{
		Time: time.Now(), Phase: statuspage.PhaseJoining, Node: statuspage.Node{Moniker: bad, ChainID: bad, ID: bad, Version: bad, CometBFT: bad},
		Chain: statuspage.Chain{AppHash: bad}, Caches: []statuspage.Cache{{Zone: bad}},
		Join: &statuspage.Join{Phase: "fetching", Height: 1000, Chunks: l.chunks, ChunksDone: l.chunks / 2, MapVersion: 1},
	}
	s.Sharded = &statuspage.Sharded{Head: 1002, Durable: 1000, Lag: 2, Waiting: bad, Liars: []statuspage.ShardLiar{{ID: bad}}}
	for i := range 300 {
		s.Sharded.Ranges = append(s.Sharded.Ranges, statuspage.ShardRange{Range: fmt.Sprintf("%d%s", i, bad), Nodes: []statuspage.ShardNode{
			{ID: bad, Address: bad, Connected: true, State: bad, Newest: 1001, Durable: 1000, LagBlocks: 2}, {ID: bad, Address: bad, Error: bad},
		}})
	}
	s.RDMA = &statuspage.RDMA{PathsUp: 1, MemoryBytes: 36 << 20, Peers: []statuspage.RDMAPeer{
		{ID: bad, Connected: true, PathsUp: 1, SentBytes: 5000, ReceivedBytes: 7000},
		{ID: bad, Connected: true, Fallback: bad, FallbackTime: time.Now()},
		{ID: bad, Fallback: "stalled", FallbackTime: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)},
	}}
	for i := range statuspage.MaxPeers {
		s.Join.Peers = append(s.Join.Peers, statuspage.Peer{Index: uint16(i + 1), ID: fmt.Sprintf("%d%s", i, bad), Address: bad, State: bad, Reason: bad})
	}
	return s
}

// fixed is a node with a fixed status.
type fixed statuspage.Status

func (f fixed) Status() statuspage.Status { return statuspage.Status(f) }
func (f fixed) Map() statuspage.Map       { return statuspage.Map{} }

// attach starts a browser that ends with the test.
func attach(ctx context.Context, t *testing.T) *browser.Tab {
	chromium, found := browser.Path()
	if !found {
		t.Skipf("NOT RUN: %s: there is no chromium (Debian: apt-get install chromium)", t.Name())
	}
	t.TempDir() // removed after the browser has ended
	processes := runner.NewProcesses(ctx)
	t.Cleanup(func() { require.NoError(t, processes.Stop(10*time.Second)) })
	profile := filepath.Join(t.TempDir(), "profile")
	_, err := processes.Start(runner.Spec{Name: "chromium", Path: chromium, Args: browser.Flags(profile), Log: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	tab, err := browser.Attach(ctx, profile)
	require.NoError(t, err)
	return tab
}

// The page shows the most important answers first; while a node joins, there are no cards of zeros.
func TestFirstAnswersInABrowser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tab := attach(ctx, t)
	defer tab.Close()
	now := time.Now()
	idle := statuspage.Status{
		Time: now, Phase: statuspage.PhaseRunning,
		Node: statuspage.Node{Moniker: "ann", ChainID: "demo-1", ID: strings.Repeat("ab", 20), Version: "v1", CometBFT: "v0.40.0", AppVersion: 1, Started: now.Add(-26 * time.Hour)},
		Chain: statuspage.Chain{
			Height: 1200, OldestHeight: 1100, AppHash: strings.Repeat("cd", 32), BlockTime: now, BlockSeconds: 1.1, Peers: 2,
			PeerList: []statuspage.ChainPeer{
				{ID: strings.Repeat("01", 20), Moniker: "bob", Address: "10.0.0.2:26656", Outbound: true, Seconds: 90000},
				{ID: strings.Repeat("02", 20), Moniker: "carol", Address: "10.0.0.3:40112", Seconds: 30},
			},
			Validator: &statuspage.Validator{Power: 10, LastHeight: 1199, LastSigned: true, Blocks: 100, Missed: 2},
		},
		Tree:    statuspage.Tree{Keys: 3010, Bytes: 339933, Height: 14, Chunks: 376, MemoryBytes: 1 << 20, Versions: 101, HeldBytes: 50_000},
		Caches:  []statuspage.Cache{{Zone: "state", Hits: 1000, Misses: 3}, {Zone: "blocks", Hits: 500, Misses: 20}},
		Flusher: statuspage.Flusher{SafeHeight: 1190, LagBlocks: 10, LagBytes: 5000, LagSeconds: 11},
		Disk:    statuspage.Disk{Known: true, FreeBytes: 50e9, MinFreeBytes: 1e9}, Snapshots: []int64{1000},
	}
	joining := statuspage.Status{
		Time: now, Phase: statuspage.PhaseJoining, Node: idle.Node, Disk: idle.Disk, Caches: []statuspage.Cache{{Zone: "state"}, {Zone: "blocks"}},
		Join: &statuspage.Join{Phase: "looking", Connected: 3, Peers: []statuspage.Peer{}},
	}
	catching := joining
	catching.Phase, catching.Chain, catching.Join = statuspage.PhaseCatchingUp, statuspage.Chain{Height: 1200, AppHash: strings.Repeat("cd", 32)}, nil
	catching.CatchUp = &statuspage.CatchUp{
		State: "catch_up", Height: 1200, Target: 5000, Blocks: 200, Bytes: 64e6, Rate: 12e6, BlockRate: 85.33, Connected: 3, Banned: 1, Seconds: 61, SecondsLeft: 44.6,
	}
	caught, over := idle, *catching.CatchUp
	over.State, over.SecondsLeft = "normal", 0
	caught.CatchUp = &over
	lacking, quiet := idle, idle
	lacking.RDMA = &statuspage.RDMA{Missing: "device: there is none", Fix: "load the device's module", Peers: []statuspage.RDMAPeer{}}
	quiet.RDMA = &statuspage.RDMA{Peers: []statuspage.RDMAPeer{}}
	// texts of the cards that are shown
	const titles = `[...document.querySelectorAll("main > .card")].filter((c) => !c.hidden && c.offsetHeight > 0).map((c) => c.querySelector("h2").textContent).join("; ")`
	for name, c := range map[string]struct {
		status statuspage.Status
		cards  string
		says   []string
	}{
		"idle": {idle, "This node; Chain; State; Disk; Caches; Program; 2 peers", []string{"yes, power 10", "Signed block 1,199", "Missed of the last 100", "26 hr", "bob", "carol"}},
		"RDMA does not have": {lacking, "This node; Chain; State; Disk; Caches; Program; RDMA; 2 peers", []string{
			"not possible when this node started: device: there is none. All responses use TLS.", "Fix: load the device's module; then restart",
		}},
		"RDMA without peers": {quiet, "This node; Chain; State; Disk; Caches; Program; RDMA; 2 peers", []string{"0 channels up", "no peer with RDMA yet"}},
		"joining":            {joining, "Joining: looking for peers and a snapshot; This node; Disk; Program", nil},
		"catching up": {catching, "Catching up by blocks; This node; Chain; Disk; Program", []string{
			"block 1,200 of 5,000 · 85.3 blocks/s · 12.0 MB/s · 45 sec left", "3 peers · 1 banned · 200 blocks executed, 64.0 MB · 61 sec so far", "catch_up",
		}},
		"caught up": {caught, "Caught up to block 1,200 in 61 sec; This node; Chain; State; Disk; Caches; Program; 2 peers", []string{"yes, power 10", "200 blocks executed"}},
	} {
		s, err := statuspage.Listen(ctx, "127.0.0.1:0", statuspage.Options{Logger: log.NewNopLogger(), Source: fixed(c.status)})
		require.NoError(t, err)
		for _, width := range []int64{420, 1000, 1280} {
			require.NoError(t, tab.Look(ctx, width, 900, width == 420)) // the narrow one is dark
			require.NoError(t, tab.Open(ctx, "http://"+s.Addr()+"/"))
			var cards, text string
			require.NoError(t, runner.Poll(ctx, "the cards", func() bool {
				return tab.Eval(ctx, titles, &cards) == nil && cards == c.cards
			}), "%s: %s", name, cards)
			require.NoError(t, tab.Eval(ctx, "document.body.innerText", &text))
			for _, words := range c.says {
				require.Contains(t, text, words)
			}
			require.NotContains(t, text, "none yet", "%s: it has blocks, or no card of them", name)
			var wide bool
			require.NoError(t, tab.Eval(ctx, `document.documentElement.scrollWidth > window.innerWidth ||
				[...document.querySelectorAll(".card")].some((c) => c.scrollWidth > c.clientWidth)`, &wide))
			require.False(t, wide, "%s at %d: the page or a card scrolls sideways", name, width)
			if dir := os.Getenv("STARLING_SCREENSHOTS"); dir != "" {
				require.NoError(t, tab.Screenshot(ctx, filepath.Join(dir, fmt.Sprintf("status-%s-%d.png", name, width))))
			}
		}
		require.NoError(t, s.Close())
	}
}

// The largest map that has a cell for each chunk, and one with more chunks than cells, both with
// peers whose names are markup.
func TestLargeMapInABrowser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tab := attach(ctx, t)
	defer tab.Close()
	for _, l := range []large{{statuspage.MaxCells, 1}, {5_000_000, 77}} {
		s, err := statuspage.Listen(ctx, "127.0.0.1:0", statuspage.Options{Logger: log.NewNopLogger(), Source: l})
		require.NoError(t, err)
		require.NoError(t, tab.Look(ctx, 1280, 800, false))
		require.NoError(t, tab.Open(ctx, "http://"+s.Addr()+"/"))
		cells := (l.chunks + l.perCell - 1) / l.perCell
		var drawn int
		require.NoError(t, runner.Poll(ctx, "the map", func() bool {
			return tab.Eval(ctx, "typeof drawn === 'object' && drawn ? drawn.colours.filter(Boolean).length : 0", &drawn) == nil && drawn == cells
		}))
		var drawing float64
		require.NoError(t, tab.Eval(ctx, "(() => { drawn = null; const t = performance.now(); draw(); return performance.now() - t; })()", &drawing))
		t.Logf("%d cells drawn again in %.0f ms", cells, drawing)
		var text, title string
		require.NoError(t, tab.Eval(ctx, "document.getElementById('cells').getAttribute('aria-label')", &text))
		require.Contains(t, text, "stored")
		if l.perCell > 1 {
			require.NoError(t, tab.Eval(ctx, "document.getElementById('map-note').textContent", &text))
			require.Contains(t, text, fmt.Sprintf("Each cell is %d chunks", l.perCell))
		}
		require.NoError(t, tab.Eval(ctx, "document.getElementById('rdma').innerText", &text))
		require.Contains(t, text, "1 channel up")
		for _, shown := range []string{"none: TLS", "not connected", "2026", "nothing arrived in time"} {
			require.Contains(t, text, shown)
		}
		var faults int
		require.NoError(t, tab.Eval(ctx, "document.querySelectorAll('#rdma-peers td.bad').length", &faults))
		require.Equal(t, 1, faults, "a peer that has disconnected is not a fault")
		require.NoError(t, tab.Eval(ctx, "document.getElementById('storage').innerText", &text))
		for _, shown := range []string{"height 1,000 on disk, of 1,002 · 2 blocks behind · 100 more in status.json · 1 invalid response", "silent: "} {
			require.Contains(t, text, shown)
		}
		require.NoError(t, tab.Eval(ctx, "document.title", &title))
		require.NotEqual(t, "marked", title)
		var foreign int
		require.NoError(t, tab.Eval(ctx, "document.images.length - 1 + document.scripts.length - 1", &foreign))
		require.Zero(t, foreign, "a name became markup")
		require.NoError(t, tab.Eval(ctx, "document.body.innerText", &text))
		require.Equal(t, true, strings.Contains(text, `"><script>document.title='marked'</script>`), "the name is shown as it is")
		if dir := os.Getenv("STARLING_SCREENSHOTS"); dir != "" {
			require.NoError(t, tab.Screenshot(ctx, filepath.Join(dir, fmt.Sprintf("status-large-%d.png", l.perCell))))
		}
		require.NoError(t, s.Close())
	}
	for _, problem := range tab.Problems() {
		require.Contains(t, problem, "/events", "the only problem is that the server was closed: %s", problem)
	}
}
