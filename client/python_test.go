package client_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
)

// python runs the example of docs/how-to/clients.md, which needs only Python's standard library.
func python(t *testing.T, args ...string) (string, error) {
	t.Helper()
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("NOT RUN: the Python example (no python3 here)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, interpreter, append([]string{"../docs/examples/starling_client.py"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestPythonExample: the example writes signed and text transactions, and proves that keys exist or
// do not exist, from one trusted header.
func TestPythonExample(t *testing.T) {
	address, _ := demo()
	url := "http://" + address
	dir := t.TempDir()
	_, err := client.NewKeyring(dir).Import("admin", admin)
	require.NoError(t, err)
	c, err := client.Dial(t.Context(), []string{url}, client.WithKey(admin))
	require.NoError(t, err)
	_, err = c.Put(t.Context(), []byte("fruit/first"), []byte("fig"))
	require.NoError(t, err)
	_, trust := newestHeader(t, c)

	for _, args := range [][]string{
		{"put", "fruit/apple", "green", "--key", filepath.Join(dir, "admin.json")},
		{"text", "python/text", "plain"},
	} {
		out, err := python(t, append([]string{"--node", url}, args...)...)
		require.NoError(t, err, out)
		require.Regexp(t, `^height \d+: written$`, out)
	}
	for key, want := range map[string]string{
		"fruit/apple": "green", "python/text": "plain",
		// Keys between, before and after all others.
		"fruit/apples": "no such key", "!": "no such key", "~": "no such key",
	} {
		out, err := python(t, append([]string{"--node", url, "get", key}, trust...)...)
		require.NoError(t, err, out)
		require.Regexp(t, `^height \d+: `+want+`$`, out)
	}
}

// newestHeader returns a height, and the arguments that make its header the trusted one.
func newestHeader(t *testing.T, c *client.Client) (int64, []string) {
	t.Helper()
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	height := status.SyncInfo.LatestBlockHeight
	return height, []string{"--trust-height", strconv.FormatInt(height, 10), "--trust-hash", status.SyncInfo.LatestBlockHash.String()}
}

// TestPythonExampleRefuses: the example refuses altered answers of a node.
func TestPythonExampleRefuses(t *testing.T) {
	address, _ := demo()
	c, err := client.Dial(t.Context(), []string{"http://" + address}, client.WithKey(admin))
	require.NoError(t, err)
	_, err = c.Put(t.Context(), []byte("fruit/pear"), []byte("green"))
	require.NoError(t, err)
	trusted, trust := newestHeader(t, c)
	// Now the state has changed.
	_, err = c.Put(t.Context(), []byte("fruit/plum"), fmt.Appendf(nil, "blue since block %d", trusted))
	require.NoError(t, err)

	response := func(result map[string]any) map[string]any { return result["response"].(map[string]any) }
	operator := func(result map[string]any, i int) map[string]any {
		return response(result)["proofOps"].(map[string]any)["ops"].([]any)[i].(map[string]any)
	}
	// flip flips a bit of base64 data; at < 0: counted from the end.
	flip := func(m map[string]any, field string, at int) {
		raw, err := base64.StdEncoding.DecodeString(m[field].(string))
		require.NoError(t, err)
		raw[(at+len(raw))%len(raw)] ^= 1
		m[field] = base64.StdEncoding.EncodeToString(raw)
	}
	header := func(result map[string]any) map[string]any {
		return result["signed_header"].(map[string]any)["header"].(map[string]any)
	}
	commit := func(result map[string]any) map[string]any {
		return result["signed_header"].(map[string]any)["commit"].(map[string]any)
	}
	type change func(result map[string]any)
	cases := []struct {
		name, key, method string
		alter             change
		says              string
	}{
		{"another value", "fruit/pear", "abci_query", func(r map[string]any) { response(r)["value"] = "cmVk" }, "another key, value or state"},
		{"a key denied", "fruit/pear", "abci_query", func(r map[string]any) { delete(response(r), "value") }, "no proof of absence"},
		{"a key invented", "fruit/peach", "abci_query", func(r map[string]any) { response(r)["value"] = "cmVk" }, "another key, value or state"},
		{"no proof", "fruit/pear", "abci_query", func(r map[string]any) { delete(response(r), "proofOps") }, "no proof"},
		{"a damaged state proof", "fruit/pear", "abci_query", func(r map[string]any) { flip(operator(r, 0), "data", -1) }, ""},
		{"a damaged proof of absence", "fruit/peach", "abci_query", func(r map[string]any) { flip(operator(r, 0), "data", -1) }, ""},
		{"a damaged map proof", "fruit/pear", "abci_query", func(r map[string]any) { flip(operator(r, 1), "data", -1) }, "not in the app hash"},
		{"another state root", "fruit/pear", "abci_query", func(r map[string]any) { flip(operator(r, 1), "data", 20) }, "not in the app hash"},
		{"an older state", "fruit/pear", "abci_query", func(r map[string]any) { response(r)["height"] = strconv.FormatInt(trusted-1, 10) }, ""},
		{"another app hash", "fruit/pear", "commit", func(r map[string]any) { header(r)["app_hash"] = strings.Repeat("AB", 32) }, "the commit is of another header"},
		{"nobody's signature", "fruit/pear", "commit", func(r map[string]any) {
			for _, s := range commit(r)["signatures"].([]any) {
				s.(map[string]any)["block_id_flag"] = 1
			}
		}, "no majority"},
		{"a false signature", "fruit/pear", "commit", func(r map[string]any) {
			flip(commit(r)["signatures"].([]any)[0].(map[string]any), "signature", 5)
		}, "a wrong signature"},
		{"other validators", "fruit/pear", "validators", func(r map[string]any) {
			r["validators"].([]any)[0].(map[string]any)["voting_power"] = "11"
		}, "not those of the header"},
		{"something else", "fruit/pear", "validators", func(r map[string]any) { r["validators"] = 7 }, "refused"},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			liar := httptest.NewServer(altering("http://"+address, test.method, trusted, test.alter))
			defer liar.Close()
			out, err := python(t, append([]string{"--node", liar.URL, "get", test.key}, trust...)...)
			require.Error(t, err, "%s believed it: %s", test.name, out)
			require.Contains(t, out, "refused")
			require.Contains(t, out, test.says)
			require.NotContains(t, out, "Traceback")
		})
	}
	// The honest node passes, which shows that only altered answers were refused.
	t.Run("the honest node", func(t *testing.T) {
		same := httptest.NewServer(altering("http://"+address, "", 0, nil))
		defer same.Close()
		out, err := python(t, append([]string{"--node", same.URL, "get", "fruit/pear"}, trust...)...)
		require.NoError(t, err, out)
		require.Contains(t, out, "green")
	})
	t.Run("another trusted hash", func(t *testing.T) {
		out, err := python(t, append([]string{"--node", "http://" + address, "get", "fruit/pear"}, trust[0], trust[1], trust[2], strings.Repeat("AB", 32))...)
		require.Error(t, err)
		require.Contains(t, out, "another one is trusted")
	})
}

// altering forwards JSON-RPC to a node, and alters the results of one method, except those at the
// trusted height.
func altering(node, method string, trusted int64, alter func(result map[string]any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = pass(r.Context(), w, node, method, trusted, alter, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
}

// proxied closes idle connections before a node does, after 10 s: a request that meets the close
// fails.
var proxied = &http.Client{Transport: &http.Transport{IdleConnTimeout: 5 * time.Second}}

func pass(ctx context.Context, w io.Writer, node, method string, trusted int64, alter func(map[string]any), body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, node, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := proxied.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var asked struct {
		Method string
		Params struct{ Height string }
	}
	var answer map[string]any
	if err := json.Unmarshal(body, &asked); err != nil {
		return err
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if result, ok := answer["result"].(map[string]any); ok && asked.Method == method && asked.Params.Height != fmt.Sprint(trusted) {
		alter(result)
	}
	return json.NewEncoder(w).Encode(answer)
}
