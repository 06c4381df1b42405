// Package browser drives a headless Chromium with chromedp, for tests of web pages.
//
//	Flags ──► chromium (started by the caller) ──► DevToolsActivePort ──► Attach ──► Open, Eval, Look, Screenshot
//
// The browser reaches only 127.0.0.1, so a page that requests anything from elsewhere is detected:
// see Problems.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// callTimeout limits one command: a browser on a busy machine may take long.
const callTimeout = 60 * time.Second

// Path returns the path of a Chromium; false if there is none.
func Path() (string, bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// Flags returns the flags for starting the browser. profile must be a separate folder for each
// browser.
func Flags(profile string) []string {
	return []string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-port=0", "--user-data-dir=" + profile, "about:blank",
	}
}

// Tab is a tab of a browser. Its methods must be called one at a time.
type Tab struct {
	ctx   context.Context // chromedp's context, which represents the tab
	close context.CancelFunc

	mu       sync.Mutex
	problems []string
}

// Attach opens a tab of the browser with that profile, once it is up. The caller must call Close.
func Attach(ctx context.Context, profile string) (*Tab, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		// a port, and the path of the browser's socket
		raw, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		port, path, whole := strings.Cut(strings.TrimSpace(string(raw)), "\n")
		if err == nil && whole {
			return attach(ctx, "ws://127.0.0.1:"+port+path)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the browser did not start: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func attach(ctx context.Context, url string) (*Tab, error) {
	remote, closeBrowser := chromedp.NewRemoteAllocator(ctx, url, chromedp.NoModifyURL)
	tab, closeTab := chromedp.NewContext(remote)
	t := &Tab{ctx: tab, close: func() { closeTab(); closeBrowser() }}
	chromedp.ListenTarget(tab, t.note)
	if err := chromedp.Run(tab); err != nil { // this enables the events
		t.Close()
		return nil, err
	}
	return t, nil
}

// note records problems of the page.
func (t *Tab) note(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		t.problems = append(t.problems, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		t.problems = append(t.problems, fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
	}
}

// Close closes the tab.
func (t *Tab) Close() { t.close() }

// Problems returns the page's exceptions and the browser's error messages, such as a violated
// Content-Security-Policy.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.problems)
}

// run runs actions in the tab, for at most callTimeout and no longer than ctx.
func (t *Tab) run(ctx context.Context, actions ...chromedp.Action) error {
	in, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return chromedp.Run(in, actions...)
}

// Open goes to a page, and returns when it is loaded.
func (t *Tab) Open(ctx context.Context, url string) error { return t.run(ctx, chromedp.Navigate(url)) }

// Eval evaluates an expression in the page, awaits it if it is a promise, and decodes its value.
func (t *Tab) Eval(ctx context.Context, expression string, into any) error {
	return t.run(ctx, chromedp.Evaluate(expression, into, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
}

// Look sets the size of the window, and the preferred colour scheme.
func (t *Tab) Look(ctx context.Context, width, height int64, dark bool) error {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	return t.run(ctx,
		emulation.SetDeviceMetricsOverride(width, height, 1, width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

// Screenshot writes an image of the whole page to a PNG file.
func (t *Tab) Screenshot(ctx context.Context, file string) error { return t.capture(ctx, file, nil) }

// ScreenshotOfTop writes an image of the top of the page to a PNG file. The size is in pixels.
func (t *Tab) ScreenshotOfTop(ctx context.Context, file string, width, height float64) error {
	return t.capture(ctx, file, &page.Viewport{Width: width, Height: height, Scale: 1})
}

// capture writes an image of a part of the page, or of the whole page if part is nil.
func (t *Tab) capture(ctx context.Context, file string, part *page.Viewport) error {
	var png []byte
	err := t.run(ctx, chromedp.ActionFunc(func(ctx context.Context) (err error) {
		png, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).WithCaptureBeyondViewport(true).WithClip(part).Do(ctx)
		return err
	}))
	if err != nil {
		return err
	}
	return os.WriteFile(file, png, 0o644)
}
