package statuspage

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ErrNotLoopback: an address that others can reach, without the permission to be.
var ErrNotLoopback = errors.New("others could reach it there")

// CheckAddress checks an address to listen on, host:port. One that is no loopback address needs public.
func CheckAddress(address string, public bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address such as 127.0.0.1:26680: %w", address, err)
	}
	if !public && !isLoopback(host) {
		return fmt.Errorf("%q: %w", address, ErrNotLoopback)
	}
	return nil
}

// isLoopback says that a host is certainly this machine. Names but localhost may change their mind.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// allowed says whether a request may name this host. A site that has its own name lead to 127.0.0.1 (DNS rebinding) names itself, so
// a name must be one that the operator gave; an address is always this node's, or the request would not be here. What names nothing
// (HTTP/1.0, as load balancers check health) is no browser.
func (s *Server) allowed(host string) bool {
	if host == "" {
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if isLoopback(name) {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return s.o.Public
	}
	return slices.ContainsFunc(s.o.Hosts, func(own string) bool { return strings.EqualFold(own, name) })
}
