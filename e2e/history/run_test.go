package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/tx"
)

// TestOutcomes checks the outcome for each result of Client.Submit.
func TestOutcomes(t *testing.T) {
	refused := func(height int64, code tx.Code) error {
		return &client.TxError{Hash: []byte("hash"), Height: height, Code: code}
	}
	for name, c := range map[string]struct {
		err     error
		outcome Outcome
		hash    string
		height  int64
	}{
		"done":                         {nil, OK, "hash", 7},
		"no node answered":             {client.ErrUnreachable, Refused, "", 0},
		"not sent in time":             {context.DeadlineExceeded, Refused, "", 0},
		"not in any block in time":     {&client.UnknownOutcomeError{Hash: []byte("hash"), Err: context.DeadlineExceeded}, Maybe, "hash", 0},
		"the answer was lost":          {fmt.Errorf("client: %w", &client.UnknownOutcomeError{Hash: []byte("hash"), Err: client.ErrUnreachable}), Maybe, "hash", 0},
		"sent again and refused":       {&client.UnknownOutcomeError{Hash: []byte("hash"), Err: refused(0, tx.CodeBadNonce)}, Maybe, "hash", 0},
		"compare failed":               {refused(7, tx.CodeCompareFailed), Failed, "hash", 7},
		"out of bounds":                {refused(7, tx.CodeOutOfBounds), Failed, "hash", 7},
		"not a number":                 {refused(7, tx.CodeNotNumber), Failed, "hash", 7},
		"refused before any block":     {refused(0, tx.CodeUnauthorized), Refused, "hash", 0},
		"nonce refused, never entered": {refused(0, tx.CodeBadNonce), Refused, "hash", 0},
		"too early in a block":         {refused(7, tx.CodeBadNonce), Maybe, "hash", 0},
		"the block reads too much":     {refused(7, tx.CodeReadBudget), Refused, "hash", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var result *client.TxResult
			if c.err == nil {
				result = &client.TxResult{Hash: []byte("hash"), Height: 7, Results: []tx.OperationResult{{Found: true, Value: []byte("v")}, {}}}
			}
			a := answerOf(result, c.err)
			require.Equal(t, c.outcome, a.outcome)
			require.Equal(t, c.hash, string(a.hash))
			require.Equal(t, c.height, a.height)
			if c.err == nil {
				require.Equal(t, []Result{{Found: true, Value: "v"}, {}}, a.results)
			}
		})
	}
}

func TestOperationsEncode(t *testing.T) {
	for _, o := range []Operation{
		{Kind: Put, Key: "key", Value: "value"}, {Kind: CompareAndPut, Key: "key", Expected: "old", Value: "new"},
		{Kind: CompareAndPut, Key: "key", Value: "new"}, {Kind: Delete, Key: "key"}, {Kind: Read, Key: "key"},
		{Kind: Compare, Key: "key", Expected: "old"}, {Kind: Compare, Key: "key"},
		{Kind: Add, Key: "key", Delta: -3, Least: math.MinInt64, Most: math.MaxInt64}, {Kind: Add, Key: "key", Delta: 1, Least: -5, Most: 0},
		{Kind: ReadRange, Key: "key", End: "l", Limit: 3}, {Kind: DeleteRange, Key: "key", End: "l", Limit: 3},
		{Kind: Txn, If: []Condition{{Key: "key", Value: "old"}, {Key: "other"}, {Key: "third", Present: true}},
			Then: []Operation{{Kind: Put, Key: "key", Value: "new"}, {Kind: ReadRange, Key: "key", End: "l", Limit: 3}}, Else: []Operation{{Kind: Read, Key: "key"}}},
	} {
		encoded := o.encode()
		decoded, known := decodeOperation(&encoded)
		require.True(t, known)
		require.Equal(t, o, decoded)
	}
	nested := tx.NewTxn(nil, []tx.Operation{tx.NewRead([]byte("k")), tx.NewGrant(nil, nil, 0)}, nil)
	_, known := decodeOperation(&nested)
	require.False(t, known)
	grant := tx.NewGrant(nil, []byte("load/"), 0)
	_, known = decodeOperation(&grant)
	require.False(t, known)
}

// script is a store with given outcomes; after the last one, every outcome is OK.
type script struct {
	outcomes    []Outcome
	connections []string // "node account"
	hang        string   // a node that never answers a connection attempt
}

func (s *script) connect(ctx context.Context, node, account string) (store, error) {
	if node == s.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.connections = append(s.connections, node+" "+account)
	return s, nil
}

func (s *script) execute(ctx context.Context, operations []Operation) answer {
	if len(s.outcomes) == 0 {
		return answer{outcome: OK, results: make([]Result, len(operations)), hash: []byte("hash"), height: 1}
	}
	outcome := s.outcomes[0]
	s.outcomes = s.outcomes[1:]
	if outcome == Maybe { // the node is cut off until the client's patience ends
		<-ctx.Done()
		return answer{outcome: Maybe, hash: []byte("hash"), why: ctx.Err()}
	}
	return answer{outcome: outcome, why: errors.New("as the script says")}
}

