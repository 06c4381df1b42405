package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
)

// Below Linux' range for outgoing connections (net.ipv4.ip_local_port_range, 32768 and up): no connection of anybody's takes such a
// port between the moment it is let go here and the moment the node binds it.
const (
	firstPort = 20000
	lastPort  = 32000

	transportOffset = 10
)

// Ports are free TCP ports on loopback, held until they are let go.
type Ports struct {
	numbers []int
	held    []net.Listener
}

// HoldPorts finds and holds n ports, so that no other network started on this machine picks the same.
func HoldPorts(n int) (*Ports, error) {
	p := &Ports{}
	for range 100 * n { // enough even where most are taken
		if len(p.numbers) == n {
			return p, nil
		}
		number := firstPort + rand.IntN(lastPort-firstPort)
		if slices.Contains(p.numbers, number) {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", loopback(number))
		if err != nil {
			continue // taken
		}
		// A node's transport listens on its p2p port + 10, unless it is told otherwise.
		beside, err := new(net.ListenConfig).Listen(context.Background(), "tcp", loopback(number+transportOffset))
		if err != nil {
			_ = listener.Close()
			continue
		}
		p.numbers, p.held = append(p.numbers, number), append(p.held, listener, beside)
	}
	if len(p.numbers) == n {
		return p, nil
	}
	p.Release()
	return nil, fmt.Errorf("no %d free TCP ports between %d and %d on 127.0.0.1: end what listens there", n, firstPort, lastPort)
}

// Number returns port i.
func (p *Ports) Number(i int) int { return p.numbers[i] }

// Address returns port i as host:port.
func (p *Ports) Address(i int) string { return loopback(p.numbers[i]) }

// Release lets the ports go, right before the process that is to bind them starts. A second call does nothing.
func (p *Ports) Release() {
	for _, listener := range p.held {
		_ = listener.Close()
	}
	p.held = nil
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
