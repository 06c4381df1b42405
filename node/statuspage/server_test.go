package statuspage

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"
)

const patience = 5 * time.Minute

// fake is a Source with the test's data.
type fake struct {
	asked  atomic.Int64
	inside atomic.Int64 // calls in progress
	status Status
	m      Map
}

func (f *fake) Status() Status {
	if f.inside.Add(1) > 1 {
		panic("two calls at a time")
	}
	defer f.inside.Add(-1)
	f.asked.Add(1)
	return f.status
}

func (f *fake) Map() Map { return f.m }

func serve(t *testing.T, o Options) *Server {
	t.Helper()
	o.Logger = log.NewNopLogger()
	if o.Source == nil {
		o.Source = &fake{}
	}
	s, err := Listen(t.Context(), "127.0.0.1:0", o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// answered is a response whose body was read.
type answered struct {
	StatusCode int
	Header     http.Header
}

// ask makes a request that names host, if it is not empty.
func ask(t *testing.T, s *Server, method, path, host string) (answered, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, nil)
	require.NoError(t, err)
	req.Host = host
	req.Header.Set("Accept-Encoding", "identity") // so that the client does not decompress
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answered{resp.StatusCode, resp.Header}, body
}

func TestAddressMustBeLoopbackUnlessPublic(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:1": "", "127.9.9.9:1": "", "[::1]:1": "", "localhost:1": "", "[::ffff:127.0.0.1]:1": "",
		"0.0.0.0:1": "other machines could reach it", "[::]:1": "other machines could reach it", ":1": "other machines could reach it",
		"192.0.2.1:1": "other machines could reach it", "example.org:1": "other machines could reach it", "localhost.example.org:1": "other machines could reach it",
		"127.0.0.1": "is not an address such as", "": "not an address such as",
	} {
		err := CheckAddress(address, false)
		if want == "" {
			require.NoError(t, err, address)
		} else {
			require.ErrorContains(t, err, want, address)
		}
	}
	require.NoError(t, CheckAddress("0.0.0.0:1", true))
	require.Error(t, CheckAddress("0.0.0.0", true))
	_, err := Listen(t.Context(), "0.0.0.0:0", Options{})
	require.ErrorIs(t, err, ErrNotLoopback)
}

// A site whose own name points at this machine is refused; so are methods that could change
// something.
func TestRequestsThatAreRefused(t *testing.T) {
	private, public := serve(t, Options{Hosts: []string{"node.example.org"}}), serve(t, Options{Public: true})
	for _, c := range []struct {
		s            *Server
		method, host string
		want         int
	}{
		{private, "GET", "", 200},
		{private, "HEAD", "localhost:26680", 200},
		{private, "GET", "127.0.0.1", 200},
		{private, "GET", "[::1]:5", 200},
		{private, "GET", "Node.Example.org:80", 200},
		{private, "GET", "evil.example.org", 421},
		{private, "GET", "localhost.example.org", 421},
		{private, "GET", "127.0.0.1.example.org:26680", 421},
		{private, "GET", "192.0.2.1", 421},
		{public, "GET", "192.0.2.1:26680", 200},
		{public, "GET", "evil.example.org", 421},
		{private, "POST", "", 405},
		{private, "PUT", "", 405},
		{private, "DELETE", "", 405},
		{private, "OPTIONS", "", 405},
	} {
		for _, path := range []string{"/", "/status.json", "/chunks", "/style.css"} {
			resp, _ := ask(t, c.s, c.method, path, c.host)
			require.Equal(t, c.want, resp.StatusCode, "%s %s of %q", c.method, path, c.host)
			require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
			require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
			require.Equal(t, "same-origin", resp.Header.Get("Cross-Origin-Resource-Policy"))
			require.Empty(t, resp.Header.Get("Access-Control-Allow-Origin"))
		}
	}
	conn, err := net.Dial("tcp", private.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /status.json HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode, "a health check of a load balancer, without a host")
	for _, path := range []string{"/index.html", "/assets/page.js", "/livez"} {
		resp, _ := ask(t, private, "GET", path, "")
		require.Equal(t, 404, resp.StatusCode, path)
	}
}

// The page loads no external resources, has no inline script or style, and its script makes no
// markup from data.
func TestAssets(t *testing.T) {
	s := serve(t, Options{Mount: func(mux *http.ServeMux) {
		mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "alive") })
	}})
	for path, kind := range map[string]string{
		"/": "text/html", "/style.css": "text/css", "/page.js": "text/javascript", "/icon.svg": "image/svg+xml",
	} {
		resp, body := ask(t, s, "GET", path, "")
		require.Equal(t, 200, resp.StatusCode)
		require.Contains(t, resp.Header.Get("Content-Type"), kind)
		for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick=", "onload=", " style=", "<style", "@import"} {
			require.NotContains(t, string(body), word, path)
		}
		require.NotContains(t, strings.ReplaceAll(string(body), "http://www.w3.org/2000/svg", ""), "://", path)
	}
	_, body := ask(t, s, "GET", "/livez", "")
	require.Equal(t, "alive", string(body))
}