// runScript runs one client until the script's outcomes are used up.
func runScript(t *testing.T, s *script, edit func(*Config)) (h *History) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		config := Config{Nodes: []string{"one", "two"}, Prefix: "load/", Clients: 1, connect: s.connect,
			head: func(context.Context, string) (int64, error) { return 3, nil }}
		edit(&config)
		run, err := Start(t.Context(), config)
		require.NoError(t, err)
		_ = sleep.For(t.Context(), time.Minute)
		h = run.Stop()
	})
	require.Empty(t, s.outcomes)
	return h
}

func TestAfterMaybeAnotherProcessAndAccount(t *testing.T) {
	s := &script{outcomes: []Outcome{OK, Failed, Maybe, OK, Refused, OK, Maybe}}
	h := runScript(t, s, func(*Config) {})
	require.EqualValues(t, 3, h.From)
	var processes []int
	var nodes []string
	for _, tr := range h.Transactions[:8] {
		processes, nodes = append(processes, tr.Process), append(nodes, tr.Node)
	}
	require.Equal(t, []int{0, 0, 0, 1, 1, 1, 1, 2}, processes, "only a maybe ends a process")
	require.Len(t, s.connections, 4, "each failure is followed by a new connection")
	accounts := map[string]bool{}
	for i, c := range s.connections {
		node, account, _ := strings.Cut(c, " ")
		accounts[account] = true
		require.Equal(t, nodes[[]int{0, 3, 5, 7}[i]], node)
		if i > 0 {
			last, _, _ := strings.Cut(s.connections[i-1], " ")
			require.NotEqual(t, last, node, "a client goes to another node")
		}
	}
	require.Len(t, accounts, 4, "no account is reused")
	maybe := h.Transactions[2]
	require.Equal(t, Maybe, maybe.Outcome)
	require.Equal(t, 8*time.Second, maybe.Return-maybe.Call, "the client waits exactly for its patience")
	require.GreaterOrEqual(t, h.Transactions[3].Call-maybe.Return, afterFailure, "a client pauses after a failure")
}

func TestPausedNodeStopsNobody(t *testing.T) {
	s := &script{hang: "one"}
	h := runScript(t, s, func(*Config) {})
	require.NotEmpty(t, h.Transactions)
	require.False(t, slices.ContainsFunc(h.Transactions, func(tr Transaction) bool { return tr.Node != "two" }))
}

func TestStopWaitsForWhatIsUnderWay(t *testing.T) {
	s := &script{outcomes: []Outcome{Maybe}}
	h := runScript(t, s, func(c *Config) { c.Patience = 2 * time.Minute })
	require.Len(t, h.Transactions, 1)
	require.Equal(t, 2*time.Minute, h.Transactions[0].Return-h.Transactions[0].Call)
}

func TestNodesThatJoinAreUsed(t *testing.T) {
	s := &script{outcomes: []Outcome{OK, Refused, OK}}
	synctest.Test(t, func(t *testing.T) {
		run, err := Start(t.Context(), Config{Nodes: []string{"one"}, Prefix: "load/", Clients: 1, connect: s.connect,
			head: func(context.Context, string) (int64, error) { return 0, nil }})
		require.NoError(t, err)
		run.AddNode("joined")
		over := run.Disturb("joined")
		_ = sleep.For(t.Context(), time.Second)
		over()
		acknowledged, maybe := run.Progress()
		require.Positive(t, acknowledged)
		require.Zero(t, maybe)
		h := run.Stop()
		require.Equal(t, []Disturbance{{"joined", 0, time.Second}}, h.Disturbed)
	})
	nodes := map[string]bool{}
	for _, c := range s.connections {
		node, _, _ := strings.Cut(c, " ")
		nodes[node] = true
	}
	require.Len(t, nodes, 2)
}

func TestConfigIsChecked(t *testing.T) {
	_, err := Start(t.Context(), Config{Prefix: "load/"})
	require.ErrorContains(t, err, "no node was given")
	_, err = Start(t.Context(), Config{Nodes: []string{"one"}})
	require.ErrorContains(t, err, "no prefix was given")
	_, err = Start(t.Context(), Config{Nodes: []string{"one"}, Prefix: "load/",
		head: func(context.Context, string) (int64, error) { return 0, errors.New("it is away") }})
	require.ErrorContains(t, err, "it is away")
}

func TestValuesAreUnique(t *testing.T) {
	h, _ := fakeRun(t, none, 99, 10*time.Second)
	seen := map[string]bool{}
	for _, tr := range h.Transactions {
		operations := slices.Clone(tr.Operations)
		for _, o := range tr.Operations {
			operations = append(append(operations, o.Then...), o.Else...)
		}
		for _, o := range operations {
			if o.Value != "" {
				require.False(t, seen[o.Value], o.Value)
				require.GreaterOrEqual(t, len(o.Value), 64)
				seen[o.Value] = true
			}
		}
	}
	require.NotEmpty(t, seen)
}
