package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	ctypes "github.com/cometbft/cometbft/rpc/core/types"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/tx"
)

var testKey = ed25519.GenPrivKeyFromSecret([]byte("client"))

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connected returns a client of one honest node.
func connected(t *testing.T, options ...Option) (context.Context, *fakeChain, *fakeNode, *Client) {
	chain := newFakeChain(t)
	node := &fakeNode{chain: chain, name: "primary"}
	ctx := testContext(t)
	c, err := New(ctx, []RPC{node}, append([]Option{WithKey(testKey), WithVerification(Trust{Genesis: chain.genesis()})}, options...)...)
	require.NoError(t, err)
	return ctx, chain, node, c
}

func TestWriteAndRead(t *testing.T) {
	ctx, _, node, c := connected(t)
	k := []byte("key")
	first, err := c.Put(ctx, k, []byte("one"))
	require.NoError(t, err)
	require.False(t, first.Results[0].Found)

	v, err := c.Get(ctx, k)
	require.NoError(t, err)
	require.True(t, v.Found && v.Verified)
	require.Equal(t, "one", string(v.Value))
	require.GreaterOrEqual(t, v.Height, first.Height, "a write is read back")

	_, err = c.CompareAndPut(ctx, k, []byte("two"), []byte("three"))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeCompareFailed})
	var refused *TxError
	require.ErrorAs(t, err, &refused)
	require.Positive(t, refused.Height)
	_, err = c.CompareAndPut(ctx, k, []byte("one"), []byte("two"))
	require.NoError(t, err)
	value, found, err := c.Read(ctx, k)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "two", string(value))

	gone, err := c.Delete(ctx, k)
	require.NoError(t, err)
	require.True(t, gone.Results[0].Found)
	v, err = c.Get(ctx, k)
	require.NoError(t, err)
	require.False(t, v.Found)
	require.True(t, v.Verified, "absence is proved too")

	v, err = c.Get(ctx, k, AtHeight(first.Height))
	require.NoError(t, err)
	require.Equal(t, "one", string(v.Value))
	_, err = c.Get(ctx, k, AtHeight(1000))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeUnknownHeight})

	_, err = c.PutText(ctx, []byte("t"), []byte("x"))
	require.NoError(t, err)
	_, err = c.PutText(ctx, []byte("t"), []byte("x"))
	require.ErrorIs(t, err, ErrRepeatedText)
	_, err = c.PutText(ctx, []byte("t"), []byte("a=b"))
	require.ErrorIs(t, err, &tx.Error{Code: tx.CodeMalformed})

	reader, err := New(ctx, []RPC{node})
	require.NoError(t, err)
	_, err = reader.Put(ctx, k, k)
	require.ErrorIs(t, err, ErrNoKey)
}

func TestRangeAndScan(t *testing.T) {
	ctx, chain, _, c := connected(t)
	var ops []tx.Operation
	for i := range 25 {
		ops = append(ops, tx.NewPut(fmt.Appendf(nil, "r/%02d", i), []byte("v")))
	}
	_, err := c.Submit(ctx, ops...)
	require.NoError(t, err)
	start := []byte("r/")
	page, err := c.Range(ctx, start, PrefixEnd(start), Limit(10))
	require.NoError(t, err)
	require.Len(t, page.Entries, 10)
	require.True(t, page.Verified)
	require.Equal(t, "r/10", string(page.Next))

	count := 0
	for entry, err := range c.Scan(ctx, start, PrefixEnd(start), Limit(10)) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("r/%02d", count), string(entry.Key))
		if count == 3 { // the following pages are from the state of the first one
			chain.mu.Lock()
			chain.block([]avlstar.Change{{Key: []byte("r/20")}})
			chain.block(nil)
			chain.mu.Unlock()
		}
		count++
	}
	require.Equal(t, 25, count)
	_, err = c.Range(ctx, []byte("b"), []byte("a"))
	require.Error(t, err)
	require.Nil(t, PrefixEnd([]byte{0xff, 0xff}))
	require.Equal(t, []byte{1, 3}, PrefixEnd([]byte{1, 2, 0xff}))
}

