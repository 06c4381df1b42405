package cli

import (
	"testing"

	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// The text and JSON forms of a txn are equivalent.
func TestParseTxn(t *testing.T) {
	env := &cliEnv{V: viper.New()}
	text, err := parseTxn(env, []byte("if\n a = 0x00ff\r\n \"a b\" absent # why\n c present\nthen\n put a \"0x31\"\n del b\n get c\n\n"+
		"else\n range a \"\" 5\n prefix a 6\n del-range a b 7\n del-prefix a 8 part\n"))
	require.NoError(t, err)
	asJSON, err := parseTxn(env, []byte(` {"if": [{"key": "a", "value": "0x00ff"}, {"key": "a b", "absent": true}, {"key": "c", "present": true}],
		"then": [{"put": {"key": "a", "value": "0x30783331"}}, {"del": {"key": "b"}}, {"get": {"key": "c"}}],
		"else": [{"range": {"start": "a", "end": "", "limit": 5}}, {"range": {"prefix": "a", "limit": 6}}, {"del_range": {"start": "a", "end": "b", "limit": 7}},
		         {"del_range": {"prefix": "a", "limit": 8, "part": true}}]}`))
	require.NoError(t, err)
	a, b, c := []byte("a"), []byte("b"), []byte("c")
	require.Equal(t, &tx.Txn{
		Compares: []tx.Compare{{Key: a, Value: []byte{0, 0xff}}, {Key: []byte("a b")}, {Key: c, Present: true}},
		Success:  []tx.Operation{tx.NewPut(a, []byte("0x31")), tx.NewDelete(b), tx.NewRead(c)},
		Failure:  []tx.Operation{tx.NewReadRange(a, []byte{}, 5), tx.NewReadRange(a, b, 6), tx.NewDeleteRange(a, b, 7), tx.NewDeletePart(a, b, 8)},
	}, text)
	require.Equal(t, text, asJSON)

	for _, wrong := range []string{
		"else\nget a\nthen\nget a", "if\na present\nif\nb present", "then\nget", "then\nget a b", "then\nput a", "then\nrange a b", "then\nrange a b -1",
		"then\nrange a b x", "then\nprefix a", "then\ndel-range a b 4294967296", "then\nrange a b 5 part", "if\na is b", "if\na = b c",
		"then\nget \"a", "then\nput a 0xzz", "\"if\"\na present", "then\nput", "thenn\n", "then\ntxn a b",
		`{"if": [{"key": "a"}]}`, `{"if": [{"value": "a"}]}`, `{"if": [{"key": "a", "value": "b", "absent": true}]}`, `{"if": [{"key": "a", "value": ""}]}`,
		`{"then": [{}]}`, `{"then": [{"put": {"key": "a"}}]}`, `{"then": [{"range": {"limit": 5}}]}`, `{"then": [{"range": {"prefix": "a", "start": "b", "limit": 5}}]}`,
		`{"then": [{"range": {"prefix": "a", "limit": -1}}]}`, `{"then": [{"range": {"prefix": "a", "limit": 1, "part": true}}]}`, `{} {}`, `{`, `{"when": []}`,
	} {
		_, err := parseTxn(env, []byte(wrong))
		require.Error(t, err, wrong)
	}
}
