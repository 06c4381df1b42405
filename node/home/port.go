package home

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	cmted25519 "github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/p2p"
	p2pconn "github.com/cometbft/cometbft/p2p/conn"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/transport"
)

// probeTimeout limits each of a probe's two requests.
const probeTimeout = 5 * time.Second

// service is the protocol that listens at a port of a node.
type service int

const (
	serviceUnknown service = iota
	serviceRPC
	serviceP2P
	serviceTransport
)

// secretConnection is the beginning of CometBFT's p2p handshake, which the listener sends first: an
// ephemeral key of 32 bytes in a google.protobuf.BytesValue, with a length prefix
// (p2p/conn/secret_connection.go).
var secretConnection = []byte{34, 0x0a, 32}

// probe determines the service that listens at an address.
func probe(ctx context.Context, hostPort string) service {
	answer := firstBytes(ctx, hostPort)
	switch {
	case bytes.HasPrefix(answer, secretConnection):
		return serviceP2P
	case bytes.HasPrefix(answer, []byte("HTTP/")):
		return serviceRPC
	case speaksTLS(ctx, hostPort):
		return serviceTransport
	default:
		return serviceUnknown
	}
}

// firstBytes returns the beginning of the response to an HTTP request; nil: no response.
func firstBytes(ctx context.Context, hostPort string) []byte {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", hostPort)
	if err != nil {
		return nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(probeTimeout)) // no response is a result
	if _, err := conn.Write([]byte("GET /health HTTP/1.0\r\n\r\n")); err != nil {
		return nil
	}
	answer := make([]byte, 16)
	n, _ := conn.Read(answer) // whatever was received is the result
	return answer[:n]
}

// speaksTLS reports whether a TLS server of any name listens there. No data are sent to it.
func speaksTLS(ctx context.Context, hostPort string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", hostPort)
	if err != nil {
		return false
	}
	defer conn.Close()
	//nolint:gosec // it only detects a TLS server
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}).HandshakeContext(ctx) == nil
}

// p2pID returns the id of the node whose p2p listens at an address. It completes the handshake and
// sends nothing more.
func p2pID(ctx context.Context, hostPort string) (p2p.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", hostPort)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(probeTimeout)) // no response is a result
	secret, err := p2pconn.MakeSecretConnection(c, cmted25519.GenPrivKey())
	if err != nil {
		return "", fmt.Errorf("handshake of p2p: %w", err)
	}
	return p2p.PubKeyToID(secret.RemotePubKey()), nil
}

// wrongPort explains a failure of InitFrom if the address is that of another service; otherwise it
// returns err.
func wrongPort(ctx context.Context, from string, err error) error {
	asked, address := serviceTransport, transport.Address{}
	if strings.Contains(from, "://") {
		asked = serviceRPC
		u, wrong := url.Parse(from)
		if wrong != nil {
			return err
		}
		address.HostPort = u.Host
	} else if address, _ = transport.ParseAddress(from); address.HostPort == "" {
		return err
	}
	host, port, wrong := net.SplitHostPort(address.HostPort)
	if wrong != nil {
		return err
	}
	found := probe(ctx, address.HostPort)
	if found == asked {
		return err
	}
	switch found {
	case serviceRPC:
		return config.Invalid(fmt.Errorf("this port is RPC: use http://%s, or the transport, which is the port of p2p + %d (%w)", address.HostPort, config.PortOffset, err))
	case serviceTransport:
		return config.Invalid(fmt.Errorf("this port is a transport: use %s without http:// (%w)", address.HostPort, err))
	case serviceP2P:
		if n, wrong := strconv.ParseUint(port, 10, 16); wrong == nil {
			address.HostPort = net.JoinHostPort(host, strconv.FormatUint(n+config.PortOffset, 10))
		}
		return config.Invalid(fmt.Errorf("this port is p2p: the transport is p2p + %d, so use %s (%w)", config.PortOffset, address, err))
	default:
		return err
	}
}
