package tx

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cometbft/cometbft/crypto/ed25519"

	"github.com/starling-kv/starling/internal/protowalk"
)

// Limits. The limits of keys and values are those of the tree (ICS-23 cannot prove an empty value).
const (
	MaxKeyBytes   = 4096
	MaxValueBytes = 1 << 20
	MaxOperations = 10_000
	AccountBytes  = ed25519.PubKeySize

	// MaxPrefixBytes is the length of the longest prefix of a grant: the key of the grant's record,
	// 0x00 'g' ‖ grantee ‖ prefix, must not exceed MaxKeyBytes.
	MaxPrefixBytes = MaxKeyBytes - 2 - AccountBytes

	// MaxInfoBytes is the length of the longest info of an upgrade.
	MaxInfoBytes = 256

	// overhead exceeds the bytes that tags, lengths, account, nonce and signature take in a
	// transaction of one operation (150 bytes).
	overhead = 256

	// MaxBytes is the length of the longest transaction. It fits the largest single operation, a
	// compare-and-put with two values of maximum length. Several operations share this limit.
	MaxBytes = 2*MaxValueBytes + MaxKeyBytes + overhead
)

const (
	// marker is the first byte of a protobuf transaction. A text transaction cannot start with it.
	marker = 0x00
	// Reserved is the first byte of system keys, which clients can read and no transaction can
	// write.
	Reserved = 0x00
	// domain separates signatures of transactions from other signatures made with the same key.
	domain = "starling/tx/v1"
)

// Tx is a decoded transaction: exactly one of Text and Body is set. It keeps no reference to the
// bytes that it was decoded from.
type Tx struct {
	Text *Text
	Body *Body
}

// Text is an unsigned write of one key, in the format of CometBFT's kvstore.
type Text struct {
	Key, Value []byte
}

// Bytes returns the only form in which a text transaction enters a block: key=value.
func (t *Text) Bytes() []byte {
	return bytes.Join([][]byte{t.Key, t.Value}, []byte("="))
}

// Decode decodes a transaction of any app version, and checks everything that can be checked
// without the state. Every error is an *Error.
func Decode(b []byte, chainID string) (*Tx, error) {
	return DecodeVersion(b, chainID, NewestAppVersion)
}

// DecodeVersion does what Decode does, for blocks of an app version: it refuses what later versions
// allow. A transaction that an earlier version accepts is the same in all later ones.
func DecodeVersion(b []byte, chainID string, version uint64) (*Tx, error) {
	return decode(b, chainID, version, func(account, message, signature []byte) bool {
		return ed25519.PubKey(account).VerifySignature(message, signature)
	})
}

// DecodeAll decodes transactions as DecodeVersion does. It verifies their signatures in a batch,
// which takes half the time for 64 of them. With a wrong signature among them, it takes longer than
// Decode. One of txs[i] and errs[i] is nil.
func DecodeAll(raw [][]byte, chainID string, version uint64) (txs []*Tx, errs []error) {
	if len(raw) == 1 { // a batch of one takes longer
		t, err := DecodeVersion(raw[0], chainID, version)
		return []*Tx{t}, []error{err}
	}
	txs, errs = make([]*Tx, len(raw)), make([]error, len(raw))
	batch := ed25519.NewBatchVerifier()
	var signed []int // indexes of the transactions in batch
	for i, b := range raw {
		txs[i], errs[i] = decode(b, chainID, version, func(account, message, signature []byte) bool {
			if batch.Add(ed25519.PubKey(account), message, signature) != nil {
				return false
			}
			signed = append(signed, i)
			return true
		})
	}
	if all, valid := batch.Verify(); !all {
		for n, i := range signed {
			if !valid[n] {
				txs[i], errs[i] = nil, errSignature(txs[i].Body.Account, chainID)
			}
		}
	}
	return txs, errs
}

// decode decodes a transaction. It calls verify last, and only for a signed transaction that is
// right in everything else.
func decode(b []byte, chainID string, version uint64, verify func(account, message, signature []byte) bool) (*Tx, error) {
	switch {
	case len(b) == 0:
		return nil, Errorf(CodeMalformed, "the transaction is empty")
	case len(b) > MaxBytes:
		return nil, Errorf(CodeTooLarge, "the transaction has %d bytes, at most %d are allowed", len(b), MaxBytes)
	case b[0] == marker:
		body, err := decodeSigned(b[1:], chainID, version, verify)
		if err != nil {
			return nil, err
		}
		return &Tx{Body: body}, nil
	default:
		text, err := decodeText(b)
		if err != nil {
			return nil, err
		}
		return &Tx{Text: text}, nil
	}
}

// decodeText follows isValidTx of CometBFT's abci/example/kvstore/kvstore.go: exactly one
// separator, ':' or '=', which is neither the first nor the last byte.
func decodeText(b []byte) (*Text, error) {
	i := bytes.IndexAny(b, "=:")
	if i <= 0 || i == len(b)-1 || bytes.ContainsAny(b[i+1:], "=:") {
		return nil, Errorf(CodeMalformed, "a text transaction is key=value, with exactly one = and no : in it (a signed transaction starts with a zero byte)")
	}
	text := &Text{Key: bytes.Clone(b[:i]), Value: bytes.Clone(b[i+1:])}
	if err := firstError(checkWrite(text.Key), checkSize("value", text.Value, 1, MaxValueBytes)); err != nil {
		return nil, err
	}
	return text, nil
}