// TestLies: a verifying client returns an error instead of the answer, whatever a node changes in
// it.
func TestLies(t *testing.T) {
	query := func(change func(*ctypes.ResultABCIQuery)) func(any) error {
		return func(a any) error {
			if q, ok := a.(*ctypes.ResultABCIQuery); ok {
				change(q)
			}
			return nil
		}
	}
	for name, lie := range map[string]func(any) error{
		"another value":      query(func(q *ctypes.ResultABCIQuery) { q.Response.Value = append(bytes.Clone(q.Response.Value), 'x') }),
		"no value":           query(func(q *ctypes.ResultABCIQuery) { q.Response.Value = nil }),
		"no proof":           query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps = nil }),
		"no state operator":  query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops = q.Response.ProofOps.Ops[1:] }),
		"no map operator":    query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops = q.Response.ProofOps.Ops[:1] }),
		"operator's key":     query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops[0].Key = []byte("x") }),
		"operator's type":    query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops[0].Type = "simple:v" }),
		"a bit of the proof": query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops[0].Data[20] ^= 1 }),
		"a bit of the map":   query(func(q *ctypes.ResultABCIQuery) { q.Response.ProofOps.Ops[1].Data[20] ^= 1 }),
		"height":             query(func(q *ctypes.ResultABCIQuery) { q.Response.Height-- }),
		"height zero":        query(func(q *ctypes.ResultABCIQuery) { q.Response.Height = 0 }),
		"height enormous":    query(func(q *ctypes.ResultABCIQuery) { q.Response.Height = 1<<63 - 1 }),
		"height negative":    query(func(q *ctypes.ResultABCIQuery) { q.Response.Height = -5 }),
		"app hash": func(a any) error {
			if r, ok := a.(*ctypes.ResultCommit); ok {
				r.Header.AppHash = bytes.Repeat([]byte{7}, 32)
			}
			return nil
		},
		"signature": func(a any) error {
			if r, ok := a.(*ctypes.ResultCommit); ok {
				r.Commit.Signatures[0].Signature = make([]byte, 64)
				r.Commit.Signatures[1].Signature = make([]byte, 64)
			}
			return nil
		},
		"no header": func(a any) error {
			if r, ok := a.(*ctypes.ResultCommit); ok {
				r.Header = nil
			}
			return nil
		},
		"impossible power": func(a any) error {
			if r, ok := a.(*ctypes.ResultValidators); ok {
				r.Validators[0].VotingPower = 1 << 62
			}
			return nil
		},
		"a missing validator": func(a any) error {
			if r, ok := a.(*ctypes.ResultValidators); ok {
				r.Validators[0] = nil
			}
			return nil
		},
		"no validators": func(a any) error {
			if r, ok := a.(*ctypes.ResultValidators); ok {
				r.Validators = nil
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ctx, _, node, c := connected(t)
				_, err := c.Submit(ctx, tx.NewPut([]byte("a"), []byte("1")), tx.NewPut([]byte("b"), []byte("2")), tx.NewPut([]byte("c"), []byte("3")))
				require.NoError(t, err)
				_, err = c.Get(ctx, []byte("b"), Unverified())
				require.NoError(t, err)
				node.lies(lie)
				v, err := c.Get(ctx, []byte("b"))
				require.Error(t, err, "%+v", v)
				page, err := c.Range(ctx, []byte("a"), []byte("c"))
				require.Error(t, err, "%+v", page)
			})
		})
	}
}

