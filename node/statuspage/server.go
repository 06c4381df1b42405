package statuspage

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
)

const (
	// fresh is the maximum age of a response, so the Source is called at most this often.
	fresh = 250 * time.Millisecond
	// eventsEvery is the time between two events.
	eventsEvery = time.Second

	maxConns   = 64
	localConns = 8  // reserved for this machine, for its supervisor's health checks
	maxEvents  = 16 // connections of /events

	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second // for each response and each event
	idleTimeout  = 30 * time.Second
	maxHeader    = 8 << 10
)

// Options configures a Server.
type Options struct {
	Logger log.Logger
	Source Source
	Public bool     // allow listening on, and requests that name, non-loopback addresses
	Hosts  []string // names by which requests may address this node, in addition to localhost
	// Mount adds further handlers; may be nil.
	Mount func(*http.ServeMux)
}

// Server serves the page, from Listen until Close.
type Server struct {
	o        Options
	listener net.Listener
	http     *http.Server
	mux      *http.ServeMux
	serving  sync.WaitGroup
	events   chan struct{} // one slot for each connection of /events

	mu struct { // guards the Source's responses, and is held while the Source is called
		sync.Mutex
		closed bool
		status answer
		cells  answer
	}
	conns struct {
		sync.Mutex
		open map[net.Conn]struct{} // those that count against maxConns
	}
}

// answer is a response shared by all clients.
type answer struct {
	at    time.Time
	body  []byte
	of    uint64 // version of the Map
	asked bool
}

//go:embed assets
var assets embed.FS

// Listen starts serving on an address, host:port. The caller must Close the Server.
func Listen(ctx context.Context, address string, o Options) (*Server, error) {
	if err := CheckAddress(address, o.Public); err != nil {
		return nil, err
	}
	s := &Server{o: o, mux: http.NewServeMux(), events: make(chan struct{}, maxEvents)}
	s.conns.open = map[net.Conn]struct{}{}
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":       {"index.html", "text/html; charset=utf-8"},
		"/style.css": {"style.css", "text/css; charset=utf-8"},
		"/page.js":   {"page.js", "text/javascript; charset=utf-8"},
		"/icon.svg":  {"icon.svg", "image/svg+xml"},
	} {
		content, err := assets.ReadFile("assets/" + file.name)
		if err != nil {
			return nil, err
		}
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { send(w, file.kind, content) })
	}
	s.mux.HandleFunc("GET /status.json", s.serveStatus)
	s.mux.HandleFunc("GET /chunks", s.serveChunks)
	s.mux.HandleFunc("GET /events", s.serveEvents)
	if o.Mount != nil {
		o.Mount(s.mux)
	}
	var err error
	if s.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler: s, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ConnState: s.connState,
	}
	s.serving.Go(func() { _ = s.http.Serve(s.listener) }) // Close ends it
	return s, nil
}

// Addr returns the listening address, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends all connections. The Source is not called after it returns.
func (s *Server) Close() error {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	err := s.http.Close()
	s.serving.Wait()
	return err
}

// connState limits the connections: an excess connection is closed at once.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	s.conns.Lock()
	defer s.conns.Unlock()
	switch state {
	case http.StateNew:
		places := maxConns
		if from, tcp := c.RemoteAddr().(*net.TCPAddr); !tcp || !from.IP.IsLoopback() {
			places -= localConns
		}
		if len(s.conns.open) >= places {
			_ = c.Close() // the client detects it
			return
		}
		s.conns.open[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(s.conns.open, c)
	}
}

// securityHeaders restrict the page to this server's resources, and forbid other sites to frame or
// read it.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cache-Control":                "no-store",
}

// ServeHTTP implements http.Handler. It refuses foreign host names and all methods that could
// write.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	closed := s.mu.closed
	if !closed {
		s.serving.Add(1)
	}
	s.mu.Unlock()
	if closed {
		http.Error(w, "this node is stopping", http.StatusServiceUnavailable)
		return
	}
	defer s.serving.Done()
	for name, value := range securityHeaders {
		w.Header().Set(name, value)
	}
	switch {
	case !s.allowed(r.Host):
		http.Error(w, "this node does not serve that host name: use its IP address, or add the name to status.allowed_hosts in app.toml", http.StatusMisdirectedRequest)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
	default:
		s.mux.ServeHTTP(w, r)
	}
}

// send sends a complete response. Errors are ignored: the browser has disconnected.
func send(w http.ResponseWriter, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// status returns the Status as JSON, no older than fresh.
func (s *Server) status() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.mu.status
	if s.mu.closed || a.asked && time.Since(a.at) < fresh {
		return a.body, nil
	}
	body, err := json.Marshal(s.o.Source.Status())
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	*a = answer{at: time.Now(), body: body, asked: true}
	return body, nil
}

// chunks returns the Map, compressed, no older than fresh.
func (s *Server) chunks() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &s.mu.cells
	if s.mu.closed || a.asked && time.Since(a.at) < fresh {
		return a.body, nil
	}
	m := s.o.Source.Map()
	if a.asked && a.of == m.Version {
		a.at = time.Now()
		return a.body, nil
	}
	var buffer bytes.Buffer
	z, err := gzip.NewWriterLevel(&buffer, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(m.encode()); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	*a = answer{at: time.Now(), body: buffer.Bytes(), of: m.Version, asked: true}
	return a.body, nil
}

func (s *Server) serveStatus(w http.ResponseWriter, _ *http.Request) {
	body, err := s.status()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, "application/json", body)
}

// serveChunks sends the Map, compressed with gzip, which every browser accepts.
func (s *Server) serveChunks(w http.ResponseWriter, _ *http.Request) {
	body, err := s.chunks()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	send(w, "application/octet-stream", body)
}

// serveEvents sends a Status every eventsEvery until the browser disconnects or reads too slowly. A
// browser that is not admitted polls /status.json.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case s.events <- struct{}{}:
		defer func() { <-s.events }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("%d browsers are connected, the limit: close one, or fetch /status.json", maxEvents), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	// The request's deadline would also end the response.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ticker := time.NewTicker(eventsEvery)
	defer ticker.Stop()
	for {
		body, err := s.status()
		if err == nil {
			err = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", body) // JSON has no line breaks
		}
		if err == nil {
			err = control.Flush()
		}
		if err != nil {
			s.o.Logger.Debug("A browser disconnected from the status page", "err", strings.TrimSpace(err.Error()))
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}
