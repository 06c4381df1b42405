package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/browser"
	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

const (
	// statusRate limits the bytes a second from each validator at first: the state takes minutes at
	// that rate, so the join lasts until the test has looked at it.
	statusRate = 20_000
	// statusSeen is the number of chunks that the joiner must have by then.
	statusSeen = 40
	// statusMoniker contains markup, which the page must not interpret.
	statusMoniker = `<img src=x onerror=document.title='marked'>`
)

// statusPictures is the variable that names a folder for the pictures of the documents (`make
// screenshots`).
const statusPictures = "STARLING_STATUS_PICTURES"

// A browser watches a node that joins among Byzantine peers: the map shows chunks in several
// states, live, and afterwards the page shows the height again. Names are always shown as text.
func TestStatusPage(t *testing.T) {
	chromium, found := browser.Path()
	if !found {
		t.Skip("NOT RUN: TestStatusPage: there is no chromium (Debian: apt-get install chromium)")
	}
	moniker, folder := statusMoniker, os.Getenv(statusPictures)
	if folder != "" {
		moniker = "joiner"
	}
	p, ctx := processes(t, 4*time.Minute)
	homes := makeHomes(ctx, t, joinChain, "validator-0", "validator-1", "liar-0", "liar-1", "joiner")
	validators, liars, joiner := homes[:2:2], homes[2:4:4], homes[4]
	joinNetwork(t, homes, len(validators), len(validators))
	began := map[string]*runner.Process{}
	begin := func(home *runner.Home, env []string) {
		home.Release()
		process, err := p.Start(runner.Spec{Name: home.Name, Path: starlingd, Args: []string{"start", "--home", home.Dir}, Env: env, Log: home.Log()})
		require.NoError(t, err)
		began[home.Name] = process
	}
	keep := "STARLINGD_SNAPSHOTS_KEEP_RECENT=10"
	for _, home := range validators {
		begin(home, []string{keep, fmt.Sprintf("STARLINGD_TRANSPORT_SEND_RATE=%d", statusRate)})
	}
	for i, home := range liars {
		home.Release()
		args := []string{"--home", home.Dir, "--lie", []string{"corrupt", "truncate"}[i], "--seed", fmt.Sprint(i)}
		start(t, p, runner.Spec{Name: home.Name, Path: byzantine, Args: args, Env: []string{keep}, Log: home.Log()})
	}
	await(t, ctx, validators[0], 1)
	snapshot := snapshotAfter(fillState(t, ctx, validators[0]))
	for _, home := range append(validators, liars...) {
		await(t, ctx, home, snapshot+2)
	}
	joinsFrom(t, ctx, joiner, append(liars, validators...), validators[0], snapshot, func(c *cfg.Config) { c.Moniker = moniker })

	profile := filepath.Join(t.TempDir(), "profile")
	start(t, p, runner.Spec{Name: "chromium", Path: chromium, Args: browser.Flags(profile), Log: filepath.Join(t.TempDir(), "chromium.log")})
	tab, err := browser.Attach(ctx, profile)
	require.NoError(t, err)
	defer tab.Close()

	held, err := ports.Hold(1)
	require.NoError(t, err)
	page := "http://" + held.Address(0) + "/"
	held.Release()
	begin(joiner, []string{"STARLINGD_STATUS_LADDR=" + held.Address(0)})
	t.Cleanup(func() {
		if t.Failed() {
			for _, line := range runner.Tail(joiner.Log(), 60) {
				t.Log(line)
			}
		}
	})

	// While it joins: a part of the chunks has come, and a Byzantine peer was detected.
	var status joinStatus
	require.NoError(t, runner.Poll(ctx, "a part of the chunks", func() bool {
		status, err = statusOf(ctx, page)
		return err == nil && status.Join != nil && status.Join.ChunksDone >= statusSeen && status.Join.Banned > 0
	}))
	require.Equal(t, "joining", status.Phase)
	require.Equal(t, moniker, status.Node.Moniker)
	_, err = joiner.Status(ctx)
	require.Error(t, err, "the page answers before RPC does")

	require.NoError(t, tab.Look(ctx, 1280, 800, false))
	require.NoError(t, tab.Open(ctx, page))
	const counts = `Object.fromEntries(order.map((k) => [k, Number((document.getElementById("count-" + k) || {textContent: "0"}).textContent.replaceAll(",", ""))]))`
	var cells map[string]int
	look := func(what string, enough func() bool) {
		t.Helper()
		require.NoError(t, runner.Poll(ctx, what, func() bool { return tab.Eval(ctx, counts, &cells) == nil && enough() }))
	}
	look("chunks in three states on the page", func() bool { return cells["waiting"] > 0 && cells["asked"] > 0 && cells["stored"] >= statusSeen })
	t.Logf("chunks by state: %v", cells)
	total := 0
	for _, n := range cells {
		total += n
	}
	require.Equal(t, status.Join.Chunks, total, "a cell for each chunk")
	require.Positive(t, cells["lied"]+cells["fixed"], "a chunk that a peer sent falsely")
	before := cells["stored"]
	look("more chunks without the page being loaded again", func() bool { return cells["stored"] > before })
	coloured(t, ctx, tab, 3)
	var text string
	require.NoError(t, tab.Eval(ctx, "document.body.innerText", &text))
	require.Contains(t, text, "Joining at height ")
	require.Contains(t, text, "banned")
	require.Contains(t, text, moniker, "the name is shown as text")
	require.NoError(t, tab.Eval(ctx, "document.title", &text))
	require.NotEqual(t, "marked", text)
	var pictures int
	require.NoError(t, tab.Eval(ctx, "document.images.length", &pictures))
	require.Equal(t, 1, pictures, "only the page's own image")
	screenshots(t, ctx, tab, "join")
	if folder != "" {
		look("half of the chunks", func() bool { return cells["stored"] > total/2 })
		documentPictures(t, ctx, tab, folder)
	}
	require.NoError(t, tab.Eval(ctx, `(document.querySelector("input[value=peer]").click(), 1)`, new(int)))
	coloured(t, ctx, tab, 3) // two honest peers, and waiting chunks
	screenshots(t, ctx, tab, "peers")

	// The validators restart without the rate limit, the join ends, and the page continues.
	for _, home := range validators {
		require.NoError(t, began[home.Name].Stop(20*time.Second))
	}
	for _, home := range validators {
		begin(home, []string{keep})
	}
	require.NoError(t, runner.Poll(ctx, "the page to show that the node runs", func() bool {
		return tab.Eval(ctx, `document.getElementById("phase").textContent`, &text) == nil && text == "running"
	}))
	require.NoError(t, runner.Poll(ctx, "the page to show the height", func() bool {
		status, err = statusOf(ctx, page)
		shown := 0
		return err == nil && tab.Eval(ctx, `Number(document.querySelector("#card-chain dd").textContent.replaceAll(",", ""))`, &shown) == nil &&
			shown > int(snapshot) && shown >= status.Chain.Height-3
	}))
	look("all chunks stored", func() bool {
		return cells["waiting"]+cells["asked"]+cells["checking"]+cells["lied"] == 0 && cells["stored"] > 0
	})
	require.NoError(t, tab.Eval(ctx, "document.body.innerText", &text))
	require.Contains(t, text, "Joined at height")
	screenshots(t, ctx, tab, "idle")
	require.Empty(t, tab.Problems(), "errors of the browser")
	requireFollows(t, ctx, joiner, validators)
}