func TestRangeLies(t *testing.T) {
	ctx, _, node, c := connected(t)
	var ops []tx.Operation
	for _, k := range "abcdef" {
		ops = append(ops, tx.NewPut([]byte(string(k)), []byte("v")))
	}
	_, err := c.Submit(ctx, ops...)
	require.NoError(t, err)
	entries := func(keys string) (all []avlstar.KV) {
		for _, k := range keys {
			all = append(all, avlstar.KV{Key: []byte(string(k)), Value: []byte("v")})
		}
		return all
	}
	for _, answer := range [][2]string{{"bd", ""}, {"bc", ""}, {"cd", ""}, {"bcde", ""}, {"bcd", "z"}, {"bc", "d"}, {"", "b"}, {"", ""}} {
		node.lies(func(a any) error {
			if q, ok := a.(*ctypes.ResultABCIQuery); ok {
				q.Response.Value = encodeRangeResponse(entries(answer[0]), []byte(answer[1]))
			}
			return nil
		})
		page, err := c.Range(ctx, []byte("b"), []byte("e"))
		require.ErrorIs(t, err, ErrUnproved, "%q gave %+v", answer, page)
	}
	// Without verification a node can return false entries, but cannot make Scan loop forever.
	node.lies(func(a any) error {
		a.(*ctypes.ResultABCIQuery).Response.Value = encodeRangeResponse(nil, []byte("b"))
		return nil
	})
	_, err = c.Range(ctx, []byte("b"), nil, Unverified())
	require.Error(t, err)
}

func TestNonceUsedByAnother(t *testing.T) {
	ctx, _, node, c := connected(t)
	other, err := New(ctx, []RPC{node}, WithKey(testKey))
	require.NoError(t, err)
	for i := range 5 {
		_, err := c.Put(ctx, []byte("k"), fmt.Appendf(nil, "%d", i))
		require.NoError(t, err)
		_, err = other.Put(ctx, []byte("k"), fmt.Appendf(nil, "%d", i))
		require.NoError(t, err)
	}
}

func TestManyWritersOfOneKey(t *testing.T) {
	ctx, _, _, c := connected(t)
	errs := make(chan error)
	for i := range 20 {
		go func() {
			_, err := c.Put(ctx, fmt.Appendf(nil, "%d", i), []byte("v"))
			errs <- err
		}()
	}
	for range 20 {
		require.NoError(t, <-errs)
	}
	nonce, err := c.Nonce(ctx, c.Account())
	require.NoError(t, err)
	require.EqualValues(t, 20, nonce)
}

func TestOutcomeUnknown(t *testing.T) { bubble(t, testOutcomeUnknown) }

