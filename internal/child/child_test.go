package child

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type request struct {
	Op string `json:"op"`
	N  int    `json:"n"`
}

type worker struct{ closed bool }

func (w *worker) Do(r request, in *bufio.Reader) (int, error) {
	changes, err := ReadChanges(in, r.N)
	if err == nil && r.Op == "fail" {
		err = errors.New("failed as asked")
	}
	return len(changes), err
}

func (w *worker) Close() error {
	w.closed = true
	return nil
}

// A failed request is answered with its error, and the next one is answered normally.
func TestRun(t *testing.T) {
	changes := []Change{{[]byte("a"), []byte("1")}, {[]byte("b"), nil}, {[]byte("c"), []byte{}}}
	var in, out bytes.Buffer
	in.WriteString("7\n")
	for _, line := range []string{`{"op":"x","n":3}`, `{"op":"fail","n":3}`, `{"op":"x","n":0}`} {
		in.WriteString(line + "\n")
		if !strings.Contains(line, `"n":0`) {
			w := bufio.NewWriter(&in)
			require.NoError(t, WriteChanges(w, changes))
			require.NoError(t, w.Flush())
		}
	}
	w := &worker{}
	open := func(n int) (Worker[request, int], int, error) { return w, n + 1, nil }
	require.NoError(t, Run(&in, &out, open))
	require.True(t, w.closed)
	require.Equal(t, `{"answer":8}
{"answer":3}
{"error":"failed as asked","answer":0}
{"answer":0}
`, out.String())
	require.ErrorContains(t, Run(strings.NewReader("hello\n"), &out, open), "only starling-bench runs this command")

	out.Reset()
	failing := func(int) (Worker[request, int], int, error) { return nil, 0, errors.New("no folder") }
	require.ErrorContains(t, Run(strings.NewReader("7\n"), &out, failing), "no folder")
	require.Equal(t, `{"error":"no folder","answer":0}`+"\n", out.String())
}

func TestChangesAreReadAsTheyAreWritten(t *testing.T) {
	changes := []Change{{[]byte("a"), []byte("1")}, {[]byte("b"), nil}, {bytes.Repeat([]byte("k"), maxKey), []byte{}}}
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	require.NoError(t, WriteChanges(w, changes))
	require.NoError(t, w.Flush())
	got, err := ReadChanges(bufio.NewReader(&b), len(changes))
	require.NoError(t, err)
	require.Equal(t, changes, got)
	_, err = ReadChanges(bufio.NewReader(strings.NewReader("\xff\xff\x7f")), 1)
	require.ErrorContains(t, err, "the limit is 4096")
}
