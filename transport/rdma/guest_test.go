//go:build cgo && linux && rdma

package rdma

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// softRoCE is the two devices of the VM, connected by the cable.
func softRoCE(t *testing.T) loopback {
	t.Helper()
	if os.Getenv("RDMA_GUEST") == "" {
		t.Skip("requires the VM of make test-rdma")
	}
	return loopback{ends: [2]string{os.Getenv("RDMA_ADDR0"), os.Getenv("RDMA_ADDR1")}, retry: time.Minute}
}

func resources(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestMain requires that the tests leave no resources in the devices.
func TestMain(m *testing.M) {
	guest := os.Getenv("RDMA_GUEST") != "" && os.Getenv(childVariable) == ""
	before := held(guest)
	status := m.Run()
	if after := held(guest); after != before {
		fmt.Printf("before the tests:\n%safter them:\n%s", before, after)
		status = 1
	}
	os.Exit(status)
}

// held returns the resources that processes hold in the devices of the VM; "" elsewhere.
func held(guest bool) string {
	if !guest {
		return ""
	}
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	return fmt.Sprintln(string(out), err)
}

func TestGuestConformance(t *testing.T) {
	l := softRoCE(t)
	before := resources(t)
	var received atomic.Int64
	l.options = func(o *Options) {
		o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
	}
	t.Run("suite", func(t *testing.T) { transporttest.Run(t, l) })
	require.Greater(t, received.Load(), int64(10<<20), "the path was used")
	require.Equal(t, before, resources(t), "nothing leaks")
}

// TestGuestBreaks breaks the path while an answer is written. The call continues over TLS, and
// nothing leaks.
func TestGuestBreaks(t *testing.T) {
	softRoCE(t)
	before := resources(t)
	const server, dialer = 0, 1
	for name, test := range map[string]struct {
		fail   func(*testing.T, []*Fabric)
		breaks bool
	}{
		"the server's queue pair to ERR": {func(t *testing.T, all []*Fabric) { breakAll(t, all[server]) }, true},
		"the dialer's queue pair to ERR": {func(t *testing.T, all []*Fabric) { breakAll(t, all[dialer]) }, true},
		"a cut cable":                    {func(t *testing.T, _ []*Fabric) { wire(t, "cut") }, true},
		"ports that go down":             {func(t *testing.T, _ []*Fabric) { wire(t, "down") }, true},
		"1 % loss":                       {func(t *testing.T, _ []*Fabric) { wire(t, "loss", "1") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*Fabric
			down := make(chan error, 1000)
			var received, answered atomic.Int64
			l := softRoCE(t)
			l.made = func(f *Fabric) { all = append(all, f) }
			l.options = func(o *Options) {
				o.Hooks.Received = func(_ transport.ID, n int) { received.Add(int64(n)) }
				o.Hooks.Down = func(_ transport.ID, why error) { down <- why }
			}
			body := bytes.Repeat([]byte("b"), 7*unit)
			conn := connect(t, l, l, func(context.Context, transport.Request) ([]byte, error) { return body, nil })
			var callers sync.WaitGroup
			defer callers.Wait()
			var stop atomic.Bool
			defer stop.Store(true)
			for range 4 { // enough for pieces to be under way
				callers.Go(func() {
					into := make([]byte, len(body))
					for !stop.Load() {
						got, err := conn.Call(context.Background(), transport.Call{Method: someMethod, Into: into})
						if err != nil || !bytes.Equal(body, got) {
							t.Errorf("%d bytes, %v", len(got), err)
							return
						}
						answered.Add(1)
					}
				})
			}
			more := func() bool { return received.Load() > 4<<20 }
			require.Eventually(t, more, patience, time.Millisecond)
			for broken := false; !broken; {
				test.fail(t, all)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				select {
				case why := <-down:
					t.Log(why)
					broken = true
				case <-ctx.Done(): // no piece was under way
					broken = !test.breaks
				}
				cancel()
				wire(t, "up")
				wire(t, "repair")
				if !broken {
					// TCP gives up when it receives nothing for too long, so it must recover before
					// the next cut.
					next := answered.Load() + 8
					recovered := func() bool { return conn.Err() != nil || answered.Load() >= next }
					require.Eventually(t, recovered, patience, time.Millisecond)
					require.NoError(t, conn.Err())
				}
			}
			stop.Store(true)
			callers.Wait()
			require.NoError(t, conn.Err())
		})
	}
	require.Equal(t, before, resources(t), "nothing leaks")
}

// breakAll breaks all queue pairs of a fabric without notifying it.
func breakAll(t *testing.T, f *Fabric) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.mu.paths {
		require.NoError(t, p.queue.Break())
	}
}

func wire(t *testing.T, what ...string) {
	t.Helper()
	out, err := exec.Command("rdma-wire", what...).CombinedOutput()
	require.NoError(t, err, string(out))
}