func testOutcomeUnknown(t *testing.T) {
	ctx, chain, node, c := connected(t)

	// It is executed, but the answer is lost, and the transaction is no longer in the cache and
	// index of the node.
	forgotten := map[string]*ctypes.ResultTx{}
	node.lies(func(a any) error {
		if _, ok := a.(*ctypes.ResultBroadcastTx); ok {
			maps.Copy(forgotten, chain.found)
			clear(chain.found)
			return errLost
		}
		return nil
	})
	_, err := c.Put(ctx, []byte("k"), []byte("v"))
	var unknown *UnknownOutcomeError
	require.ErrorAs(t, err, &unknown)
	require.ErrorContains(t, err, fmt.Sprintf("%X", unknown.Hash))
	node.lies(nil)
	chain.found = forgotten
	result, err := c.WaitTx(ctx, unknown.Hash)
	require.NoError(t, err)
	require.Positive(t, result.Height)

	// A single lost answer does no harm.
	losses := 1
	node.lies(func(a any) error {
		if _, ok := a.(*ctypes.ResultBroadcastTx); ok && losses > 0 {
			losses--
			return errLost
		}
		return nil
	})
	_, err = c.Put(ctx, []byte("k"), []byte("v"))
	require.NoError(t, err)
	require.Zero(t, losses)
	node.lies(nil)

	// The node has it, but no block is made in time.
	chain.mu.Lock()
	chain.held = true
	chain.mu.Unlock()
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = c.Put(short, []byte("k"), []byte("w"))
	require.ErrorAs(t, err, &unknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	chain.release()
	_, err = c.WaitTx(ctx, unknown.Hash)
	require.NoError(t, err)

	// It was never sent: an ordinary error.
	node.lies(func(a any) error { return errDial })
	_, err = c.Put(ctx, []byte("k"), []byte("v"))
	require.ErrorIs(t, err, ErrUnreachable)
	require.False(t, errors.As(err, new(*UnknownOutcomeError)))
	node.lies(nil)
	_, err = c.Put(ctx, []byte("k"), []byte("v"))
	require.NoError(t, err)
}

func TestPipeline(t *testing.T) {
	ctx, chain, _, c := connected(t)
	chain.mu.Lock()
	chain.held = true
	chain.mu.Unlock()
	var all []*Sent
	for i := range 5 {
		sent, err := c.Send(ctx, tx.NewPut([]byte("k"), fmt.Appendf(nil, "%d", i)))
		require.NoError(t, err)
		all = append(all, sent)
	}
	chain.release()
	last := int64(0)
	for _, sent := range all {
		result, err := sent.Wait(ctx)
		require.NoError(t, err)
		require.Greater(t, result.Height, last)
		last = result.Height
	}
}

func TestConnect(t *testing.T) {
	chain := newFakeChain(t)
	ctx := testContext(t)
	dead := &fakeNode{chain: chain, name: "dead", lie: func(any) error { return errDial }}
	alive := &fakeNode{chain: chain, name: "alive"}
	c, err := New(ctx, []RPC{dead, alive, alive})
	require.NoError(t, err)
	require.Len(t, c.pool.all, 2, "the same address twice is one node")
	_, err = New(ctx, []RPC{dead})
	require.ErrorIs(t, err, ErrUnreachable)
	_, err = New(ctx, nil)
	require.ErrorIs(t, err, ErrUnreachable)
	_, err = New(ctx, []RPC{alive}, WithChainID("another"))
	require.ErrorIs(t, err, ErrWrongChain)
	_, err = New(ctx, []RPC{alive}, WithVerification(Trust{Genesis: chain.genesis()}), WithChainID("another"))
	require.Error(t, err)
	_, err = New(ctx, []RPC{alive}, WithKey(testKey[:5]))
	require.Error(t, err)
}

func TestParseAddress(t *testing.T) {
	for given, want := range map[string]string{
		"127.0.0.1:26657":         "http://127.0.0.1:26657",
		"tcp://0.0.0.0:26657":     "http://127.0.0.1:26657",
		"tcp://[::]:26657":        "http://127.0.0.1:26657",
		"http://:26657":           "http://127.0.0.1:26657",
		"https://u:p@example.org": "https://u:p@example.org",
		"localhost":               "http://localhost",
		"":                        "",
		"http://":                 "",
		"unix:///tmp/x":           "",
		"ftp://x":                 "",
		"http://a b":              "",
	} {
		u, err := parseAddress(given)
		if want == "" {
			require.Error(t, err, given)
			continue
		}
		require.NoError(t, err, given)
		require.Equal(t, want, u.String())
	}
	n, err := NewRPC("https://u:secret@example.org")
	require.NoError(t, err)
	require.NotContains(t, n.Remote(), "secret")
}

// endless is a server whose answer has no length and does not end.
type endless struct{}

func (endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{ContentLength: -1, Body: io.NopCloser(zeros{})}, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestAnswersAreBounded(t *testing.T) {
	response, err := limitedTransport{endless{}}.RoundTrip(nil)
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, response.Body)
	require.ErrorIs(t, err, errAnswerTooLong)
	require.LessOrEqual(t, n, int64(maxAnswerBytes))
	require.NoError(t, response.Body.Close())

	body := &limitedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 100))), left: 100}
	b, err := io.ReadAll(body)
	require.NoError(t, err)
	require.Len(t, b, 100)
	body = &limitedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 101))), left: 100}
	_, err = io.ReadAll(body)
	require.ErrorIs(t, err, errAnswerTooLong)
}
