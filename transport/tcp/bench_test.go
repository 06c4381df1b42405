package tcp

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
)

// BenchmarkCall fetches answers of 1 MiB over loopback, several concurrently. cpu-ms/MB is the sum
// of both sides.
func BenchmarkCall(b *testing.B) {
	for _, flight := range []int{1, 8} {
		b.Run(fmt.Sprintf("flight=%d", flight), func(b *testing.B) {
			answer := make([]byte, 1<<20)
			server := newServer(b, 1, Options{Handler: transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) {
				return answer, nil
			})})
			c := dial(b, newDialer(2, Options{ChainID: chain}), server)
			b.SetBytes(int64(len(answer)))
			before := cpu()
			b.ResetTimer()
			var wg sync.WaitGroup
			next := make(chan struct{})
			for range flight {
				wg.Go(func() {
					into := make([]byte, len(answer))
					for range next {
						got, err := c.Call(context.Background(), transport.Call{Method: someMethod, Into: into})
						if err != nil || len(got) != len(into) {
							b.Error(len(got), err)
						}
					}
				})
			}
			for range b.N {
				next <- struct{}{}
			}
			close(next)
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(cpu()-before)/float64(time.Millisecond)/float64(b.N)/1.048576, "cpu-ms/MB")
		})
	}
}

// BenchmarkSmall fetches small answers, one after another.
func BenchmarkSmall(b *testing.B) {
	server := newServer(b, 1, Options{Handler: transport.HandlerFunc(func(_ context.Context, r transport.Request) ([]byte, error) {
		return r.Body, nil
	})})
	c := dial(b, newDialer(2, Options{ChainID: chain}), server)
	into := make([]byte, 100)
	for b.Loop() {
		_, err := c.Call(context.Background(), transport.Call{Method: someMethod, Body: into, Into: into})
		require.NoError(b, err)
	}
}

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
