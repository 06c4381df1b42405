//go:build !noevm

package abi

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The inputs are those of the ABI specification's examples, and of well-known selectors.
func TestEncode(t *testing.T) {
	word := func(tail string) string { return strings.Repeat("0", 64-len(tail)) + tail }
	for _, c := range []struct {
		method    string
		arguments []string
		want      string
	}{
		{"transfer(address,uint256)", []string{"0x00000000000000000000000000000000000000aa", "5"}, "a9059cbb" + word("aa") + word("5")},
		{"balanceOf(address)(uint256)", []string{"0x00000000000000000000000000000000000000aa"}, "70a08231" + word("aa")},
		{"baz(uint32,bool)", []string{"69", "true"}, "cdcd77c0" + word("45") + word("1")},
		{"bar(bytes3[2])", []string{`["0x616263","0x646566"]`}, "fce353f6" + "616263" + strings.Repeat("0", 58) + "646566" + strings.Repeat("0", 58)},
		{"constructor(int8)", []string{"-1"}, strings.Repeat("f", 64)},
		{"totalSupply()(uint256)", nil, "18160ddd"},
	} {
		m, err := Parse(c.method)
		require.NoError(t, err, c.method)
		input, err := m.Encode(c.arguments)
		require.NoError(t, err, c.method)
		require.Equal(t, c.want, hex.EncodeToString(input), c.method)
	}
}

// What is encoded as outputs decodes to the same text.
func TestDecode(t *testing.T) {
	for _, c := range []struct{ types, text string }{
		{"uint256", "115792089237316195423570985008687907853269984665640564039457584007913129639935"},
		{"int64", "-9223372036854775808"}, {"uint8", "255"}, {"bool", "true"}, {"string", `"a \"b\""`}, {"bytes", "0x0102"},
		{"bytes32", "0x" + strings.Repeat("ab", 32)}, {"address", "0x" + strings.Repeat("0c", 20)},
		{"uint256[]", "[1,2,3]"}, {"uint16[2][]", "[[1,2],[3,4]]"}, {"string[]", `["a","b"]`},
	} {
		m, err := Parse("constructor(" + c.types + ")(" + c.types + ")")
		require.NoError(t, err)
		text := c.text
		if c.types == "string" {
			text = `a "b"`
		}
		encoded, err := m.Encode([]string{text})
		require.NoError(t, err, c.types)
		decoded, err := m.Decode(encoded)
		require.NoError(t, err, c.types)
		require.Equal(t, []string{c.text}, decoded)
		_, err = m.Decode(encoded[:len(encoded)-32])
		require.Error(t, err, "a cut output of type %s", c.types)
	}
	m, err := Parse("f()")
	require.NoError(t, err)
	raw, err := m.Decode([]byte{1})
	require.NoError(t, err)
	require.Equal(t, []string{"0x01"}, raw)
}

func TestWrongArguments(t *testing.T) {
	for _, text := range []string{"", "f", "f(", "(uint8)", "f(uint7)", "f((uint8,bool))", "f(notatype)"} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
	for types, texts := range map[string][]string{
		"uint8": {"256", "-1", "x", ""}, "int8": {"128", "-129"}, "bool": {"1"}, "address": {"0x01"}, "bytes4": {"0x0102"},
		"uint8[]": {"1", "[300]", `{"a":1}`}, "uint8[2]": {"[1]"},
	} {
		m, err := Parse("f(" + types + ")")
		require.NoError(t, err)
		for _, text := range texts {
			_, err := m.Encode([]string{text})
			require.Error(t, err, "%s %q", types, text)
		}
		_, err = m.Encode(nil)
		require.ErrorContains(t, err, "has 1 arguments, not 0")
	}
}