func decodeSigned(b []byte, chainID string, version uint64, verify func(account, message, signature []byte) bool) (*Body, error) {
	var signed SignedTx
	if err := signed.Unmarshal(b); err != nil {
		return nil, Errorf(CodeMalformed, "not a SignedTx message: %v", err)
	}
	if !encodesTo(&signed, b) {
		return nil, Errorf(CodeMalformed, "the SignedTx is not in its only encoding (fields in order, no unknown ones, shortest integers)")
	}
	if len(signed.Signature) != ed25519.SignatureSize {
		return nil, Errorf(CodeMalformed, "the signature has %d bytes, an ed25519 signature has %d", len(signed.Signature), ed25519.SignatureSize)
	}
	body, err := DecodeBody(signed.Body, version)
	if err != nil {
		return nil, err
	}
	if !verify(body.Account, SignBytes(chainID, signed.Body), signed.Signature) {
		return nil, errSignature(body.Account, chainID)
	}
	return body, nil
}

// DecodeBody decodes the part of a transaction that its account signs, and checks everything that
// can be checked without the state and the signature.
func DecodeBody(b []byte, version uint64) (*Body, error) {
	// Count before anything is allocated: a decoded operation takes many times its encoded length.
	n, ok := countOperations(b)
	if !ok {
		return nil, Errorf(CodeMalformed, "not a Body message: a field is cut off, or has a wire type that no field of a Body has")
	}
	if n > MaxOperations {
		return nil, Errorf(CodeTooLarge, "more than %d operations in a transaction", MaxOperations)
	}
	if err := protowalk.Walk(b, &bodyTables[min(max(version, 1), NewestAppVersion)-1]); err != nil {
		return nil, errBodyEncoding()
	}
	if nested(b, version) > MaxOperations {
		return nil, Errorf(CodeTooLarge, "more than %d compares and operations in txns, and keys in calls, of a transaction", MaxOperations)
	}
	if later(b, version) {
		return nil, errBodyEncoding()
	}
	body := new(Body)
	if err := body.Unmarshal(b); err != nil {
		return nil, Errorf(CodeMalformed, "not a Body message: %v", err)
	}
	if !encodesTo(body, b) {
		return nil, errBodyEncoding()
	}
	if err := body.check(version); err != nil {
		return nil, err
	}
	return body, nil
}

func errSignature(account []byte, chainID string) *Error {
	return Errorf(CodeBadSignature, "the signature does not fit account %x on chain %q: made with another key, for another chain, or the transaction was changed after signing", account, chainID)
}

func errBodyEncoding() *Error {
	return Errorf(CodeMalformed, "the Body is not in its only encoding (fields in order, no unknown ones, shortest integers, no empty defaults)")
}

// SignBytes returns the bytes that the account signs: the domain tag, the chain id and the
// serialised Body. The length of the chain id precedes it, so that no two pairs of chain id and
// body have the same bytes.
func SignBytes(chainID string, body []byte) []byte {
	b := make([]byte, 0, len(domain)+1+binary.MaxVarintLen64+len(chainID)+len(body))
	b = append(b, domain...)
	b = append(b, 0x00)
	b = binary.AppendUvarint(b, uint64(len(chainID)))
	b = append(b, chainID...)
	return append(b, body...)
}

// Sign returns the signed transaction of body, which must contain the nonce and the operations. The
// account is set to that of the key. Sign refuses a body that names another account or that Decode
// would refuse.
func Sign(priv ed25519.PrivKey, chainID string, body *Body) ([]byte, error) {
	if len(priv) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("tx: the private key has %d bytes, want %d", len(priv), ed25519.PrivateKeySize)
	}
	account := priv.PubKey().Bytes()
	if len(body.Account) != 0 && !bytes.Equal(body.Account, account) {
		return nil, fmt.Errorf("tx: the body names account %x but the key is of account %x", body.Account, account)
	}
	own := Body{Account: account, Nonce: body.Nonce, Operations: body.Operations}
	if err := own.check(NewestAppVersion); err != nil {
		return nil, err
	}
	raw, err := own.Marshal()
	if err != nil {
		return nil, fmt.Errorf("tx: encode body: %w", err)
	}
	signature, err := priv.Sign(SignBytes(chainID, raw))
	if err != nil {
		return nil, fmt.Errorf("tx: sign: %w", err)
	}
	signed := SignedTx{Body: raw, Signature: signature}
	b := make([]byte, 1+signed.Size())
	b[0] = marker
	if _, err := signed.MarshalToSizedBuffer(b[1:]); err != nil {
		return nil, fmt.Errorf("tx: encode: %w", err)
	}
	if len(b) > MaxBytes {
		return nil, Errorf(CodeTooLarge, "the transaction has %d bytes, at most %d are allowed: split it", len(b), MaxBytes)
	}
	return b, nil
}

type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// encodesTo reports whether m serialises to exactly b. This refuses encodings that a protobuf
// decoder accepts: unknown fields, fields out of order or repeated, integers that are not in their
// shortest form, and default values that are written out.
func encodesTo(m message, b []byte) bool {
	if m.Size() != len(b) {
		return false
	}
	again := make([]byte, len(b))
	n, err := m.MarshalToSizedBuffer(again)
	return err == nil && n == len(b) && bytes.Equal(again, b)
}

// countOperations counts the operations among the top-level fields of a serialised Body, and stops
// just above MaxOperations. ok is false if a field is not one of a Body, or if its tag is not in
// its shortest form.
func countOperations(b []byte) (count int, ok bool) {
	const (
		accountTag   = 1<<3 | 2
		nonceTag     = 2 << 3
		operationTag = 3<<3 | 2
	)
	for len(b) > 0 && count <= MaxOperations {
		tag := b[0]
		v, n := binary.Uvarint(b[1:])
		if n <= 0 {
			return 0, false
		}
		b = b[1+n:]
		switch tag {
		case nonceTag:
			continue
		case operationTag:
			count++
		case accountTag:
		default:
			return 0, false
		}
		if v > uint64(len(b)) {
			return 0, false
		}
		b = b[v:]
	}
	return count, true
}
