package attack

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/starling-kv/starling/e2e/byzantine/liar"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
)

const (
	floodConns = 4 // connections to each target, each with another node ID
	// calls at a time on each connection: more than the window that a node grants, so that it is
	// always full
	floodCalls   = 24
	floodAnswers = 64 << 10 // longest answer that is accepted; longer ones are cancelled
	floodWait    = 20 * time.Second
	floodHurry   = 5 * time.Millisecond // after which every fourth request is cancelled
)

// flood sends the targets' transports requests for existing and missing data.
func (a *Attack) flood(ctx context.Context) {
	pace := rate.NewLimiter(floodRate, floodRate/10)
	var wg sync.WaitGroup
	for i, target := range a.o.Targets {
		for k := range floodConns {
			wg.Go(func() { a.floodOver(ctx, target.Transport, uint64(i*floodConns+k), pace) })
		}
	}
	wg.Wait()
}

// floodOver keeps one connection open, and replaces it when it was closed.
func (a *Attack) floodOver(ctx context.Context, hostPort string, stream uint64, pace *rate.Limiter) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		var seed [ed25519.SeedSize]byte
		binary.BigEndian.PutUint64(seed[:], a.o.Seed)
		binary.BigEndian.PutUint64(seed[8:], stream)
		binary.BigEndian.PutUint64(seed[16:], n)
		dialer := tcp.NewDialer(tcp.Options{Key: ed25519.NewKeyFromSeed(seed[:]), ChainID: a.o.ChainID, Connect: a.dial})
		conn, err := dialer.Dial(ctx, transport.Address{HostPort: hostPort})
		if err == nil {
			a.connects.Add(1)
			var newest atomic.Uint64
			var wg sync.WaitGroup
			for caller := range uint64(floodCalls) {
				random := rand.New(rand.NewPCG(a.o.Seed, stream<<32|n<<8|caller))
				wg.Go(func() { a.ask(ctx, conn, random, &newest, pace) })
			}
			wg.Wait()
			conn.Close()
		}
		_ = sleep.For(ctx, pause)
	}
}

// ask sends one request after another until the connection ends.
func (a *Attack) ask(ctx context.Context, conn transport.Conn, random *rand.Rand, newest *atomic.Uint64, pace *rate.Limiter) {
	for n := 0; pace.Wait(ctx) == nil; n++ {
		select {
		case <-conn.Done():
			return
		default:
		}
		patience := floodWait
		if n%4 == 3 {
			patience = floodHurry
		}
		call := request(random, newest.Load())
		calling, cancel := context.WithTimeout(ctx, patience)
		a.requests.Add(1)
		answer, err := conn.Call(calling, call)
		cancel()
		if err != nil {
			continue
		}
		a.answers.Add(1)
		if call.Method == liar.MethodStatus && len(answer) >= 17 {
			// version:u8 ‖ first block:u64be ‖ last block:u64be ‖ …
			newest.Store(binary.BigEndian.Uint64(answer[9:]))
		}
	}
}

// request returns a random request of docs/spec/transport.md, for an existing or a missing height,
// or of an invalid form.
func request(random *rand.Rand, newest uint64) transport.Call {
	call := transport.Call{Method: transport.Method(1 + random.IntN(10)), Max: floodAnswers}
	height := random.Uint64N(newest + 2)
	switch random.IntN(8) {
	case 0:
		height = random.Uint64()
	case 1: // of an invalid form, and sometimes of the greatest length
		call.Body = make([]byte, random.IntN(64)*random.IntN(64))
		if random.IntN(16) == 0 {
			call.Body = make([]byte, transport.MaxBody)
		}
		return call
	}
	switch call.Method {
	case liar.MethodStatus, liar.MethodPeers, liar.MethodGenesis:
		return call
	}
	call.Body = binary.BigEndian.AppendUint64(nil, height)
	switch call.Method {
	case liar.MethodChunk:
		for _, n := range []uint32{random.Uint32N(20), 0, 1 + random.Uint32N(1<<14)} {
			call.Body = binary.BigEndian.AppendUint32(call.Body, n)
		}
	case liar.MethodSubManifest:
		for _, n := range []uint32{random.Uint32N(20), 4096} {
			call.Body = binary.BigEndian.AppendUint32(call.Body, n)
		}
	}
	return call
}
