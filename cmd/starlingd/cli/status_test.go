package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatusOfALiar: a node's responses can neither break the command nor control the terminal.
func TestStatusOfALiar(t *testing.T) {
	answers := map[string]string{
		"status":     `{"node_info": {"network": "demo", "moniker": "\u001b]0;owned\u0007", "version": "1"}, "sync_info": {"latest_block_height": "7"}}`,
		"abci_info":  `{"response": {"version": "v1\u001b[2J", "last_block_height": "7"}}`,
		"abci_query": `{"response": {"value": "bm90IEpTT04="}}`,
		"net_info":   `{"n_peers": "0"}`,
		"validators": `{"block_height": "7", "validators": [{"address": "00", "pub_key": {"type": "tendermint/PubKeyEd25519", "value": "AAAA"}, "voting_power": "1"}], "count": "1", "total": "1000000"}`,
	}
	asked := 0
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			return
		}
		if request.Method == "validators" {
			asked++
		}
		if answers[request.Method] == "too long" {
			// The header suffices: the time to transfer so much must not decide the test.
			w.Header().Set("Content-Length", strconv.Itoa(1<<30))
			return
		}
		fmt.Fprintf(w, `{"jsonrpc": "2.0", "id": %s, "result": %s}`, request.ID, answers[request.Method])
	}))
	defer liar.Close()
	status := func() (string, string, int) {
		var out, errOut bytes.Buffer
		code := Run([]string{"status", "--home", t.TempDir(), "--node", liar.URL}, &out, &errOut)
		return out.String(), errOut.String(), code
	}

	out, _, code := status()
	require.Zero(t, code)
	require.NotContains(t, out, "\x1b")
	require.Contains(t, out, `"\x1b]0;owned\a"`)
	require.Contains(t, out, "validators (1)")
	require.Equal(t, 1, asked, "a page was requested after one that was not full")

	storage := []byte(`{"head": 9, "durable": 7, "lag_blocks": 2, "waiting": "\u001b[2J", "ranges": [{"range": "\u001b[2Jall", "durable": 7, "nodes": [
		{"id": "\u001b[2Jid", "address": "a:1", "connected": true, "state": "in step", "newest": 8, "durable": 7, "lag_blocks": 2},
		{"id": "silent", "address": "b:1", "error": "refused\u001b[2J"}]}], "liars": [{"id": "\u001b[2J", "range": "\u001b[2J", "verdict": "\u001b[2J", "count": 3}]}`)
	answers["abci_query"] = fmt.Sprintf(`{"response": {"value": %q}}`, base64.StdEncoding.EncodeToString(storage))
	out, _, code = status()
	require.Zero(t, code)
	require.NotContains(t, out, "\x1b")
	require.Contains(t, out, "height 7 on disk, of 9 (2 blocks behind)")
	require.Contains(t, out, "in step, height 7 on disk (2 blocks behind), serves up to 8")
	require.Contains(t, out, `silent@b:1  SILENT: "refused\x1b[2J"`)
	require.Contains(t, out, "3 times")
	asked = 1

	for name, validators := range map[string]string{
		"none":   `{"validators": [null], "total": "1"}`,
		"no key": `{"validators": [{"address": "00", "voting_power": "1"}], "total": "1"}`,
	} {
		answers["validators"] = validators
		_, errOut, code := status()
		require.Equal(t, exitFailed, code, name)
		require.Contains(t, errOut, "a validator without a key", name)
	}
	answers["validators"] = "too long"
	_, errOut, code := status()
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "answer is longer than")
}
