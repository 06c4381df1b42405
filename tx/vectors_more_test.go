package tx

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/internal/hexruns"
)

func parseRuns(t testing.TB, text string) []byte {
	b, err := hexruns.Decode(text)
	require.NoError(t, err)
	return b
}

// field returns a protobuf field of bytes, which may be empty.
func field(number int, parts ...[]byte) []byte {
	b := bytes.Join(parts, nil)
	tag := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(tag, uint64(len(b))), b...)
}

const vectorChain = "starling-1"

var (
	alice    = key("alice").PubKey().Bytes()
	plainPut = field(1, field(1, []byte("key")), field(2, []byte("value")))
)

// rawBody returns a Body of account, nonce (encoded, nil: left out) and operations.
func rawBody(account, nonce []byte, operations ...[]byte) []byte {
	var b []byte
	if account != nil {
		b = field(1, account)
	}
	b = append(b, nonce...)
	for _, op := range operations {
		b = append(b, field(3, op)...)
	}
	return b
}

func rawTx(body, signature []byte) []byte {
	return bytes.Join([][]byte{{marker}, field(1, body), field(2, signature)}, nil)
}

// signedBody returns a transaction with a correct signature of body, whatever that is.
func signedBody(t *testing.T, body []byte) []byte {
	b, err := forgeRaw(key("alice"), vectorChain, body)
	require.NoError(t, err)
	return b
}

