package verbstest

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/transport/rdma/internal/verbs"
)

var addresses = [2]netip.Addr{netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.7.0.2")}

// opener returns the two devices of a new fabric.
func opener(f *Fabric) Open {
	return func(tb testing.TB, completions int) (verbs.Device, verbs.Device) {
		tb.Helper()
		left, err := f.Open(addresses[0], completions)
		require.NoError(tb, err)
		right, err := f.Open(addresses[1], completions)
		require.NoError(tb, err)
		return left, right
	}
}

func TestFabric(t *testing.T) {
	f := new(Fabric)
	Run(t, opener(f))
	require.Zero(t, f.Queues(), "nothing leaks")
}

func TestFaults(t *testing.T) {
	for name, fail := range map[string]func(*Fabric){
		"cut":          func(f *Fabric) { f.Cut(true) },
		"break":        func(f *Fabric) { f.Fail(Faults{Break: 1}) },
		"broken here":  func(f *Fabric) { f.Break(verbs.GID(addresses[0].As16())) },
		"broken there": func(f *Fabric) { f.Break(verbs.GID(addresses[1].As16())) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := new(Fabric)
				left, right := pair(t, opener(f))
				fail(f)
				require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, 1)}))
				require.Error(t, left.next().Err)
			})
		})
	}
}

// TestEvents: completions that are already available cause no event, and each sleep ends with one
// event.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, right := pair(t, opener(new(Fabric)))
		for i := range 5 {
			require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, uint32(i))}))
		}
		synctest.Wait()
		for range 5 {
			require.NoError(t, right.next().Err)
		}
		require.Zero(t, right.device.Events())
		slept := make(chan error)
		go func() {
			_, err := right.device.Wait(make([]verbs.Completion, 1))
			slept <- err
		}()
		synctest.Wait()
		require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 10, 5)}))
		require.NoError(t, <-slept)
		require.EqualValues(t, 1, right.device.Events())
	})
}

func TestStranger(t *testing.T) {
	f := new(Fabric)
	left, right := pair(t, opener(f))
	lent, address, key := right.queue.Lent()
	require.NoError(t, f.Inject(right.queue.Local(), []byte("evil"), address, key, 7))
	require.Equal(t, "evil", string(lent[:4]))
	require.Equal(t, uint32(7), right.next().Immediate)
	f.Fail(Faults{Alter: 1})
	require.NoError(t, left.queue.Write([]verbs.Write{write(right.queue, 0, 4, 1)}))
	require.NoError(t, right.next().Err)
	require.NotEqual(t, make([]byte, 4), lent[:4], "a bit was flipped")
}
