package grpcserver

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/seeds"
)

func (p *places) inProgress() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

func at(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip)} }

// Callers from other machines leave places for those on this one, and a host gets half of the
// places that others leave.
func TestHostsLeavePlaces(t *testing.T) {
	var p places
	left := MaxCalls - localCalls
	for host := range 10 {
		for range (left + 1) / 2 {
			require.NotNil(t, p.take(at(fmt.Sprintf("192.0.2.%d", host))), "host %d", host)
			left--
		}
		require.Nil(t, p.take(at(fmt.Sprintf("192.0.2.%d", host))), "host %d", host)
		require.Nil(t, p.take(at(fmt.Sprintf("::ffff:192.0.2.%d", host))), "host %d", host)
	}
	require.Zero(t, left, "ten hosts take all")
	require.Nil(t, p.take(at("192.0.2.10")))
	for range localCalls {
		require.NotNil(t, p.take(at("127.0.0.1")))
	}
	require.Nil(t, p.take(at("::1")))
}

// The addresses of an IPv6 /64 are one host.
func TestAddressesOfOneHost(t *testing.T) {
	var p places
	taken := 0
	for p.take(at(fmt.Sprintf("2001:db8::%x", taken))) != nil {
		taken++
	}
	require.Equal(t, (MaxCalls-localCalls)/2, taken)
	require.NotNil(t, p.take(at("2001:db8:0:1::1")))
	require.NotNil(t, p.take(nil), "an address of another kind")
}

// Places that were given back are free again, and hosts without a call are forgotten.
func TestPlacesAreGivenBack(t *testing.T) {
	rng := seeds.Rand(t)
	var p places
	var held []func()
	for range 20_000 {
		if n := len(held); n > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(n)
			held[i]()
			held[i], held = held[n-1], held[:n-1]
			continue
		}
		address := "127.0.0.1"
		if rng.IntN(10) > 0 {
			address = fmt.Sprintf("192.0.2.%d", rng.IntN(20))
		}
		if release := p.take(at(address)); release != nil {
			held = append(held, release)
		}
		require.Equal(t, len(held), p.inProgress())
	}
	require.Greater(t, len(held), MaxCalls/2)
	for _, release := range held {
		release()
	}
	require.Zero(t, p.inProgress())
	require.Empty(t, p.hosts)
}
