package statuspage

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ErrNotLoopback is returned for an address that other machines can reach, without permission for
// that.
var ErrNotLoopback = errors.New("other machines could reach it there")

// CheckAddress checks an address to listen on, host:port. An address that is not a loopback address
// needs public.
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
// change their meaning.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// allowed reports whether a request may name this host. A site that makes its own name lead to
// 127.0.0.1 (DNS rebinding) names itself, so a name must be one that the operator configured. An
// address is always this node's, or the request would not have arrived here. A request without a
// host (HTTP/1.0, as load balancers use for health checks) does not come from a browser.
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