// coloured waits until the canvas has a number of colours.
func coloured(t *testing.T, ctx context.Context, tab *browser.Tab, want int) {
	t.Helper()
	const colours = `(() => {
		const c = document.getElementById("cells"), found = new Set();
		const copy = Object.assign(document.createElement("canvas"), {width: c.width, height: c.height}).getContext("2d", {willReadFrequently: true});
		copy.drawImage(c, 0, 0);
		new Uint32Array(copy.getImageData(0, 0, c.width, c.height).data.buffer).forEach((v) => v && found.add(v));
		return found.size;
	})()`
	n := 0
	require.NoError(t, runner.Poll(ctx, fmt.Sprintf("%d colours on the canvas", want), func() bool {
		return tab.Eval(ctx, colours, &n) == nil && n >= want
	}))
}

// screenshots writes pictures into the folder of the programs, build/programs, for people to look
// at: wide and narrow, light and dark.
func screenshots(t *testing.T, ctx context.Context, tab *browser.Tab, name string) {
	t.Helper()
	for _, look := range []struct {
		name  string
		width int64
		dark  bool
	}{{"wide-light", 1280, false}, {"narrow-dark", 390, true}, {"narrow-light", 390, false}, {"wide-dark", 1280, true}} {
		require.NoError(t, tab.Look(ctx, look.width, 800, look.dark))
		var wider bool
		require.NoError(t, tab.Eval(ctx, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() =>
			r(document.documentElement.scrollWidth > innerWidth))))`, &wider))
		require.False(t, wider, "%s %s: the page is wider than its window", name, look.name)
		require.NoError(t, tab.Screenshot(ctx, filepath.Join(filepath.Dir(starlingd), fmt.Sprintf("status-%s-%s.png", name, look.name))))
	}
}

// documentPictures writes the pictures of the documents.
func documentPictures(t *testing.T, ctx context.Context, tab *browser.Tab, dir string) {
	t.Helper()
	const (
		width = 900
		most  = 150_000 // bytes, in a repository that people clone
	)
	for name, dark := range map[string]bool{"light": false, "dark": true} {
		require.NoError(t, tab.Look(ctx, width, 800, dark))
		var height float64 // down to the end of the join's card
		require.NoError(t, tab.Eval(ctx, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() =>
			r(document.getElementById("join").getBoundingClientRect().bottom + scrollY + 16))))`, &height))
		file := filepath.Join(dir, "status-"+name+".png")
		require.NoError(t, tab.ScreenshotOfTop(ctx, file, width, height))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(most), file)
	}
}

// joinStatus has the fields of /status.json that the test needs.
type joinStatus struct {
	Phase string
	Node  struct{ Moniker string }
	Chain struct{ Height int }
	Join  *struct {
		Height, Chunks, Banned int
		ChunksDone             int `json:"chunks_done"`
	}
}

func statusOf(ctx context.Context, page string) (s joinStatus, _ error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(page, "/")+"/status.json", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}
