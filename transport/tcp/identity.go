package tcp

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/starling-kv/starling/transport"
)

// maxCertificate is the size limit of a peer's certificate, in bytes. Ours have about 250.
const maxCertificate = 1024

var errCertificate = errors.New("the peer must send one small certificate of an ed25519 key")

// IDOf returns the ID of a node key, like CometBFT's p2p.PubKeyToID (p2p/key.go).
func IDOf(key ed25519.PublicKey) transport.ID {
	sum := sha256.Sum256(key)
	return transport.ID(hex.EncodeToString(sum[:20]))
}

// config returns a TLS 1.3 configuration for the node key. Certificates are self-signed, and their
// names and dates are ignored: a peer that proves possession of a key has the ID of that key. check
// accepts or rejects that ID before this side sends its own certificate.
func config(key ed25519.PrivateKey, check func(transport.ID) error) (*tls.Config, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), // RFC 5280, 4.1.2.5: no expiry
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the node key: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		// Authenticity is required, secrecy is not, so the cheapest key exchange is enough.
		CurvePreferences:            []tls.CurveID{tls.X25519},
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true, // chunks, not pages of text
		InsecureSkipVerify:          true, //nolint:gosec // VerifyConnection checks the key
		VerifyConnection: func(state tls.ConnectionState) error {
			id, err := peerID(state)
			if err != nil {
				return err
			}
			return check(id)
		},
	}, nil
}

// peerID returns the ID of the peer. Before a handshake succeeds, crypto/tls has checked that the
// peer possesses the key (RFC 8446, section 4.4.3).
func peerID(state tls.ConnectionState) (transport.ID, error) {
	certs := state.PeerCertificates
	if len(certs) != 1 || len(certs[0].Raw) > maxCertificate {
		return "", errCertificate
	}
	key, ok := certs[0].PublicKey.(ed25519.PublicKey)
	if !ok {
		return "", errCertificate
	}
	return IDOf(key), nil
}