func TestStatusHasItsShape(t *testing.T) {
	moniker := "<script>alert(1)</script>\n\"&"
	f := &fake{status: Status{Phase: PhaseRunning, Node: Node{Moniker: moniker}, Join: &Join{Peers: []Peer{{ID: "a", State: "new"}}}, RDMA: &RDMA{Peers: []RDMAPeer{}}}}
	s := serve(t, Options{Source: f})
	resp, body := ask(t, s, "GET", "/status.json", "")
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.NotContains(t, string(body), "<script", "even who takes it for a page sees no markup")
	var back Status
	require.NoError(t, json.Unmarshal(body, &back))
	require.Equal(t, f.status, back)
	var shape map[string]any
	require.NoError(t, json.Unmarshal(body, &shape))
	keys := func(v any) (names []string) {
		for name := range v.(map[string]any) {
			names = append(names, name)
		}
		return names
	}
	require.ElementsMatch(t, []string{"time", "phase", "node", "chain", "tree", "caches", "flusher", "disk", "snapshots", "join", "catch_up", "sharded", "rdma"}, keys(shape))
	require.ElementsMatch(t, []string{"paths_up", "queue_pairs", "memory_bytes", "peers"}, keys(shape["rdma"]))
	require.ElementsMatch(t, []string{"height", "oldest_height", "app_hash", "block_time", "block_seconds", "last_tx_height", "last_tx_time", "waiting_txs", "peers", "peer_list", "validator", "catching_up", "missing_headers"}, keys(shape["chain"]))
	require.ElementsMatch(t, []string{"index", "id", "address", "state", "reason", "rate", "round_trip_seconds", "in_flight", "chunks", "bytes", "wasted_bytes"},
		keys(shape["join"].(map[string]any)["peers"].([]any)[0]))
}

func TestChunks(t *testing.T) {
	f := &fake{m: Map{Version: 7, Height: 300, Chunks: 5, PerCell: 2, Cells: []Cell{
		{State: CellStored, Peer: 258}, {State: CellAsked, Lied: true, Peer: 1}, {State: CellPartly},
	}}}
	resp, body := ask(t, serve(t, Options{Source: f}), "GET", "/chunks", "")
	require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
	z, err := gzip.NewReader(bytes.NewReader(body))
	require.NoError(t, err)
	raw, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, []byte{
		1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 44, 0, 0, 0, 5, 0, 0, 0, 2,
		3, 1, 2, 0x81, 0, 1, 5, 0, 0,
	}, raw)
}

// Many concurrent clients cost the node no more than one.
func TestTheSourceIsAskedSeldom(t *testing.T) {
	f := &fake{}
	s := serve(t, Options{Source: f})
	began := time.Now()
	for range 200 {
		ask(t, s, "GET", "/status.json", "")
	}
	require.LessOrEqual(t, f.asked.Load(), 1+int64(time.Since(began)/fresh))
}

// watch opens /events and returns how to read the next status.
func watch(t *testing.T, s *Server) (answered, func() (Status, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.Addr()+"/events", nil)
	require.NoError(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return answered{resp.StatusCode, resp.Header}, func() (status Status, _ error) {
		line, err := lines.ReadString('\n')
		if err != nil {
			return status, err
		}
		if _, err := lines.ReadString('\n'); err != nil { // the empty line
			return status, err
		}
		return status, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &status)
	}
}

func TestEvents(t *testing.T) {
	f := &fake{status: Status{Node: Node{Moniker: "line\nbreak"}}}
	s := serve(t, Options{Source: f})
	resp, next := watch(t, s)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	for range 2 {
		status, err := next()
		require.NoError(t, err)
		require.Equal(t, "line\nbreak", status.Node.Moniker)
	}
	for range maxEvents - 1 {
		resp, next := watch(t, s)
		require.Equal(t, 200, resp.StatusCode)
		_, err := next()
		require.NoError(t, err)
	}
	resp, _ = watch(t, s)
	require.Equal(t, 503, resp.StatusCode, "one too many")
	_, body := ask(t, s, "GET", "/status.json", "")
	require.NotEmpty(t, body, "who finds no place asks")
	asked := f.asked.Load()
	require.NoError(t, s.Close())
	for range 100 { // let events in flight finish
		if _, err := next(); err != nil {
			require.LessOrEqual(t, f.asked.Load(), asked+1, "nothing is asked of what may be closed by now")
			return
		}
	}
	t.Fatal("events continue after Close")
}

// Idle connections are closed, and do not block others permanently.
func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, Options{})
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range maxConns + 10 {
		c, err := net.Dial("tcp", s.Addr())
		require.NoError(t, err)
		held = append(held, c)
	}
	require.Eventually(t, func() bool {
		s.conns.Lock()
		defer s.conns.Unlock()
		return len(s.conns.open) == maxConns
	}, patience, time.Millisecond)
	for _, c := range held {
		c.Close()
	}
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + s.Addr() + "/status.json") //nolint:noctx // a test
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	}, patience, 10*time.Millisecond)
}

// from is a connection from an address.
type from struct {
	net.Conn
	address string
	closed  bool
}

func (f *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.address)} }

func (f *from) Close() error {
	f.closed = true
	return nil
}

// Connections from other machines leave slots for this machine's health checks.
func TestStrangersLeavePlaces(t *testing.T) {
	s := serve(t, Options{Public: true})
	open := func(address string) bool {
		c := &from{address: address}
		s.connState(c, http.StateNew)
		return !c.closed
	}
	for i := range maxConns {
		require.Equal(t, i < maxConns-localConns, open("192.0.2.1"), i)
	}
	for i, address := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
		require.True(t, open(address), i)
	}
	require.False(t, open("2001:db8::1"))
}
