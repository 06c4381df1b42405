package config

import (
	"net"
	"strings"
)

// LocalAddresses are the addresses at which this machine reaches a node's services; "": not served.
type LocalAddresses struct {
	Status    string   // host:port of /livez and /readyz
	RPC       string   // URL
	Otherwise []string // host:port of services that listen while a node joins, when RPC does not
}

// Local returns the addresses of a node with this configuration.
func (c *Config) Local() LocalAddresses {
	local := LocalAddresses{Status: localAddress(c.App.Status.ListenAddress), RPC: "http://" + localAddress(c.CometBFT.RPC.ListenAddress)}
	if strings.HasPrefix(c.CometBFT.RPC.ListenAddress, "unix://") {
		local.RPC = c.CometBFT.RPC.ListenAddress
	}
	if address, err := TransportAddress(c); err == nil {
		local.Otherwise = append(local.Otherwise, localAddress(address))
	}
	if i := c.CometBFT.Instrumentation; i.IsPrometheusEnabled() {
		local.Otherwise = append(local.Otherwise, localAddress(i.PrometheusListenAddr))
	}
	return local
}

// localAddress returns host:port of a listening address, with loopback instead of "all interfaces".
func localAddress(laddr string) string {
	address := strings.TrimPrefix(laddr, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
