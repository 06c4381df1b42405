// Package browser drives a headless Chromium over the Chrome DevTools Protocol, for tests of pages.
//
//	Flags ──► chromium (started by the caller) ──► DevToolsActivePort ──► Attach ──► Open, Eval, Look, Screenshot
//
// The browser reaches 127.0.0.1 and nothing else, so a page that asks for something from elsewhere is found out: see Problems.
package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// callTimeout is for one command of the protocol: a browser on a busy machine may take long.
const callTimeout = 60 * time.Second

// Path returns where a Chromium lies; false: there is none.
func Path() (string, bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// Flags are what to start it with. profile is a folder that is its own.
func Flags(profile string) []string {
	return []string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-port=0", "--user-data-dir=" + profile, "about:blank",
	}
}

// Tab is the tab of a browser. Its methods are called one at a time.
type Tab struct {
	conn *websocket.Conn
	last int

	mu       sync.Mutex
	waiting  map[int]chan answer
	problems []string
	closed   error
}

type answer struct {
	result json.RawMessage
	err    error
}

// Attach connects to the first tab of the browser with that profile, once it is up.
func Attach(ctx context.Context, profile string) (*Tab, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		url, err := firstTab(ctx, profile)
		if err == nil {
			return dial(ctx, url)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the browser is not up: %w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// firstTab returns the address of a tab's protocol.
func firstTab(ctx context.Context, profile string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
	if err != nil {
		return "", err
	}
	port, _, _ := strings.Cut(string(raw), "\n")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/json/list", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var tabs []struct{ Type, WebSocketDebuggerURL string }
	if err := json.NewDecoder(resp.Body).Decode(&tabs); err != nil {
		return "", err
	}
	for _, tab := range tabs {
		if tab.Type == "page" {
			return tab.WebSocketDebuggerURL, nil
		}
	}
	return "", errors.New("it has no tab")
}

func dial(ctx context.Context, url string) (*Tab, error) {
	conn, resp, err := websocket.DefaultDialer.DialContext(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	t := &Tab{conn: conn, waiting: map[int]chan answer{}}
	go t.read()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		if _, err := t.call(ctx, domain+".enable", nil); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return t, nil
}

// Close lets go of the tab.
func (t *Tab) Close() error { return t.conn.Close() }

// Problems are what the page threw, and what the browser complained of, such as a violated Content-Security-Policy.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.problems...)
}

// read delivers answers, and notes events.
func (t *Tab) read() {
	for {
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
			Method string
			Params json.RawMessage
		}
		err := t.conn.ReadJSON(&m)
		t.mu.Lock()
		switch {
		case err != nil:
			t.closed = err
			for _, to := range t.waiting {
				to <- answer{err: err}
			}
			clear(t.waiting)
			t.mu.Unlock()
			return
		case t.waiting[m.ID] != nil:
			a := answer{result: m.Result}
			if m.Error != nil {
				a.err = errors.New(m.Error.Message)
			}
			t.waiting[m.ID] <- a
			delete(t.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded":
			t.problems = append(t.problems, string(m.Params))
		}
		t.mu.Unlock()
	}
}

// call makes a command.
func (t *Tab) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	to := make(chan answer, 1)
	t.mu.Lock()
	t.last++
	id, closed := t.last, t.closed
	if closed == nil {
		t.waiting[id] = to
	}
	t.mu.Unlock()
	if closed != nil {
		return nil, closed
	}
	if params == nil {
		params = struct{}{}
	}
	if err := t.conn.WriteJSON(map[string]any{"id": id, "method": method, "params": params}); err != nil {
		return nil, err
	}
	select {
	case a := <-to:
		if a.err != nil {
			return nil, fmt.Errorf("%s: %w", method, a.err)
		}
		return a.result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

// Open goes to a page.
func (t *Tab) Open(ctx context.Context, url string) error {
	raw, err := t.call(ctx, "Page.navigate", map[string]any{"url": url})
	if err != nil {
		return err
	}
	var result struct{ ErrorText string }
	if err := json.Unmarshal(raw, &result); err != nil {
		return err
	}
	if result.ErrorText != "" {
		return fmt.Errorf("%s: %s", url, result.ErrorText)
	}
	return nil
}

// Eval evaluates an expression in the page, awaits it if it is a promise, and decodes its value.
func (t *Tab) Eval(ctx context.Context, expression string, into any) error {
	raw, err := t.call(ctx, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	if err != nil {
		return err
	}
	var result struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return err
	}
	if result.ExceptionDetails != nil {
		return fmt.Errorf("%s: %s", expression, result.ExceptionDetails)
	}
	return json.Unmarshal(result.Result.Value, into)
}

// Look sets how large the window is, and which colours its user prefers.
func (t *Tab) Look(ctx context.Context, width, height int, dark bool) error {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	_, err := t.call(ctx, "Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
	})
	if err != nil {
		return err
	}
	_, err = t.call(ctx, "Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	})
	return err
}

// Screenshot writes what the page looks like, all of it, to a PNG file.
func (t *Tab) Screenshot(ctx context.Context, file string) error {
	raw, err := t.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true})
	if err != nil {
		return err
	}
	var result struct{ Data string }
	if err := json.Unmarshal(raw, &result); err != nil {
		return err
	}
	png, err := base64.StdEncoding.DecodeString(result.Data)
	if err != nil {
		return err
	}
	return os.WriteFile(file, png, 0o644)
}
