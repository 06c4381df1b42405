package browser_test

import (
	"context"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/e2e/runner"
)

// The site that `make docs` built, opened as files: a reader searches, follows a result, and sees
// pictures. Every page opens without an error, and no page is wider than a phone.
func TestSite(t *testing.T) {
	site := os.Getenv("STARLING_SITE")
	if site == "" {
		t.Skip("NOT RUN: TestSite (make docs builds the site and runs it)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	tab := attach(ctx, t)
	defer tab.Close()
	address := func(page string) string { return (&url.URL{Scheme: "file", Path: filepath.Join(site, page)}).String() }

	require.NoError(t, tab.Look(ctx, 1280, 800, false))
	require.NoError(t, tab.Open(ctx, address("index.html")))
	const search = `(f => { f.focus(); f.value = "banned peer"; f.dispatchEvent(new Event("input")); return 1 })(document.getElementById("search"))`
	require.NoError(t, tab.Eval(ctx, search, new(int)))
	hits := 0
	require.NoError(t, runner.Poll(ctx, "results of a search", func() bool {
		return tab.Eval(ctx, `document.querySelectorAll("#found a").length`, &hits) == nil && hits > 0
	}))
	if dir := os.Getenv("STARLING_SCREENSHOTS"); dir != "" {
		require.NoError(t, tab.Screenshot(ctx, filepath.Join(dir, "site-search.png")))
	}
	var first, here string
	require.NoError(t, tab.Eval(ctx, `document.querySelector("#found a").href`, &first))
	require.NoError(t, tab.Open(ctx, first))
	require.NoError(t, tab.Eval(ctx, "location.href", &here))
	require.Equal(t, first, here)

	const look = `Promise.all([...document.images].map(i => (i.loading = "eager", i.decode().then(() => "", () => i.src)))).then(all => ({
		Wider: document.documentElement.scrollWidth - innerWidth, Headings: document.querySelectorAll("h1").length, Missing: all.filter(Boolean)}))`
	pages := 0
	require.NoError(t, filepath.WalkDir(site, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".html") {
			return err
		}
		pages++
		page, err := filepath.Rel(site, path)
		require.NoError(t, err)
		require.NoError(t, tab.Look(ctx, 390, 800, pages%2 == 0))
		require.NoError(t, tab.Open(ctx, address(page)))
		var seen struct {
			Wider, Headings int
			Missing         []string
		}
		require.NoError(t, tab.Eval(ctx, look, &seen))
		require.LessOrEqual(t, seen.Wider, 0, "%s: the page is wider than its window", page)
		require.Equal(t, 1, seen.Headings, "%s: main headings", page)
		require.Empty(t, seen.Missing, "%s: pictures that do not load", page)
		return nil
	}))
	t.Logf("%d pages", pages)
	require.Greater(t, pages, 100)
	require.Empty(t, tab.Problems(), "errors of the browser")
}
