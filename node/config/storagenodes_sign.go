package config

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/starling-kv/starling/dsm"
)

// MaxStorageNodesBytes is the maximum length of a signed storage nodes file: it fits into one
// message between nodes.
const MaxStorageNodesBytes = dsm.MaxMapBytes

// signedAs precedes the signed text, so that the signature counts for nothing else.
const signedAs = "starling: map of the ranges\n"

// Errors of Replace.
var (
	// ErrNotNewer: the version is not above the current one.
	ErrNotNewer = errors.New("the map of the ranges is not newer")
	// ErrOtherOperator: the map is not signed by the operator of the current one.
	ErrOtherOperator = errors.New("the map of the ranges is not signed by this chain's operator")
)

// unsigned returns the signature in the first line of a signed file, and the text that it signs.
func unsigned(b []byte) (signature, text []byte, ok bool) {
	line, text, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return nil, nil, false
	}
	digits, ok := bytes.CutPrefix(line, []byte(`signature = "`))
	if !ok {
		return nil, nil, false
	}
	if digits, ok = bytes.CutSuffix(digits, []byte(`"`)); !ok {
		return nil, nil, false
	}
	signature, err := hex.DecodeString(string(digits))
	return signature, text, err == nil && len(signature) == ed25519.SignatureSize
}

// isSignedBy reports whether the first line of a file signs the rest of it.
func isSignedBy(b []byte, operator ed25519.PublicKey) bool {
	signature, text, ok := unsigned(b)
	return ok && ed25519.Verify(operator, append([]byte(signedAs), text...), signature)
}

// verify sets Operator, and checks the signature of a file that has one.
func (s *StorageNodes) verify(file storageNodesFile) error {
	if file.Signature == "" {
		if file.Version != 0 || file.Operator != "" || file.ChainID != "" {
			return errors.New("the file has a version, an operator or a chain ID, but no signature: sign it with `starlingd storage ranges sign`")
		}
		return nil
	}
	operator, err := hex.DecodeString(file.Operator)
	switch {
	case err != nil || len(operator) != ed25519.PublicKeySize:
		return fmt.Errorf("operator %q is not an ed25519 public key in hex", file.Operator)
	case file.Version == 0 || file.ChainID == "":
		return errors.New("a signed file needs a version and a chain ID")
	case len(s.Text) > MaxStorageNodesBytes:
		return fmt.Errorf("a signed file has at most %d bytes, this one has %d", MaxStorageNodesBytes, len(s.Text))
	case !isSignedBy(s.Text, operator):
		return errors.New("the signature does not match: the file was changed after it was signed; sign it with `starlingd storage ranges sign`")
	}
	s.Operator = operator
	return nil
}

// Replace parses a newer map from any source. It must be signed by the operator of s, for the same
// chain. Nothing is parsed before the signature is verified. Errors: ErrNotNewer, which is no fault
// of the source; ErrOtherOperator; others say what is wrong with the map.
func (s *StorageNodes) Replace(text []byte) (*StorageNodes, error) {
	if len(text) > MaxStorageNodesBytes || s.Operator == nil || !isSignedBy(text, s.Operator) {
		return nil, ErrOtherOperator
	}
	newer, err := ParseStorageNodes(text)
	switch {
	case err != nil:
		return nil, err
	case newer.ChainID != s.ChainID || !newer.Operator.Equal(s.Operator):
		return nil, ErrOtherOperator
	case newer.Version <= s.Version:
		return nil, fmt.Errorf("%w: version %d after version %d", ErrNotNewer, newer.Version, s.Version)
	}
	return newer, nil
}

// SignFile signs the content of a storage nodes file, which can be unsigned or edited, as the
// version after its own.
func SignFile(b []byte, chainID string, key ed25519.PrivateKey) (*StorageNodes, error) {
	s, err := parseStorageNodes(b, false)
	if err != nil {
		return nil, err
	}
	s.Version, s.ChainID = s.Version+1, chainID
	return s.Sign(key)
}

// Sign returns the signed file of a map with s's version, ranges and addresses. Text and Operator
// do not matter. The error says why the map is invalid.
//
//	signature = "HEX"            # of all that follows this line
//	chain_id = "my-chain"
//	version = 2
//	operator = "HEX"             # the public key; newer maps need its signature
//	validators = ["ID"]          # absent if there are none
//	[[range]]                    # as in an unsigned file
//	leaving = ["ID"]             # nodes of the range that the next version will not have
//	[[next]]
//	first = "g"
//	after = "p"                  # absent: no end
//	nodes = ["ID@HOST:PORT"]
func (s *StorageNodes) Sign(key ed25519.PrivateKey) (*StorageNodes, error) {
	var b bytes.Buffer
	operator, _ := key.Public().(ed25519.PublicKey)
	fmt.Fprintf(&b, "chain_id = %q\nversion = %d\noperator = \"%x\"\n", s.ChainID, s.Version, operator)
	if len(s.Validators) > 0 {
		fmt.Fprintf(&b, "validators = %s\n", formatList(s.Validators))
	}
	for i := range s.Ranges.Len() {
		s.format(&b, "range", s.Ranges.Shard(i))
	}
	for _, p := range s.Next {
		s.format(&b, "next", p)
	}
	signature := ed25519.Sign(key, slices.Concat([]byte(signedAs), b.Bytes()))
	return ParseStorageNodes(slices.Concat(fmt.Appendf(nil, "signature = \"%x\"\n", signature), b.Bytes()))
}

// format writes a range.
func (s *StorageNodes) format(b *bytes.Buffer, table string, p dsm.Placement) {
	fmt.Fprintf(b, "\n[[%s]]\nfirst = %s\n", table, formatFirst(p.Range.First))
	if table == "next" && len(p.Range.After) > 0 {
		fmt.Fprintf(b, "after = %s\n", formatFirst(p.Range.After))
	}
	var addresses []string
	for _, node := range p.Replicas {
		addresses = append(addresses, s.Addresses[node].String())
	}
	fmt.Fprintf(b, "nodes = %s\n", formatList(addresses))
	for _, l := range s.Leaving {
		if table == "range" && l.Range.Equal(p.Range) {
			fmt.Fprintf(b, "leaving = %s\n", formatList(l.Replicas))
		}
	}
}