// moreVectors returns transactions at the limits, those that break two rules, and those with
// signatures on which libraries disagree.
func moreVectors(t *testing.T) []vector {
	var all []vector
	add := func(name string, code Code, b []byte) {
		require.Equal(t, code, codeOf(t, b, vectorChain), name)
		all = append(all, vector{Name: name, ChainID: vectorChain, Tx: hexruns.Encode(b), Code: code})
	}
	fill := func(s string, n int) []byte { return bytes.Repeat([]byte(s), n) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	zeros := make([]byte, 32)
	badSignature := make([]byte, 64)

	// Text.
	eq := []byte("=")
	add("text: key and value of full length", CodeOK, join(fill("k", MaxKeyBytes), eq, fill("v", MaxValueBytes)))
	add("text: key too long", CodeTooLarge, join(fill("k", MaxKeyBytes+1), eq, []byte("v")))
	add("text: value too long", CodeTooLarge, join([]byte("k="), fill("v", MaxValueBytes+1)))
	add("text: no separator in the longest transaction", CodeMalformed, fill("k", MaxBytes))
	add("text: no separator, a byte too long", CodeTooLarge, fill("k", MaxBytes+1))
	add("text: key too long, no value", CodeMalformed, join(fill("k", MaxKeyBytes+1), eq))
	add("text: no key, value too long", CodeMalformed, join(eq, fill("v", MaxValueBytes+1)))
	add("text: key too long, separator twice", CodeMalformed, join(fill("k", MaxKeyBytes+1), []byte("==v")))
	for _, s := range []string{"a:b=c", "a=b:c", "a:b:c", "a=b:", ":a=b", "=", ":", "=b", "ab"} {
		add("text: "+s, CodeMalformed, []byte(s))
	}
	add("text: any other bytes", CodeOK, []byte("\xff \x00= \x00\xff"))

	// SignedTx.
	good := rawBody(alice, nil, plainPut)
	signature := signedBody(t, good)[1+len(field(1, good))+2:]
	add("signed: the first byte alone", CodeMalformed, []byte{marker})
	add("signed: no SignedTx", CodeMalformed, []byte{marker, 0xff})
	add("signed: no SignedTx, the longest", CodeMalformed, join([]byte{marker}, fill("\xff", MaxBytes-1)))
	add("signed: no SignedTx, a byte too long", CodeTooLarge, join([]byte{marker}, fill("\xff", MaxBytes)))
	add("signed: no body", CodeMalformed, join([]byte{marker}, field(2, badSignature)))
	add("signed: an empty body written", CodeMalformed, rawTx(nil, badSignature))
	add("signed: signature before body", CodeMalformed, join([]byte{marker}, field(2, signature), field(1, good)))
	add("signed: body twice", CodeMalformed, join([]byte{marker}, field(1, good), field(1, good), field(2, signature)))
	add("signed: an empty signature written", CodeMalformed, rawTx(good, nil))
	add("signed: signature of 63 bytes", CodeMalformed, rawTx(good, signature[:63]))
	add("signed: signature of 65 bytes", CodeMalformed, rawTx(good, join(signature, []byte{0})))

	// The number of operations, and the walk that finds it.
	// Of empty operations.
	most, over := rawBody(nil, nil, repeat(nil, MaxOperations)...), rawBody(nil, nil, repeat(nil, MaxOperations+1)...)
	account := field(1, alice)
	longNonce := []byte{0x10, 0x81, 0x00}
	add("operations: 10,000", CodeOK, signedBody(t, rawBody(alice, nil, repeat(plainPut, MaxOperations)...)))
	add("operations: 10,001", CodeTooLarge, signedBody(t, rawBody(alice, nil, repeat(plainPut, MaxOperations+1)...)))
	add("operations: 10,001 of no kind, no account, wrong signature", CodeTooLarge, rawTx(over, badSignature))
	add("operations: 10,001, signature of 63 bytes", CodeMalformed, rawTx(join(account, over), signature[:63]))
	add("operations: 10,001, an unknown field of SignedTx", CodeMalformed, join(rawTx(join(account, over), signature), []byte{0x18, 1}))
	add("operations: 10,001, the first no Operation", CodeTooLarge, rawTx(join(account, field(3, []byte{0xff}), most), badSignature))
	add("operations: 10,000, the first no Operation", CodeMalformed, rawTx(join(account, field(3, []byte{0xff}), most[2:]), badSignature))
	add("operations: 10,001, the account after them", CodeTooLarge, rawTx(join(over, account), badSignature))
	add("operations: 10,000, the account after them", CodeMalformed, rawTx(join(most, account), badSignature))
	add("operations: 10,001, a nonce in a longer form", CodeTooLarge, rawTx(join(account, longNonce, over), badSignature))
	add("operations: 10,000, a nonce in a longer form", CodeMalformed, rawTx(join(account, longNonce, most), badSignature))
	add("operations: 10,001, their lengths in a longer form", CodeTooLarge, rawTx(join(account, fill("\x1a\x80\x00", MaxOperations+1)), badSignature))
	add("operations: 10,001, their tags in a longer form", CodeMalformed, rawTx(join(account, fill("\x9a\x00\x00", MaxOperations+1)), badSignature))
	add("operations: 10,001, a nonce of 65 bits before", CodeMalformed, rawTx(join(account, []byte{0x10}, fill("\xff", 9), []byte{2}, over), badSignature))
	for _, c := range []struct {
		name  string
		field []byte
	}{
		{"a fixed32", []byte{0x25, 0, 0, 0, 0}},
		{"a fixed64", []byte{0x21, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"a varint of field 4", []byte{0x20, 1}},
		{"a field 4", []byte{0x22, 0}},
		{"a field 0", []byte{0x02, 0}},
		{"a group", []byte{0x23, 0x24}},
		{"a varint of field 3", []byte{0x18, 1}},
		{"a nonce of wire type 2", []byte{0x12, 0}},
		{"what is cut off", []byte{0x1a, 0x7f}},
	} {
		if c.field[0] != 0x1a {
			add("operations: 10,001, "+c.name+" before", CodeMalformed, rawTx(join(account, c.field, over), badSignature))
		}
		add("operations: 10,001, then "+c.name, CodeTooLarge, rawTx(join(account, over, c.field), badSignature))
		add("operations: 10,000, then "+c.name, CodeMalformed, rawTx(join(account, most, c.field), badSignature))
	}

	// Encoding of the Body.
	k, v := field(1, []byte("k")), field(2, []byte("v"))
	most64 := join(fill("\xff", 9), []byte{1})
	add("encoding: the largest nonce", CodeOK, signedBody(t, rawBody(alice, join([]byte{0x10}, most64), plainPut)))
	add("encoding: nonce 0 written", CodeMalformed, signedBody(t, rawBody(alice, []byte{0x10, 0}, plainPut)))
	add("encoding: a nonce in a longer form", CodeMalformed, signedBody(t, rawBody(alice, longNonce, plainPut)))
	add("encoding: a nonce of 65 bits", CodeMalformed, signedBody(t, rawBody(alice, join([]byte{0x10}, fill("\xff", 9), []byte{2}), plainPut)))
	add("encoding: an unknown field of Body", CodeMalformed, signedBody(t, join(good, []byte{0x20, 1})))
	add("encoding: the nonce last", CodeMalformed, signedBody(t, join(good, []byte{0x10, 1})))
	for _, c := range []struct {
		name string
		code Code
		op   []byte
	}{
		{"fields swapped", CodeMalformed, field(1, v, k)},
		{"an unknown field", CodeMalformed, field(1, k, v, []byte{0x18, 1})},
		{"an empty value written", CodeMalformed, field(1, k, field(2))},
		{"an empty expected written", CodeMalformed, field(3, k, field(2), field(3, []byte("v")))},
		{"a key of wire type 0", CodeMalformed, field(1, []byte{0x08, 1})},
		{"an operation of wire type 0", CodeMalformed, []byte{0x08, 1}},
		{"two kinds", CodeMalformed, join(field(1, k, v), field(2, k))},
		{"one kind twice", CodeMalformed, join(field(1, k, v), field(1, k, v))},
		{"an unknown kind", CodeMalformed, field(9, k)},
		{"an unknown kind after a known one", CodeMalformed, join(field(1, k, v), field(9, k))},
		{"the largest quota", CodeOK, field(5, v, []byte{0x18}, most64)},
		{"a quota of 65 bits", CodeMalformed, field(5, v, []byte{0x18}, fill("\xff", 9), []byte{2})},
		{"quota 0 written", CodeMalformed, field(5, v, []byte{0x18, 0})},
		{"an empty grantee written", CodeMalformed, field(5, field(1), v)},
		{"a grant of nothing but defaults", CodeOK, field(5)},
		{"the largest power", CodeOK, field(7, field(1, alice), []byte{0x10}, most64)},
		{"a validator's key that is no point", CodeOK, field(7, field(1, join([]byte{2}, zeros[1:])), []byte{0x10, 1})},
		{"a confirmed validator", CodeOK, field(7, field(1, alice), []byte{0x10, 1, 0x18, 1})},
		{"confirmed 0", CodeMalformed, field(7, field(1, alice), []byte{0x10, 1, 0x18, 0})},
		{"confirmed 2", CodeMalformed, field(7, field(1, alice), []byte{0x10, 1, 0x18, 2})},
		{"a confirmed validator without power", CodeMalformed, field(7, field(1, alice), []byte{0x18, 1})},
		{"remove 2", CodeMalformed, field(8, field(1, alice), []byte{0x10, 2})},
		{"remove 0", CodeMalformed, field(8, field(1, alice), []byte{0x10, 0})},
		{"remove in a longer form", CodeMalformed, field(8, field(1, alice), []byte{0x10, 0x81, 0})},
	} {
		add("encoding: "+c.name, c.code, signedBody(t, rawBody(alice, nil, c.op)))
	}

	// Limits, and the order of the checks where two rules are broken.
	bytesOf := func(n int) []byte { return fill("x", n) }
	put := func(key, value []byte) []byte { return field(1, optional(1, key), optional(2, value)) }
	cas := func(key, expected, value []byte) []byte {
		return field(3, optional(1, key), optional(2, expected), optional(3, value))
	}
	read := func(key []byte) []byte { return field(4, optional(1, key)) }
	grant := func(grantee, prefix []byte) []byte { return field(5, optional(1, grantee), optional(2, prefix)) }
	revoke := func(grantee, prefix []byte) []byte { return field(6, optional(1, grantee), optional(2, prefix)) }
	x, nul, nulLong := bytesOf(1), []byte{0}, make([]byte, MaxKeyBytes+1)
	longKey, longValue, longPrefix := bytesOf(MaxKeyBytes+1), bytesOf(MaxValueBytes+1), bytesOf(MaxPrefixBytes+1)
	fullKey, fullValue, fullPrefix := bytesOf(MaxKeyBytes), bytesOf(MaxValueBytes), bytesOf(MaxPrefixBytes)
	for _, c := range []struct {
		name       string
		code       Code
		operations [][]byte
	}{
		{"put of full lengths", CodeOK, [][]byte{put(fullKey, fullValue)}},
		{"put, value too long", CodeTooLarge, [][]byte{put(x, longValue)}},
		{"put, reserved key, no value", CodeReserved, [][]byte{put(nul, nil)}},
		{"put, reserved key, value too long", CodeReserved, [][]byte{put(nul, longValue)}},
		{"put, reserved key that is too long", CodeTooLarge, [][]byte{put(nulLong, x)}},
		{"put, key too long, no value", CodeTooLarge, [][]byte{put(longKey, nil)}},
		{"put, no key, value too long", CodeMalformed, [][]byte{put(nil, longValue)}},
		{"delete of no key", CodeMalformed, [][]byte{field(2)}},
		{"delete, full length", CodeOK, [][]byte{field(2, field(1, fullKey))}},
		{"delete, reserved key", CodeReserved, [][]byte{field(2, field(1, nul))}},
		{"compare-and-put of full lengths", CodeOK, [][]byte{cas(fullKey, fullValue, fullValue)}},
		{"compare-and-put, expected too long", CodeTooLarge, [][]byte{cas(x, longValue, x)}},
		{"compare-and-put, value too long", CodeTooLarge, [][]byte{cas(x, x, longValue)}},
		{"compare-and-put, reserved key, expected too long", CodeReserved, [][]byte{cas(nul, longValue, x)}},
		{"compare-and-put, expected too long, no value", CodeTooLarge, [][]byte{cas(x, longValue, nil)}},
		{"compare-and-put, no value", CodeMalformed, [][]byte{cas(x, x, nil)}},
		{"read of a reserved key of full length", CodeOK, [][]byte{read(nulLong[1:])}},
		{"read of a reserved key that is too long", CodeTooLarge, [][]byte{read(nulLong)}},
		{"read of no key", CodeMalformed, [][]byte{read(nil)}},
		{"grant and revoke, prefix of full length", CodeOK, [][]byte{grant(nil, fullPrefix), revoke(alice, fullPrefix)}},
		{"grant, prefix too long", CodeTooLarge, [][]byte{grant(nil, longPrefix)}},
		{"grant, reserved prefix", CodeReserved, [][]byte{grant(nil, nul)}},
		{"grant, reserved prefix that is too long", CodeReserved, [][]byte{grant(nil, nulLong)}},
		{"grant, short grantee, reserved prefix", CodeMalformed, [][]byte{grant(x, nul)}},
		{"grant, short grantee, prefix too long", CodeMalformed, [][]byte{grant(x, longPrefix)}},
		{"revoke, prefix too long", CodeTooLarge, [][]byte{revoke(nil, longPrefix)}},
		{"revoke, reserved prefix that is too long", CodeReserved, [][]byte{revoke(nil, nulLong)}},
		{"revoke, grantee of zeros, reserved prefix", CodeMalformed, [][]byte{revoke(zeros, nul)}},
		{"reserved, then empty", CodeReserved, [][]byte{put(nul, x), put(nil, x)}},
		{"empty, then reserved", CodeMalformed, [][]byte{put(nil, x), put(nul, x)}},
		{"too long, then reserved", CodeTooLarge, [][]byte{put(longKey, x), put(nul, x)}},
		{"reserved, then too long", CodeReserved, [][]byte{put(nul, x), put(longKey, x)}},
		{"no kind, then too long", CodeMalformed, [][]byte{nil, put(longKey, x)}},
		{"too long, then no kind", CodeTooLarge, [][]byte{put(longKey, x), nil}},
		{"too long, then an unknown kind", CodeMalformed, [][]byte{put(longKey, x), field(9, k)}},
		{"validator of 31 bytes, then too long", CodeMalformed, [][]byte{field(7, field(1, alice[:31])), put(longKey, x)}},
		{"validator of zeros, then too long", CodeMalformed, [][]byte{field(7, field(1, zeros)), put(longKey, x)}},
		{"too long, then an admin of zeros", CodeTooLarge, [][]byte{put(longKey, x), field(8, field(1, zeros))}},
		{"admin of 31 bytes, then too long", CodeMalformed, [][]byte{field(8, field(1, alice[:31])), put(longKey, x)}},
		{"no operations", CodeMalformed, nil},
	} {
		add(c.name, c.code, signedBody(t, rawBody(alice, nil, c.operations...)))
		if c.code != CodeOK {
			add(c.name+"; wrong signature", c.code, rawTx(rawBody(alice, nil, c.operations...), badSignature))
			add(c.name+"; short account, wrong signature", CodeMalformed, rawTx(rawBody(x, nil, c.operations...), badSignature))
		}
	}
	add("no account, reserved key", CodeMalformed, rawTx(rawBody(nil, nil, put(nul, x)), badSignature))
	add("account of zeros, reserved key", CodeMalformed, rawTx(rawBody(zeros, nil, put(nul, x)), badSignature))
	for extra, code := range []Code{CodeOK, CodeTooLarge} {
		// The third value takes what remains.
		b := func(n int) []byte {
			return signedBody(t, rawBody(alice, nil, put(x, fullValue), put(x, fullValue), put(x, bytesOf(n))))
		}
		add([]string{"the longest transaction", "a byte longer"}[extra], code, b(2000+MaxBytes-len(b(2000))+extra))
	}

	// Signatures (ZIP-215): all points of small order in all encodings, then points with a
	// component of small order.
	identity := join([]byte{1}, zeros[1:])
	for _, text := range smallOrder {
		point := parseRuns(t, text)
		code := CodeOK
		if bytes.Equal(point, zeros) {
			code = CodeMalformed // the account of zeros
		}
		add("signature: account "+text+", R the identity, S 0", code, rawTx(rawBody(point, nil, plainPut), join(identity, zeros)))
		add("signature: account of order 8, R "+text+", S 0", CodeOK, rawTx(rawBody(parseRuns(t, smallOrder[4]), nil, plainPut), join(point, zeros)))
	}
	noPoint, order := join([]byte{2}, zeros[1:]), parseRuns(t, "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010")
	add("signature: account not on the curve", CodeBadSignature, rawTx(rawBody(noPoint, nil, plainPut), join(identity, zeros)))
	add("signature: R not on the curve", CodeBadSignature, rawTx(rawBody(identity, nil, plainPut), join(noPoint, zeros)))
	add("signature: S the order", CodeBadSignature, rawTx(rawBody(identity, nil, plainPut), join(identity, order)))
	add("signature: S 1 where it should be 0", CodeBadSignature, rawTx(rawBody(identity, nil, plainPut), join(identity, []byte{1}, zeros[1:])))
	for _, c := range foreignSignatures {
		account, signature := alice, parseRuns(t, c.signature)
		if c.account != "" {
			account = parseRuns(t, c.account)
		}
		var nonce []byte
		if c.nonce > 0 {
			nonce = []byte{0x10, c.nonce}
		}
		add("signature: "+c.name, c.code, rawTx(rawBody(account, nonce, plainPut), signature))
	}
	return all
}

// upgradeVectors returns encodings of ScheduleUpgrade, an operation that is younger than
// moreVectors and comes after them in the file.
func upgradeVectors(t *testing.T) []vector {
	var all []vector
	for _, c := range []struct {
		name string
		code Code
		op   []byte
	}{
		{"a height of wire type 2", CodeMalformed, field(9, []byte{0x08, 2}, field(2, []byte{1}))},
		{"version 0 written", CodeMalformed, field(9, []byte{0x08, 0, 0x10, 7})},
		{"an empty info written", CodeMalformed, field(9, []byte{0x08, 2, 0x10, 7}, field(3))},
		{"an unknown field", CodeMalformed, field(9, []byte{0x08, 2, 0x10, 7, 0x20, 1})},
		{"nothing but defaults", CodeOK, field(9)},
	} {
		b := signedBody(t, rawBody(alice, nil, c.op))
		require.Equal(t, c.code, codeOf(t, b, vectorChain), c.name)
		all = append(all, vector{Name: "encoding of an upgrade: " + c.name, ChainID: vectorChain, Tx: hexruns.Encode(b), Code: c.code})
	}
	b := signedBody(t, rawBody(alice, nil, field(15, []byte{0x08, 2})))
	return append(all, vector{Name: "encoding: kind 15, which is unknown", ChainID: vectorChain, Tx: hexruns.Encode(b), Code: codeOf(t, b, vectorChain)})
}

func repeat(operation []byte, n int) [][]byte {
	operations := make([][]byte, n)
	for i := range operations {
		operations[i] = operation
	}
	return operations
}

// optional returns a field, or nothing if b is empty.
func optional(number int, b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return field(number, b)
}

// smallOrder holds the points whose order divides 8, in each encoding that ZIP-215 accepts: of
// order 1 (4), 8, 4 (2), 8, 2 (2), 8, 4 (2), 8.
var smallOrder = []string{
	"0100000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000080",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	"0000000000000000000000000000000000000000000000000000000000000080",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
	"0000000000000000000000000000000000000000000000000000000000000000",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
}

// foreignSignatures were made by another implementation, because ed25519 libraries cannot make
// them. account is empty for alice's; otherwise it is hers plus a point of small order.
var foreignSignatures = []struct {
	name      string
	code      Code
	account   string
	nonce     byte
	signature string
}{
	{"R with a part of order 8", CodeOK, "", 0,
		"40a4cf5c611d737a2f1c6fcca84d9cabfed80987f186a5a6c57e629bff1af27f53e9e57f95c8e3351c3d6efc85f3ec843c597c46b5f497e94cf6ab1617854a05"},
	{"R with a part of order 4", CodeOK, "", 0,
		"af6e8e63f857d90bf1afb0d2cd8753a15efed2964adc823c24f85082207e073e6e0e08354ca5d40c6cfd050b7e0d6660233e7e7941718bfc7a96c7fce6bc9009"},
	{"R with a part of order 2", CodeOK, "", 0,
		"feaf9d07b868cc52786305312c376563c622b0386a10d105e3c1501b28d65f7e312fc5b69fc0d0a9e0553c7fc9b15f41b334d32770ca3329a435a1c7b8963b00"},
	{"account with a part of order 8", CodeOK, "2135cd2c5c4d5ffddd5cd333f137b5a6969ff73f6f604894fdfc89a84c43c92d", 1,
		"ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a08102705036c1581163b6056831efb966470b417c8409647e2142323dd4cd90f604"},
	{"account with a part of order 4", CodeOK, "9d772f0d193aa81e50f27204c97ea072515861c4956c62df4f876e114f18ba57", 3,
		"ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a0818c1469efe2eb2ffcf76f88345a4e26366f8df457e8237d9f46ce1a3b3bad790a"},
	{"account with a part of order 2", CodeOK, "b5f771b3d517d0a3ba397f759e59b6f2c39ed31e25dca8ebb99038b7043b3444", 1,
		"ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a081734b6da5e50616888a0a97f3c387f87fdc8594b063da90ba39c5479ffdffad00"},
	{"both with a part of order 8", CodeOK, "26c59a407f231aae979aba1482f157b53136f6d3536e4dc66c6b315e6db3b00e", 3,
		"40a4cf5c611d737a2f1c6fcca84d9cabfed80987f186a5a6c57e629bff1af27f783181ccc8373156b8d17e60223b89b23707bbccdcc0847e6972556550a16c05"},
	{"R the identity, S not 0", CodeOK, "", 0,
		"01000000000000000000000000000000000000000000000000000000000000002d856934942559e9d44f5de1d3d9b5d0f328b17f8fc4e8d998b33378d723610a"},
	{"R the identity with the sign bit, S not 0", CodeOK, "", 0,
		"01000000000000000000000000000000000000000000000000000000000000808b2036676d672e8c0533edaa2b50662e3aed0806d41d2c1ce106bda409996704"},
	{"R the identity as p+1, S not 0", CodeOK, "", 0,
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f467bcbeaf65ad582715448c7a6b8b8af1d5851faf89180729198a66dbd8b1305"},
	{"R of order 4 as p, S not 0", CodeOK, "", 0,
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7fce67a595158ba0629a14238dca148eabb9f0736c5f0918784f0da5c0982bd50d"},
	{"R the identity as p+1, hashed as 1", CodeBadSignature, "", 0,
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f2d856934942559e9d44f5de1d3d9b5d0f328b17f8fc4e8d998b33378d723610a"},
	{"as it should be", CodeOK, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c953efebd75a20a801b6c312ca9b5d6889baf72ac48b27143016c9b4f380e2630b"},
	{"S not below the order: plus 1 times the order", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c940c3e1347583ba598c600a6d7a57479ebaf72ac48b27143016c9b4f380e2631b"},
	{"S not below the order: plus 2 times the order", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c92d97d7918fe6ccb162fd0110595126b3baf72ac48b27143016c9b4f380e2632b"},
	{"S not below the order: plus 4 times the order", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c9073fc34bc4acf1610f37f1551645e4dcbaf72ac48b27143016c9b4f380e2634b"},
	{"S not below the order: plus 8 times the order", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c9bb8e9abf2d393bc268aacfe1902c6030bbf72ac48b27143016c9b4f380e2638b"},
	{"S negated", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c99ae40985bf426a5620d9e4d8429c768b4508d53b74d8ebcfe9364b0c7f1d9c04"},
	{"the highest bit of S set", CodeBadSignature, "", 0,
		"da009c68decb8caff06d895b43d1e557b8cb146b1da0aaedb38c72ac38a445c953efebd75a20a801b6c312ca9b5d6889baf72ac48b27143016c9b4f380e2638b"},
}
