package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	cfg "github.com/cometbft/cometbft/config"
)

// ErrAddress: a configured address cannot be listened on.
var ErrAddress = errors.New("cannot listen")

// CheckAddresses tries every address that CometBFT, the status page and gRPC will listen on, so
// that an occupied port is reported with its setting before anything is opened. (The metrics server
// would only log it.)
func CheckAddresses(ctx context.Context, c *cfg.Config, app App) error {
	wanted := []struct{ setting, addresses string }{
		{"rpc.laddr", c.RPC.ListenAddress},
		{"rpc.grpc_laddr", c.RPC.GRPCListenAddress},
		{"rpc.pprof_laddr", c.RPC.PprofListenAddress},
		{"p2p.laddr", c.P2P.ListenAddress},
		{"status.laddr", app.Status.ListenAddress},
		{"grpc.laddr", app.GRPC.ListenAddress},
	}
	if c.Instrumentation.Prometheus {
		wanted = append(wanted, struct{ setting, addresses string }{"instrumentation.prometheus_listen_addr", c.Instrumentation.PrometheusListenAddr})
	}
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for _, w := range wanted {
		for _, address := range strings.FieldsFunc(w.addresses, func(r rune) bool { return r == ',' || r == ' ' }) {
			network, host := "tcp", address
			if before, after, ok := strings.Cut(address, "://"); ok {
				network, host = before, after
			}
			if network != "tcp" {
				continue // CometBFT replaces a unix socket
			}
			listener, err := new(net.ListenConfig).Listen(ctx, network, host)
			if err != nil {
				return AddressError(w.setting, address, err)
			}
			// held until the end, so that two settings with the same port are found
			held = append(held, listener)
		}
	}
	return nil
}

// SharedHost returns a host that p2p.persistent_peers names more than once while
// p2p.allow_duplicate_ip is not set, "" if there is none: CometBFT connects to only one of the
// peers there, without an error about the others.
func SharedHost(c *cfg.P2PConfig) string {
	if c.AllowDuplicateIP {
		return ""
	}
	seen := make(map[string]bool)
	for peer := range strings.SplitSeq(c.PersistentPeers, ",") {
		_, address, _ := strings.Cut(strings.TrimSpace(peer), "@")
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			continue
		}
		if seen[host] {
			return host
		}
		seen[host] = true
	}
	return ""
}

// CheckHostPort refuses an address that is not a host:port reachable by other nodes.
func CheckHostPort(what, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || port == "0" || host == "" || strings.ContainsAny(address, "@/, \t\r\n\"'") || net.ParseIP(host).IsUnspecified() {
		return fmt.Errorf("%s is %q, it must be the host:port at which other nodes reach this one", what, address)
	}
	return nil
}

// AddressError reports the setting whose address cannot be listened on, with a hint. It wraps
// ErrAddress, and ErrInvalid if waiting does not help.
func AddressError(setting, address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w on %s (%s): the port is in use: stop the program that uses it, or use another address for --%s", ErrAddress, address, setting, setting)
	}
	full := fmt.Errorf("%w on %s (%s): %w: correct --%s", ErrAddress, address, setting, err, setting)
	var malformed *net.AddrError
	if errors.As(err, &malformed) || errors.Is(err, syscall.EACCES) {
		return Invalid(full)
	}
	return full
}
