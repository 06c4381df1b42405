package tcp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"

	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// replay is a connection whose peer has already sent everything.
type replay struct {
	in      *bytes.Reader
	written int
}

func (r *replay) Read(b []byte) (int, error)         { return r.in.Read(b) }
func (r *replay) Write(b []byte) (int, error)        { r.written += len(b); return len(b), nil }
func (r *replay) Close() error                       { return nil }
func (r *replay) LocalAddr() net.Addr                { return pipeAddr("here") }
func (r *replay) RemoteAddr() net.Addr               { return pipeAddr("there") }
func (r *replay) SetDeadline(time.Time) error        { return nil }
func (r *replay) SetReadDeadline(t time.Time) error  { return r.SetDeadline(t) }
func (r *replay) SetWriteDeadline(t time.Time) error { return r.SetDeadline(t) }

// tap keeps the bytes written.
type tap struct {
	net.Conn
	sent bytes.Buffer
}

func (t *tap) Write(b []byte) (int, error) {
	t.sent.Write(b)
	return t.Conn.Write(b)
}

// newKnocker returns a connection that was just accepted, from a host without recorded state.
func newKnocker(tb testing.TB, s *Server) *knocker {
	tb.Helper()
	clear(s.admission.mu.nets)
	k, err := s.admission.knock(originOf(pipeAddr("host")), time.Now(), func() {})
	require.NoError(tb, err)
	s.admission.settled(k)
	return k
}

// recorded returns the bytes that an honest dialer sends until it is greeted.
func recorded(f *testing.F, s *Server) []byte {
	f.Helper()
	here, there := net.Pipe()
	dialer := &tap{Conn: here}
	served := make(chan error)
	go func() {
		n, err := s.greet(there, newKnocker(f, s))
		if err == nil {
			s.admission.leave(n.guest)
		}
		served <- err
	}()
	cfg, err := config(keyOf(2), func(transport.ID) error { return nil })
	require.NoError(f, err)
	t := tls.Client(dialer, cfg)
	_, err = t.Write(helloHere)
	require.NoError(f, err)
	_, err = readHello(t)
	require.NoError(f, err)
	require.NoError(f, <-served)
	return dialer.sent.Bytes()
}

// FuzzHandshake lets a server read arbitrary bytes before the peer is authenticated, including
// replays of an honest dialer. No peer is admitted, and neither side exceeds the limit of bytes.
func FuzzHandshake(f *testing.F) {
	o, err := Options{Key: keyOf(1), ChainID: chain, Handler: echo}.withDefaults()
	require.NoError(f, err)
	cfg, err := config(o.Key, func(transport.ID) error { return nil })
	require.NoError(f, err)
	s := prepare(o)
	s.tls, s.ctx = cfg, f.Context()
	honest := recorded(f, s)
	f.Add(honest)
	f.Add(honest[:len(honest)/2])
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte{22, 3, 1, 0xff, 0xff, 1})
	f.Add(helloHere)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &replay{in: bytes.NewReader(b)}
		_, err := s.greet(c, newKnocker(t, s))
		require.Error(t, err, "each key exchange is different")
		require.LessOrEqual(t, len(b)-c.in.Len(), maxHandshake)
		require.LessOrEqual(t, c.written, maxHandshake)
		require.Empty(t, s.admission.mu.guests.in)
	})
}

// FuzzCertificate presents arbitrary certificates: an accepted peer has a small certificate of an
// Ed25519 key.
func FuzzCertificate(f *testing.F) {
	cfg, err := config(keyOf(1), func(transport.ID) error { return nil })
	require.NoError(f, err)
	der := cfg.Certificates[0].Certificate[0]
	f.Add(der)
	// The OID of Ed448:
	f.Add(bytes.Replace(der, []byte{6, 3, 43, 101, 112}, []byte{6, 3, 43, 101, 113}, 1))
	f.Fuzz(func(t *testing.T, der []byte) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		id, err := peerID(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}})
		if err != nil {
			require.ErrorIs(t, err, errCertificate)
			return
		}
		require.NoError(t, id.Validate())
		require.LessOrEqual(t, len(der), maxCertificate)
	})
}
