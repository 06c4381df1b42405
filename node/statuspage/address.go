package statuspage

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ErrNotLoopback is returned for an address that other machines can reach, unless that is allowed.
var ErrNotLoopback = errors.New("other machines could reach it")

// CheckAddress checks an address to listen on, host:port. A non-loopback address requires public.
func CheckAddress(address string, public bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not an address such as 127.0.0.1:26680: %w", address, err)
	}
	if !public && !isLoopback(host) {
		return fmt.Errorf("%q: %w", address, ErrNotLoopback)
	}
	return nil
}

// isLoopback reports whether a host is certainly this machine. Names other than localhost can
// resolve to other machines.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// allowed reports whether a request may name this host. In a DNS rebinding attack, a site points
// its own name at 127.0.0.1, and requests have that name; so a name must be one that the operator
// configured. An IP address is always this node's, or the request would not have arrived here. A
// request without a host (HTTP/1.0, used by load balancers for health checks) does not come from a
// browser.
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
